/* The best columns of rows of logits, and the sum of all, as a search needs them: two looks at each row, nothing written. */

#include "numbers.h"

#define WIDTH 64 /* columns whose largest is noted in the first look, so that the second need not compare all */

/* Put a value among the n best, best first, unless it is no better than the last. */
static void insert(float *best, int64_t *column, int n, float value, int64_t at) {
  int i = n - 1;
  if (!(value > best[i])) return;
  for (; i && value > best[i - 1]; i--) {
    best[i] = best[i - 1];
    column[i] = column[i - 1];
  }
  best[i] = value;
  column[i] = at;
}

static float largest_of(const void *x, int64_t first, int64_t n, int half) {
  int64_t i = 0;
  float top = -INFINITY;
  if (n >= LANES) {
    vector found = vector_at(x, first, half);
    for (i = LANES; i + LANES <= n; i += LANES) {
      vector here = vector_at(x, first + i, half);
      integers above = here > found;
      found = (vector)(((integers)here & above) | ((integers)found & ~above));
    }
    top = largest(found);
  }
  for (; i < n; i++) top = number_at(x, first + i, half) > top ? number_at(x, first + i, half) : top;
  return top;
}

/* Of each row of z (n_row, n_col) the n best columns but for n_never that are not to be had, best first and of equal ones
   the first, and the logarithm of the sum of the exponentials of all. What cannot be found is -inf, in column 0. */
void choose(const void *z, int half, int64_t n_row, int64_t n_col, const int64_t *never, int n_never, int n, float *best,
            int64_t *column, float *log_total, int n_thread) {
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t row = 0; row < n_row; row++) {
    const int64_t start = row * n_col, n_block = (n_col + WIDTH - 1) / WIDTH;
    float top[n_block], most = -INFINITY, sum = 0.0f, part[WIDTH], bound[n];
    int64_t unused[n];
    for (int64_t b = 0; b < n_block; b++) {
      top[b] = largest_of(z, start + b * WIDTH, n_col - b * WIDTH < WIDTH ? n_col - b * WIDTH : WIDTH, half);
      most = top[b] > most ? top[b] : most;
    }
    vector total = {0};
    for (int64_t b = 0; b < n_block; b++) {
      int64_t width = n_col - b * WIDTH < WIDTH ? n_col - b * WIDTH : WIDTH, i = 0;
      for (; i + LANES <= width; i += LANES) total += exponentials(vector_at(z, start + b * WIDTH + i, half) - most);
      for (; i < width; i++) sum += exponential(number_at(z, start + b * WIDTH + i, half) - most);
    }
    log_total[row] = most + logf(sum + total_of(total));
    for (int i = 0; i < n_never; i++) {
      int64_t b = never[i] / WIDTH, width = n_col - b * WIDTH < WIDTH ? n_col - b * WIDTH : WIDTH;
      load(part, z, start + b * WIDTH, width, half);
      for (int j = 0; j < n_never; j++)
        if (never[j] / WIDTH == b) part[never[j] % WIDTH] = -INFINITY;
      top[b] = largest_of(part, 0, width, 0);
    }
    for (int i = 0; i < n; i++) {
      bound[i] = best[row * n + i] = -INFINITY;
      column[row * n + i] = 0;
    }
    for (int64_t b = 0; b < n_block; b++) insert(bound, unused, n, top[b], b);
    for (int64_t b = 0; b < n_block; b++) { /* of the n best none lies in a block that is below n others */
      if (!(top[b] >= bound[n - 1])) continue;
      int64_t width = n_col - b * WIDTH < WIDTH ? n_col - b * WIDTH : WIDTH;
      load(part, z, start + b * WIDTH, width, half);
      for (int j = 0; j < n_never; j++)
        if (never[j] / WIDTH == b) part[never[j] % WIDTH] = -INFINITY;
      for (int64_t i = 0; i < width; i++) insert(best + row * n, column + row * n, n, part[i], b * WIDTH + i);
    }
  }
}
