/* The n best columns and the log-sum-exp of rows of logits, for a search: two reads of each row, and no write. */

#include "numbers.h"

#define WIDTH 64 /* columns of a block; the second pass skips blocks by their maximum, found in the first */

/* Insert a value into the n best, sorted from best to worst, unless it is no better than the last. */
static void insert(float *best, int64_t *column, int n, float value, int64_t index) {
  int i = n - 1;
  if (!(value > best[i])) return;
  for (; i && value > best[i - 1]; i--) {
    best[i] = best[i - 1];
    column[i] = column[i - 1];
  }
  best[i] = value;
  column[i] = index;
}

/* For each row of z (n_row, n_col): the n best columns, without the n_excluded ones, sorted from best to worst, equal ones by
   column; and the log of the sum of exponentials of all columns. Missing results are -inf, in column 0. */
void choose(const void *z, int half, int64_t n_row, int64_t n_col, const int64_t *excluded, int n_excluded, int n,
            float *best, int64_t *column, float *log_total, int n_thread) {
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t row = 0; row < n_row; row++) {
    const int64_t first = row * n_col, n_block = CEIL_DIV(n_col, WIDTH);
    float block_max[n_block], row_max = -INFINITY, sum = 0.0f, buffer[WIDTH], best_blocks[n];
    int64_t unused[n];
    for (int64_t b = 0; b < n_block; b++) {
      block_max[b] = max_of(z, first + b * WIDTH, MIN(n_col - b * WIDTH, WIDTH), half);
      row_max = block_max[b] > row_max ? block_max[b] : row_max;
    }
    vector vector_sum = {0};
    for (int64_t b = 0; b < n_block; b++) {
      int64_t width = MIN(n_col - b * WIDTH, WIDTH), i = 0;
      for (; i + LANES <= width; i += LANES) vector_sum += exponentials(vector_at(z, first + b * WIDTH + i, half) - row_max);
      for (; i < width; i++) sum += exponential(number_at(z, first + b * WIDTH + i, half) - row_max);
    }
    log_total[row] = row_max + logf(sum + reduce_add(vector_sum));
    for (int i = 0; i < n_excluded; i++) {
      int64_t b = excluded[i] / WIDTH, width = MIN(n_col - b * WIDTH, WIDTH);
      load(buffer, z, first + b * WIDTH, width, half);
      for (int j = 0; j < n_excluded; j++)
        if (excluded[j] / WIDTH == b) buffer[excluded[j] % WIDTH] = -INFINITY;
      block_max[b] = max_of(buffer, 0, width, 0);
    }
    for (int i = 0; i < n; i++) {
      best_blocks[i] = best[row * n + i] = -INFINITY;
      column[row * n + i] = 0;
    }
    for (int64_t b = 0; b < n_block; b++) insert(best_blocks, unused, n, block_max[b], b);
    for (int64_t b = 0; b < n_block; b++) { /* a block whose maximum is below n others has none of the n best */
      if (!(block_max[b] >= best_blocks[n - 1])) continue;
      int64_t width = MIN(n_col - b * WIDTH, WIDTH);
      load(buffer, z, first + b * WIDTH, width, half);
      for (int j = 0; j < n_excluded; j++)
        if (excluded[j] / WIDTH == b) buffer[excluded[j] % WIDTH] = -INFINITY;
      for (int64_t i = 0; i < width; i++) insert(best + row * n, column + row * n, n, buffer[i], b * WIDTH + i);
    }
  }
}
