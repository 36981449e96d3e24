/* What an update on a CPU does between its matrix products, each thing in one pass over memory; attention is beside it.

   Rows are read into fp32, worked on there, and written in the type of the tensor: fp32, or bf16 where `half` is set.
   Nothing depends on the number of threads: each row is one thread's alone, and sums over rows are made in an order that
   is always the same. */

#include "numbers.h"

#define LINE 16 /* numbers of a line of the cache */
#define AHEAD 8 /* blocks that are fetched before their turn */

/* -- dropout ------------------------------------------------------------------------------------------------------ */

/* out = residual + dropout(x). x is of n numbers; residual may be absent. All three types may differ. */
void drop_add(void *out, int out_half, const void *x, int x_half, const void *residual, int residual_half, int64_t n,
              uint64_t seed, int n_drop, float scale, int n_thread) {
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t block = 0; block < (n + BLOCK - 1) / BLOCK; block++) {
    int64_t first = block * BLOCK, size = n - first < BLOCK ? n - first : BLOCK;
    float here[BLOCK], there[BLOCK];
    uint16_t decision[BLOCK];
    prefetch(x, first + AHEAD * BLOCK, BLOCK, x_half, 0);
    prefetch(out, first + AHEAD * BLOCK, BLOCK, out_half, 1);
    if (residual) prefetch(residual, first + AHEAD * BLOCK, BLOCK, residual_half, 0);
    draw(decision, seed, first / 4, BLOCK / 4);
    load(here, x, first, size, x_half);
    drop(here, decision, size, n_drop, scale);
    if (residual) {
      load(there, residual, first, size, residual_half);
#pragma omp simd
      for (int64_t i = 0; i < size; i++) here[i] += there[i];
    }
    store(out, first, here, size, out_half);
  }
}

/* -- biases ------------------------------------------------------------------------------------------------------- */

/* x (n_row, n_col) + bias, in place, and then the ReLU of that if wanted, which lets NaN through. */
void add_bias(void *x, int half, const float *bias, int relu, int64_t n_row, int64_t n_col, int n_thread) {
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t row = 0; row < n_row; row++)
    for (int64_t i = 0; i < n_col; i += BLOCK) {
      int64_t first = row * n_col + i, n = n_col - i < BLOCK ? n_col - i : BLOCK;
      float here[BLOCK];
      prefetch(x, first + AHEAD * BLOCK, BLOCK, half, 1);
      load(here, x, first, n, half);
#pragma omp simd
      for (int64_t j = 0; j < n; j++) {
        float y = here[j] + bias[i + j];
        here[j] = relu && y < 0.0f ? 0.0f : y;
      }
      store(x, first, here, n, half);
    }
}

/* -- the softmax over a vocabulary -------------------------------------------------------------------------------- */

/* Logits z, (n_row, n_col), become p = exp(z - max), of which kept · sum(p) is taken off at the gold column.
   total: sum(p) of each row. value: log(sum(exp(z))) - kept · z[gold] of each row. */
void exponents(void *z, int half, const int64_t *gold, float kept, float *total, float *value, int64_t n_row,
               int64_t n_col, int n_thread) {
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t row = 0; row < n_row; row++) {
    void *x = (char *)z + row * n_col * (half ? 2 : 4);
    float top = -INFINITY, sum = 0.0f, here, part[BLOCK];
    load(&here, x, gold[row], 1, half);
    if (half)
#pragma omp simd reduction(max : top)
      for (int64_t i = 0; i < n_col; i++) top = widen(((bf16 *)x)[i]) > top ? widen(((bf16 *)x)[i]) : top;
    else
#pragma omp simd reduction(max : top)
      for (int64_t i = 0; i < n_col; i++) top = ((float *)x)[i] > top ? ((float *)x)[i] : top;
    for (int64_t i = 0; i < n_col; i += BLOCK) {
      int64_t n = n_col - i < BLOCK ? n_col - i : BLOCK;
      vector sums = {0};
      load(part, x, i, n, half);
      for (int64_t j = n; j < up(n); j++) part[j] = -INFINITY; /* whose exponential is 0 */
      for (int64_t j = 0; j < n; j += LANES) {
        vector p = exponentials(*(vector *)(part + j) - top);
        sums += p;
        *(vector *)(part + j) = p;
      }
      sum += total_of(sums);
      store(x, i, part, n, half);
    }
    float at_gold = exponential(here - top) - kept * sum;
    store(x, gold[row], &at_gold, 1, half);
    total[row] = sum;
    value[row] = top + logf(sum) - kept * here;
  }
}

/* to (n_col, n_row) = from (n_row, n_col), turned. */
void turn(float *to, const float *from, int64_t n_row, int64_t n_col, int n_thread) {
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t row = 0; row < n_row; row += LINE) { /* so that a line of the cache is written at once */
    const int64_t end = UP_TO(row + LINE, n_row);
    for (int64_t c = 0; c < n_col; c += 4)
      for (int64_t r = row; r < end; r += LANES) {
        if (r + LANES <= end && c + 4 <= n_col)
          turn_four(to + c * n_row + r, n_row, from + r * n_col + c, n_col);
        else
          for (int64_t i = c; i < UP_TO(c + 4, n_col); i++)
            for (int64_t j = r; j < UP_TO(r + LANES, end); j++) to[i * n_row + j] = from[j * n_col + i];
      }
  }
}

/* -- sums over rows ----------------------------------------------------------------------------------------------- */

/* Rows whose sums are one part of those over all rows. */
int rows_a_sum(void) { return ROWS; }

/* Sums of columns, (n_col). With `hidden`, the output of a ReLU, x is a gradient, and first becomes that of the input: 0
   where the output is 0. room: a row of n_col for each ROWS rows. Their sums are added up in their order, so nothing
   depends on the number of threads. */
void column_sums(void *x, const void *hidden, int half, int64_t n_row, int64_t n_col, float *sums, float *room,
                 int n_thread) {
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t part = 0; part < (n_row + ROWS - 1) / ROWS; part++) {
    int64_t end = (part + 1) * ROWS < n_row ? (part + 1) * ROWS : n_row;
    float *sum = room + part * n_col, d[BLOCK], h[BLOCK];
    memset(sum, 0, 4 * n_col);
    for (int64_t row = part * ROWS; row < end; row++)
      for (int64_t i = 0; i < n_col; i += BLOCK) {
        int64_t first = row * n_col + i, n = n_col - i < BLOCK ? n_col - i : BLOCK;
        load(d, x, first, n, half);
        if (hidden) {
          load(h, hidden, first, n, half);
#pragma omp simd
          for (int64_t j = 0; j < n; j++) d[j] = h[j] == 0.0f ? 0.0f : d[j];
          store(x, first, d, n, half);
        }
#pragma omp simd
        for (int64_t j = 0; j < n; j++) sum[i + j] += d[j];
      }
  }
  add_parts(sums, room, PARTS(n_row, ROWS), n_col);
}

/* The sum of the squares of n_tensor tensors of fp32, in parts of PART numbers each, to be added up in their order. */
#define PART 16384

int numbers_a_part(void) { return PART; }

void squares(const float *const *tensor, const int64_t *size, int64_t n_tensor, double *sums, int n_thread) {
#pragma omp parallel num_threads(n_thread)
  for (int64_t t = 0, before = 0; t < n_tensor; before += (size[t] + PART - 1) / PART, t++)
#pragma omp for schedule(static) nowait
    for (int64_t part = 0; part < (size[t] + PART - 1) / PART; part++) {
      const int64_t end = (part + 1) * PART < size[t] ? (part + 1) * PART : size[t];
      vector sum[4] = {0}; /* one alone would wait for each addition */
      int64_t i = part * PART;
      for (; i + 4 * LANES <= end; i += 4 * LANES)
        for (int64_t j = 0; j < 4; j++) {
          vector x = *(const vector *)(tensor[t] + i + j * LANES);
          sum[j] += x * x;
        }
      double rest = 0.0;
      for (; i < end; i++) rest += (double)tensor[t][i] * tensor[t][i];
      sums[before + part] = rest + total_of((sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
}
