/* Matrix products of fp32, one that threads share or many that they divide among themselves. */

#include "products.h"

#ifdef HAS_PANELS
/* Bytes that a thread needs. */
int room_of_thread(void) { return room_of_sparse() > room_of_part() ? room_of_sparse() : room_of_part(); }

/* out (n_row, n_col) = a (n_row, n_sum) · b (n_sum, n_col), or that is added to it. Numbers of a sum are dense, or they are
   `stride` numbers apart; then those of all sums are side by side. laid: b, laid out as a whole, or absent. bias may be
   absent; it is added, and the ReLU taken if wanted, which lets NaN through. zeros: a may have many.
   room: room_of_thread bytes for each thread, from a multiple of 64 on. */
void multiply(float *out, int add, const float *a, int64_t a_stride, int a_dense, const float *b, int64_t b_stride,
              int b_dense, const char *laid, const float *bias, int relu, int zeros, int64_t n_row, int64_t n_col,
              int64_t n_sum, char *room, int n_thread) {
  const target to = {out, bias, n_row, n_col, add, relu};
  const factor left = {a, a_stride, a_dense}, right = {b, b_stride, b_dense};
  const int sparse = zeros && is_sparse(left, n_row, n_sum);
#pragma omp parallel num_threads(n_thread)
  {
    /* The larger side is parted, so that little is laid out more than once. */
    const int by_rows = n_row > n_col, unit = by_rows ? unit_of_rows : unit_of_columns;
    const int64_t size = by_rows ? n_row : n_col, n_unit = PARTS(size, unit);
    const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
    const int64_t from = n_unit * me / all * unit, end = UP_TO(n_unit * (me + 1) / all * unit, size);
    const int64_t row = by_rows ? from : 0, end_row = by_rows ? end : n_row;
    const int64_t column = by_rows ? 0 : from, end_column = by_rows ? n_col : end;
    char *mine = room + me * room_of_thread();
    if (sparse)
      multiply_sparse(&to, left, right, n_sum, row, end_row, column, end_column, mine);
    else
      multiply_part(&to, left, right, laid, n_sum, row, end_row, column, end_column, mine);
  }
}

#define APART 4 /* units of columns that are one piece of work where there are many products */

/* What is above the diagonal of x (n, n), a block of `width` to the right of it on, goes below it. */
static void mirror(float *x, int64_t n, int64_t width) {
  for (int64_t block = width; block < n; block += width)
    for (int64_t c = 0; c < block; c += LANES) {
      const int64_t end = UP_TO(block + width, n);
      int64_t r = block;
      for (; r + 4 <= end; r += 4) turn_four(x + r * n + c, n, x + c * n + r, n);
      for (; r < end; r++)
        for (int64_t i = c; i < c + LANES; i++) x[r * n + i] = x[i * n + r];
    }
}

/* out (n_matrix, n_row, n_col) = a (n_matrix, n_row, n_sum) · b, one by one; b: (n_matrix, n_sum, n_col), or b_dense, then
   (n_matrix, n_col, n_sum). symmetric: what is made is known to be, so only what lies above the diagonal is multiplied.
   room: as above. */
void multiply_each(float *out, const float *a, const float *b, int b_dense, int symmetric, int64_t n_matrix, int64_t n_row,
                   int64_t n_col, int64_t n_sum, char *room, int n_thread) {
  const int64_t width = APART * unit_of_columns, n_part = PARTS(n_col, width);
#pragma omp parallel num_threads(n_thread)
  {
    char *mine = room + omp_get_thread_num() * room_of_thread();
#pragma omp for schedule(dynamic)
    for (int64_t part = n_matrix * n_part - 1; part >= 0; part--) { /* of a symmetric one the longest columns first */
      const int64_t matrix = part / n_part, column = part % n_part * width, end = UP_TO(column + width, n_col);
      const target to = {out + matrix * n_row * n_col, NULL, n_row, n_col, 0, 0};
      const factor left = {a + matrix * n_row * n_sum, n_sum, 1};
      const factor right = {b + matrix * n_sum * n_col, b_dense ? n_sum : n_col, b_dense};
      multiply_part(&to, left, right, NULL, n_sum, 0, symmetric ? end : n_row, column, end, mine);
    }
#pragma omp for schedule(static)
    for (int64_t matrix = 0; matrix < (symmetric ? n_matrix : 0); matrix++) mirror(out + matrix * n_row * n_col, n_col, width);
  }
}
#endif

/* Whether the processor has instructions for products of bf16. */
int multiplies_half(void) {
#if defined __AVX512BF16__ || defined __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
  return 1;
#else
  return 0;
#endif
}
