/* Passes over memory between the matrix products of an update on a CPU, without attention.

   Rows are read into fp32, processed, and written in the type of the tensor: fp32, or bf16 if `half`. Results do not depend
   on the number of threads: each row is processed by one thread, and sums over rows have a fixed order. */

#include "numbers.h"

#define AHEAD 8 /* blocks that are prefetched ahead */

/* -- dropout ------------------------------------------------------------------------------------------------------ */

/* out = residual + dropout(x), n numbers. residual may be NULL. All three types may differ. */
void drop_add(void *out, int out_half, const void *x, int x_half, const void *residual, int residual_half, int64_t n,
              uint64_t seed, int n_drop, float scale, int n_thread) {
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t block = 0; block < (n + BLOCK - 1) / BLOCK; block++) {
    int64_t first = block * BLOCK, size = n - first < BLOCK ? n - first : BLOCK;
    float values[BLOCK], summands[BLOCK];
    uint16_t draws[BLOCK];
    prefetch(x, first + AHEAD * BLOCK, BLOCK, x_half, 0);
    prefetch(out, first + AHEAD * BLOCK, BLOCK, out_half, 1);
    if (residual) prefetch(residual, first + AHEAD * BLOCK, BLOCK, residual_half, 0);
    draw(draws, seed, first / 4, BLOCK / 4);
    load(values, x, first, size, x_half);
    dropout(values, draws, size, n_drop, scale);
    if (residual) {
      load(summands, residual, first, size, residual_half);
#pragma omp simd
      for (int64_t i = 0; i < size; i++) values[i] += summands[i];
    }
    store(out, first, values, size, out_half);
  }
}

/* -- biases ------------------------------------------------------------------------------------------------------- */

/* x (n_row, n_col) + bias in place, then ReLU if relu, which propagates NaN. */
void add_bias(void *x, int half, const float *bias, int relu, int64_t n_row, int64_t n_col, int n_thread) {
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t row = 0; row < n_row; row++)
    for (int64_t i = 0; i < n_col; i += BLOCK) {
      int64_t first = row * n_col + i, n = n_col - i < BLOCK ? n_col - i : BLOCK;
      float values[BLOCK];
      prefetch(x, first + AHEAD * BLOCK, BLOCK, half, 1);
      load(values, x, first, n, half);
#pragma omp simd
      for (int64_t j = 0; j < n; j++) {
        float y = values[j] + bias[i + j];
        values[j] = relu && y < 0.0f ? 0.0f : y;
      }
      store(x, first, values, n, half);
    }
}

/* -- softmax over a vocabulary ------------------------------------------------------------------------------------ */

/* Replace logits z (n_row, n_col) by p = exp(z - max), less gold_weight · sum(p) at the gold column. total: sum(p) of each
   row. loss: log(sum(exp(z))) - gold_weight · z[gold] of each row. */
void exponents(void *z, int half, const int64_t *gold, float gold_weight, float *total, float *loss, int64_t n_row,
               int64_t n_col, int n_thread) {
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t row = 0; row < n_row; row++) {
    void *x = (char *)z + row * n_col * (half ? 2 : 4);
    const float top = max_of(x, 0, n_col, half);
    float sum = 0.0f, gold_logit, buffer[BLOCK];
    load(&gold_logit, x, gold[row], 1, half);
    for (int64_t i = 0; i < n_col; i += BLOCK) {
      int64_t n = n_col - i < BLOCK ? n_col - i : BLOCK;
      vector sums = {0};
      load(buffer, x, i, n, half);
      for (int64_t j = n; j < padded(n); j++) buffer[j] = -INFINITY; /* exponential is 0 */
      for (int64_t j = 0; j < n; j += LANES) {
        vector p = exponentials(*(vector *)(buffer + j) - top);
        sums += p;
        *(vector *)(buffer + j) = p;
      }
      sum += reduce_add(sums);
      store(x, i, buffer, n, half);
    }
    float gold_value = exponential(gold_logit - top) - gold_weight * sum;
    store(x, gold[row], &gold_value, 1, half);
    total[row] = sum;
    loss[row] = top + logf(sum) - gold_weight * gold_logit;
  }
}

/* -- sums over rows ----------------------------------------------------------------------------------------------- */

/* Number of rows whose column sums form one partial sum. */
int rows_a_sum(void) { return ROWS_PER_PART; }

/* Column sums of x, (n_col). hidden: the output of a ReLU, or NULL. Then x is the gradient of that output, and is first
   replaced by the gradient of the input: 0 where hidden is 0. scratch: n_col partial sums for each ROWS_PER_PART rows, added
   up in row order, so that the result does not depend on the number of threads. */
void column_sums(void *x, const void *hidden, int half, int64_t n_row, int64_t n_col, float *sums, float *scratch,
                 int n_thread) {
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t part = 0; part < (n_row + ROWS_PER_PART - 1) / ROWS_PER_PART; part++) {
    int64_t end = (part + 1) * ROWS_PER_PART < n_row ? (part + 1) * ROWS_PER_PART : n_row;
    float *sum = scratch + part * n_col, d[BLOCK], h[BLOCK];
    memset(sum, 0, 4 * n_col);
    for (int64_t row = part * ROWS_PER_PART; row < end; row++)
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
  add_partial_sums(sums, scratch, CEIL_DIV(n_row, ROWS_PER_PART), n_col);
}

/* Sums of squares of n_tensor fp32 tensors, in parts of PART numbers. The caller adds up the parts in order. */
#define PART 16384

int numbers_a_part(void) { return PART; }

void squares(const float *const *tensor, const int64_t *size, int64_t n_tensor, double *sums, int n_thread) {
#pragma omp parallel num_threads(n_thread)
  for (int64_t t = 0, first_part = 0; t < n_tensor; first_part += (size[t] + PART - 1) / PART, t++)
#pragma omp for schedule(static) nowait
    for (int64_t part = 0; part < (size[t] + PART - 1) / PART; part++) {
      const int64_t end = (part + 1) * PART < size[t] ? (part + 1) * PART : size[t];
      vector sum[4] = {0}; /* independent accumulators, to hide the latency of additions */
      int64_t i = part * PART;
      for (; i + 4 * LANES <= end; i += 4 * LANES)
        for (int64_t j = 0; j < 4; j++) {
          vector x = *(const vector *)(tensor[t] + i + j * LANES);
          sum[j] += x * x;
        }
      double tail = 0.0;
      for (; i < end; i++) tail += (double)tensor[t][i] * tensor[t][i];
      sums[first_part + part] = tail + reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
}
