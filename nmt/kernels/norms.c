/* LayerNorm, or RMSNorm if not `centred`, and their gradients.

   Memory bandwidth limits these passes, so dropout and residual sum before a norm are fused with it, and so is the sum of the
   two gradients of the residual stream. */

#include "numbers.h"

#define AHEAD 2  /* rows that are prefetched ahead */
#define CHAINS 4 /* independent accumulators, to hide the latency of additions */

/* Sum over a row of x - shift, or of its square. */
INLINE float sum_of(const void *x, int half, int64_t offset, int64_t n, float shift, const int squared) {
  vector sums[CHAINS] = {0};
  int64_t i = 0;
  for (; i + CHAINS * LANES <= n; i += CHAINS * LANES)
    for (int c = 0; c < CHAINS; c++) {
      vector diff = vector_at(x, offset + i + c * LANES, half) - shift;
      if (squared) diff *= diff;
      sums[c] += diff;
    }
  float sum = 0.0f;
  for (; i < n; i++) {
    float diff = number_at(x, offset + i, half) - shift;
    sum += squared ? diff * diff : diff;
  }
  return sum + reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/* Normalise one row. */
INLINE void normalise_row(void *out, const int out_half, const void *x, const int x_half, int64_t offset, int64_t n,
                          const float *weight, const float *bias, float *mean, float *rstd, int centred, float eps) {
  const float row_mean = centred ? sum_of(x, x_half, offset, n, 0.0f, 0) / n : 0.0f;
  /* Variance in a second pass, from the mean: the mean may be far from zero. */
  const float row_rstd = 1.0f / sqrtf(sum_of(x, x_half, offset, n, row_mean, 1) / n + eps);
  *mean = row_mean;
  *rstd = row_rstd;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    vector y = (vector_at(x, offset + i, x_half) - row_mean) * row_rstd * *(const vector *)(weight + i);
    if (bias) y += *(const vector *)(bias + i);
    put_vector(out, offset + i, y, out_half);
  }
  for (; i < n; i++) {
    float y = (number_at(x, offset + i, x_half) - row_mean) * row_rstd * weight[i];
    if (bias) y += bias[i];
    put_number(out, offset + i, y, out_half);
  }
}

/* out = (x - mean) · rstd · weight + bias, for each row; mean and rstd are kept for the gradient. bias may be NULL. */
void normalise(void *out, int out_half, const void *x, int x_half, const float *weight, const float *bias, float *mean,
               float *rstd, int centred, float eps, int64_t n_row, int64_t n_col, int n_thread) {
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t row = 0; row < n_row; row++) {
    const int64_t offset = row * n_col;
    prefetch(x, offset + AHEAD * n_col, n_col, x_half, 0);
    prefetch(out, offset + AHEAD * n_col, n_col, out_half, 1);
#define ROW(to_half, from_half) \
  normalise_row(out, to_half, x, from_half, offset, n_col, weight, bias, mean + row, rstd + row, centred, eps)
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

/* sum = residual + dropout(x) for one row of n numbers. Four random numbers share a word; a row starts with a new word. */
INLINE void add_row(float *sum, const void *x, const int x_half, const float *residual, int64_t offset, int64_t n,
                    uint64_t seed, int n_drop, float scale) {
  uint16_t draws[BLOCK];
  for (int64_t begin = offset; begin < offset + n; begin += BLOCK) {
    const int64_t size = offset + n - begin < BLOCK ? offset + n - begin : BLOCK;
    int64_t i = 0;
    if (n_drop) draw(draws, seed, begin / 4, (size + 3) / 4);
    for (; i + LANES <= size; i += LANES) {
      vector y = vector_at(x, begin + i, x_half);
      if (n_drop) y = dropout_vector(y, draws + i, n_drop, scale);
      *(vector *)(sum + begin + i) = *(const vector *)(residual + begin + i) + y;
    }
    for (; i < size; i++) {
      float y = number_at(x, begin + i, x_half);
      if (n_drop) dropout(&y, draws + i, 1, n_drop, scale);
      sum[begin + i] = residual[begin + i] + y;
    }
  }
}

/* sum = residual + dropout(x), and out = norm(sum). All but x are fp32. With dropout, n_col is a multiple of 4. */
void add_and_normalise(float *out, float *sum, const void *x, int x_half, const float *residual, uint64_t seed,
                       int n_drop, float scale, const float *weight, const float *bias, float *mean, float *rstd,
                       int centred, float eps, int64_t n_row, int64_t n_col, int n_thread) {
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t row = 0; row < n_row; row++) {
    const int64_t offset = row * n_col, ahead = offset + AHEAD * n_col;
    prefetch(x, ahead, n_col, x_half, 0);
    prefetch(residual, ahead, n_col, 0, 0);
    prefetch(sum, ahead, n_col, 0, 1);
    prefetch(out, ahead, n_col, 0, 1);
    if (x_half)
      add_row(sum, x, 1, residual, offset, n_col, seed, n_drop, scale);
    else
      add_row(sum, x, 0, residual, offset, n_col, seed, n_drop, scale);
    normalise_row(out, 0, sum, 0, offset, n_col, weight, bias, mean + row, rstd + row, centred, eps);
  }
}

/* Inputs and outputs of the gradient of a norm. */
typedef struct {
  const void *d_out, *x, *d_residual;
  const float *weight;
  void *d_x, *d_dropped;
  int d_dropped_half, centred, n_drop;
  uint64_t seed;
  float scale;
  int64_t n_col;
} gradient;

/* Gradient of the row at `offset`. Adds to d_weight and d_bias. */
INLINE void backward_row(const gradient *g, const int d_out_half, const int x_half, int64_t offset, float mean,
                         float rstd, float *d_weight, float *d_bias) {
  const int64_t n = g->n_col;
  vector sum_vector = {0}, product_vector = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    vector d = vector_at(g->d_out, offset + i, d_out_half), y = (vector_at(g->x, offset + i, x_half) - mean) * rstd;
    *(vector *)(d_weight + i) += d * y;
    *(vector *)(d_bias + i) += d;
    d *= *(const vector *)(g->weight + i);
    sum_vector += d;
    product_vector += d * y;
  }
  float sum = reduce_add(sum_vector), product = reduce_add(product_vector);
  for (; i < n; i++) {
    float d = number_at(g->d_out, offset + i, d_out_half), y = (number_at(g->x, offset + i, x_half) - mean) * rstd;
    d_weight[i] += d * y;
    d_bias[i] += d;
    sum += d * g->weight[i];
    product += d * g->weight[i] * y;
  }
  sum = g->centred ? sum / n : 0.0f;
  product /= n;
  uint16_t draws[BLOCK];
  for (int64_t begin = 0; begin < n; begin += BLOCK) {
    const int64_t end = n - begin < BLOCK ? n : begin + BLOCK;
    if (g->n_drop) draw(draws, g->seed, (offset + begin) / 4, (end - begin + 3) / 4);
    for (i = begin; i + LANES <= end; i += LANES) {
      vector d = vector_at(g->d_out, offset + i, d_out_half), y = (vector_at(g->x, offset + i, x_half) - mean) * rstd;
      vector d_x = (d * *(const vector *)(g->weight + i) - sum - y * product) * rstd;
      if (g->d_residual) d_x += vector_at(g->d_residual, offset + i, x_half);
      put_vector(g->d_x, offset + i, d_x, x_half);
      if (!g->d_dropped) continue;
      if (g->n_drop) d_x = dropout_vector(d_x, draws + i - begin, g->n_drop, g->scale);
      put_vector(g->d_dropped, offset + i, d_x, g->d_dropped_half);
    }
    for (; i < end; i++) {
      float d = number_at(g->d_out, offset + i, d_out_half), y = (number_at(g->x, offset + i, x_half) - mean) * rstd;
      float d_x = (d * g->weight[i] - sum - y * product) * rstd;
      if (g->d_residual) d_x += number_at(g->d_residual, offset + i, x_half);
      put_number(g->d_x, offset + i, d_x, x_half);
      if (!g->d_dropped) continue;
      if (g->n_drop) dropout(&d_x, draws + i - begin, 1, g->n_drop, g->scale);
      put_number(g->d_dropped, offset + i, d_x, g->d_dropped_half);
    }
  }
}

/* d_x = gradient of x from d_out, plus d_residual, another gradient of x. d_dropped: d_x, back through the dropout of the
   summand of x. d_residual and d_dropped may be NULL. sums: (2, n_col), the gradients of weight and bias. scratch: (2, n_col)
   for each ROWS_PER_PART rows, added up in row order. */
void normalise_backward(void *d_x, void *d_dropped, int d_dropped_half, uint64_t seed, int n_drop, float scale,
                        const void *d_out, int d_out_half, const void *x, int x_half, const void *d_residual,
                        const float *weight, const float *mean, const float *rstd, int centred, float *sums,
                        float *scratch, int64_t n_row, int64_t n_col, int n_thread) {
  const gradient g = {d_out, x, d_residual, weight, d_x, d_dropped, d_dropped_half, centred, n_drop, seed, scale, n_col};
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t part = 0; part < (n_row + ROWS_PER_PART - 1) / ROWS_PER_PART; part++) {
    const int64_t end = (part + 1) * ROWS_PER_PART < n_row ? (part + 1) * ROWS_PER_PART : n_row;
    float *d_weight = scratch + 2 * part * n_col, *d_bias = d_weight + n_col;
    memset(d_weight, 0, 8 * n_col);
    for (int64_t row = part * ROWS_PER_PART; row < end; row++) {
      const int64_t offset = row * n_col, ahead = offset + AHEAD * n_col;
      prefetch(x, ahead, n_col, x_half, 0);
      prefetch(d_out, ahead, n_col, d_out_half, 0);
      if (d_residual) prefetch(d_residual, ahead, n_col, x_half, 0);
      prefetch(d_x, ahead, n_col, x_half, 1);
      if (d_dropped) prefetch(d_dropped, ahead, n_col, d_dropped_half, 1);
#define BACKWARD(d_is_half, x_is_half) backward_row(&g, d_is_half, x_is_half, offset, mean[row], rstd[row], d_weight, d_bias)
      if (!d_out_half && !x_half)
        BACKWARD(0, 0);
      else if (!x_half)
        BACKWARD(1, 0);
      else if (!d_out_half)
        BACKWARD(0, 1);
      else
        BACKWARD(1, 1);
    }
  }
  add_partial_sums(sums, scratch, CEIL_DIV(n_row, ROWS_PER_PART), 2 * n_col);
}
