/* Normalising rows, and the gradient of that: LayerNorm, or RMSNorm where rows are not `centred`.

   Where rows go elsewhere, too, the gradient of that is added in the same pass. */

#include "numbers.h"

#define AHEAD 2 /* rows that are fetched before their turn */
#define CHAINS 4 /* sums that are made side by side: one alone would wait for each addition */

/* The sum of x - shift over a row, or of its square. */
ALWAYS float sum_of(const void *x, int half, int64_t first, int64_t n, float shift, const int squared) {
  vector sums[CHAINS] = {0};
  int64_t i = 0;
  for (; i + CHAINS * LANES <= n; i += CHAINS * LANES)
    for (int c = 0; c < CHAINS; c++) {
      vector d = vector_at(x, first + i + c * LANES, half) - shift;
      if (squared) d *= d;
      sums[c] += d;
    }
  float sum = 0.0f;
  for (; i < n; i++) {
    float d = number_at(x, first + i, half) - shift;
    sum += squared ? d * d : d;
  }
  return sum + total_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

ALWAYS void normalise_row(void *out, const int out_half, const void *x, const int x_half, int64_t first, int64_t n,
                          const float *weight, const float *bias, float *mean, float *rate, int centred, float eps) {
  const float middle = centred ? sum_of(x, x_half, first, n, 0.0f, 0) / n : 0.0f;
  /* The square from the mean, in a pass of its own: the mean may be far from zero. */
  const float share = 1.0f / sqrtf(sum_of(x, x_half, first, n, middle, 1) / n + eps);
  *mean = middle;
  *rate = share;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    vector y = (vector_at(x, first + i, x_half) - middle) * share * *(const vector *)(weight + i);
    if (bias) y += *(const vector *)(bias + i);
    put_vector(out, first + i, y, out_half);
  }
  for (; i < n; i++) {
    float y = (number_at(x, first + i, x_half) - middle) * share * weight[i];
    put_number(out, first + i, bias ? y + bias[i] : y, out_half);
  }
}

/* out = (x - mean) · rate · weight + bias, row by row. bias may be absent. mean, rate: of each row, for the gradient. */
void normalise(void *out, int out_half, const void *x, int x_half, const float *weight, const float *bias, float *mean,
               float *rate, int centred, float eps, int64_t n_row, int64_t n_col, int n_thread) {
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t row = 0; row < n_row; row++) {
    const int64_t first = row * n_col;
    prefetch(x, first + AHEAD * n_col, n_col, x_half, 0);
    prefetch(out, first + AHEAD * n_col, n_col, out_half, 1);
#define ROW(to_half, from_half) \
  normalise_row(out, to_half, x, from_half, first, n_col, weight, bias, mean + row, rate + row, centred, eps)
    if (!out_half && !x_half)
      ROW(0, 0);
    else if (!x_half)
      ROW(1, 0);
    else if (!out_half)
      ROW(0, 1);
    else
      ROW(1, 1);
  }
}

/* d_x = the gradient of x by that of `out`, d, and + beside: of what else x enters; it may be absent. sums: (n_row / ROWS
   rounded up, 2, n_col), gradients of weight and bias by ROWS rows each, to be added up in their order. */
void normalise_backward(void *d_x, const void *d, int d_half, const void *x, int x_half, const void *beside,
                        const float *weight, const float *mean, const float *rate, int centred, float *sums,
                        int64_t n_row, int64_t n_col, int n_thread) {
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t part = 0; part < (n_row + ROWS - 1) / ROWS; part++) {
    const int64_t end = (part + 1) * ROWS < n_row ? (part + 1) * ROWS : n_row;
    float *of_weight = sums + 2 * part * n_col, *of_bias = of_weight + n_col;
    memset(of_weight, 0, 8 * n_col);
    for (int64_t row = part * ROWS; row < end; row++) {
      const int64_t first = row * n_col;
      const float middle = mean[row], share = rate[row];
      prefetch(x, first + AHEAD * n_col, n_col, x_half, 0);
      prefetch(d, first + AHEAD * n_col, n_col, d_half, 0);
      if (beside) prefetch(beside, first + AHEAD * n_col, n_col, x_half, 0);
      prefetch(d_x, first + AHEAD * n_col, n_col, x_half, 1);
      vector along = {0}, across = {0};
      int64_t i = 0;
      for (; i + LANES <= n_col; i += LANES) {
        vector g = vector_at(d, first + i, d_half), y = (vector_at(x, first + i, x_half) - middle) * share;
        *(vector *)(of_weight + i) += g * y;
        *(vector *)(of_bias + i) += g;
        g *= *(const vector *)(weight + i);
        along += g;
        across += g * y;
      }
      float sum = total_of(along), product = total_of(across);
      for (; i < n_col; i++) {
        float g = number_at(d, first + i, d_half), y = (number_at(x, first + i, x_half) - middle) * share;
        of_weight[i] += g * y;
        of_bias[i] += g;
        sum += g * weight[i];
        product += g * weight[i] * y;
      }
      sum = centred ? sum / n_col : 0.0f;
      product /= n_col;
      for (i = 0; i + LANES <= n_col; i += LANES) {
        vector g = vector_at(d, first + i, d_half) * *(const vector *)(weight + i);
        vector y = (vector_at(x, first + i, x_half) - middle) * share;
        vector found = (g - sum - y * product) * share;
        if (beside) found += vector_at(beside, first + i, x_half);
        put_vector(d_x, first + i, found, x_half);
      }
      for (; i < n_col; i++) {
        float g = number_at(d, first + i, d_half) * weight[i], y = (number_at(x, first + i, x_half) - middle) * share;
        float found = (g - sum - y * product) * share;
        put_number(d_x, first + i, beside ? found + number_at(beside, first + i, x_half) : found, x_half);
      }
    }
  }
}
