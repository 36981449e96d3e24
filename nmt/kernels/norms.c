/* Normalising rows, and the gradient of that: LayerNorm, or RMSNorm where rows are not `centred`.

   What comes before, the end of a sub-layer, and what comes after, where rows go two ways, are parts of the same passes:
   they take as long as memory takes. */

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

/* A row of out. */
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
    if (bias) y += bias[i];
    put_number(out, first + i, y, out_half);
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

/* A row of n numbers of sum = residual + dropout(x). Four decisions are a word: rows begin with one. */
ALWAYS void add_row(float *sum, const void *x, const int x_half, const float *residual, int64_t first, int64_t n,
                    uint64_t seed, int n_drop, float scale) {
  uint16_t decision[BLOCK];
  for (int64_t begin = first; begin < first + n; begin += BLOCK) {
    const int64_t size = first + n - begin < BLOCK ? first + n - begin : BLOCK;
    int64_t i = 0;
    if (n_drop) draw(decision, seed, begin / 4, (size + 3) / 4);
    for (; i + LANES <= size; i += LANES) {
      vector y = vector_at(x, begin + i, x_half);
      if (n_drop) y = kept(y, decision + i, n_drop, scale);
      *(vector *)(sum + begin + i) = *(const vector *)(residual + begin + i) + y;
    }
    for (; i < size; i++) {
      float y = number_at(x, begin + i, x_half);
      if (n_drop) drop(&y, decision + i, 1, n_drop, scale);
      sum[begin + i] = residual[begin + i] + y;
    }
  }
}

/* The end of a sub-layer: sum = residual + dropout(x), and out = that normalised. All but x are fp32. n_col: a multiple of 4, or nothing is dropped. */
void add_and_normalise(float *out, float *sum, const void *x, int x_half, const float *residual, uint64_t seed,
                       int n_drop, float scale, const float *weight, const float *bias, float *mean, float *rate,
                       int centred, float eps, int64_t n_row, int64_t n_col, int n_thread) {
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t row = 0; row < n_row; row++) {
    const int64_t first = row * n_col, ahead = first + AHEAD * n_col;
    prefetch(x, ahead, n_col, x_half, 0);
    prefetch(residual, ahead, n_col, 0, 0);
    prefetch(sum, ahead, n_col, 0, 1);
    prefetch(out, ahead, n_col, 0, 1);
    if (x_half)
      add_row(sum, x, 1, residual, first, n_col, seed, n_drop, scale);
    else
      add_row(sum, x, 0, residual, first, n_col, seed, n_drop, scale);
    normalise_row(out, 0, sum, 0, first, n_col, weight, bias, mean + row, rate + row, centred, eps);
  }
}

/* What the gradient of a norm is made of, and where it goes. */
typedef struct {
  const void *d, *x, *beside;
  const float *weight;
  void *d_x, *dropped;
  int dropped_half, centred, n_drop;
  uint64_t seed;
  float scale;
  int64_t n_col;
} gradient;

/* The gradient of the row that begins at number `first`. of_weight, of_bias: it adds to theirs. */
ALWAYS void backward_row(const gradient *g, const int d_half, const int x_half, int64_t first, float mean,
                         float rate, float *of_weight, float *of_bias) {
  const int64_t n = g->n_col;
  vector along = {0}, across = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    vector d = vector_at(g->d, first + i, d_half), y = (vector_at(g->x, first + i, x_half) - mean) * rate;
    *(vector *)(of_weight + i) += d * y;
    *(vector *)(of_bias + i) += d;
    d *= *(const vector *)(g->weight + i);
    along += d;
    across += d * y;
  }
  float sum = total_of(along), product = total_of(across);
  for (; i < n; i++) {
    float d = number_at(g->d, first + i, d_half), y = (number_at(g->x, first + i, x_half) - mean) * rate;
    of_weight[i] += d * y;
    of_bias[i] += d;
    sum += d * g->weight[i];
    product += d * g->weight[i] * y;
  }
  sum = g->centred ? sum / n : 0.0f;
  product /= n;
  uint16_t decision[BLOCK];
  for (int64_t begin = 0; begin < n; begin += BLOCK) {
    const int64_t end = n - begin < BLOCK ? n : begin + BLOCK;
    if (g->n_drop) draw(decision, g->seed, (first + begin) / 4, (end - begin + 3) / 4);
    for (i = begin; i + LANES <= end; i += LANES) {
      vector d = vector_at(g->d, first + i, d_half), y = (vector_at(g->x, first + i, x_half) - mean) * rate;
      vector found = (d * *(const vector *)(g->weight + i) - sum - y * product) * rate;
      if (g->beside) found += vector_at(g->beside, first + i, x_half);
      put_vector(g->d_x, first + i, found, x_half);
      if (!g->dropped) continue;
      if (g->n_drop) found = kept(found, decision + i - begin, g->n_drop, g->scale);
      put_vector(g->dropped, first + i, found, g->dropped_half);
    }
    for (; i < end; i++) {
      float d = number_at(g->d, first + i, d_half), y = (number_at(g->x, first + i, x_half) - mean) * rate;
      float found = (d * g->weight[i] - sum - y * product) * rate;
      if (g->beside) found += number_at(g->beside, first + i, x_half);
      put_number(g->d_x, first + i, found, x_half);
      if (!g->dropped) continue;
      if (g->n_drop) drop(&found, decision + i - begin, 1, g->n_drop, g->scale);
      put_number(g->dropped, first + i, found, g->dropped_half);
    }
  }
}

/* d_x = the gradient of x by that of `out`, d, and + beside: that of what else x enters. dropped: the same as it goes back
   through the dropout of what was added to x. beside and dropped may be absent. sums: (2, n_col), the gradients of weight and bias. room: (2, n_col) for each ROWS rows, whose sums are added up in
   their order. */
void normalise_backward(void *d_x, void *dropped, int dropped_half, uint64_t seed, int n_drop, float scale, const void *d,
                        int d_half, const void *x, int x_half, const void *beside, const float *weight,
                        const float *mean, const float *rate, int centred, float *sums, float *room, int64_t n_row,
                        int64_t n_col, int n_thread) {
  const gradient g = {d, x, beside, weight, d_x, dropped, dropped_half, centred, n_drop, seed, scale, n_col};
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t part = 0; part < (n_row + ROWS - 1) / ROWS; part++) {
    const int64_t end = (part + 1) * ROWS < n_row ? (part + 1) * ROWS : n_row;
    float *of_weight = room + 2 * part * n_col, *of_bias = of_weight + n_col;
    memset(of_weight, 0, 8 * n_col);
    for (int64_t row = part * ROWS; row < end; row++) {
      const int64_t first = row * n_col, ahead = first + AHEAD * n_col;
      prefetch(x, ahead, n_col, x_half, 0);
      prefetch(d, ahead, n_col, d_half, 0);
      if (beside) prefetch(beside, ahead, n_col, x_half, 0);
      prefetch(d_x, ahead, n_col, x_half, 1);
      if (dropped) prefetch(dropped, ahead, n_col, dropped_half, 1);
#define BACKWARD(of_d, of_x) backward_row(&g, of_d, of_x, first, mean[row], rate[row], of_weight, of_bias)
      if (!d_half && !x_half)
        BACKWARD(0, 0);
      else if (!x_half)
        BACKWARD(1, 0);
      else if (!d_half)
        BACKWARD(0, 1);
      else
        BACKWARD(1, 1);
    }
  }
  add_parts(sums, room, PARTS(n_row, ROWS), 2 * n_col);
}
