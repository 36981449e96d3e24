/* Matrix products of fp32: one product divided among threads, or many products. */

#include "products.h"

#ifdef HAS_PANELS
/* Scratch bytes of a thread. */
int room_of_thread(void) { return scratch_of_sparse() > scratch_of_part() ? scratch_of_sparse() : scratch_of_part(); }

/* out (n_row, n_col) = a (n_row, n_sum) · b (n_sum, n_col) + bias, or out + a · b if add; then ReLU if relu, which propagates
   NaN. a_dense, b_dense: contiguous along the inner dimension, with a_stride, b_stride along the other; else vice versa.
   packed: b in packed layout, or NULL. bias may be NULL. may_have_zeros: a may have many zeros. scratch: room_of_thread bytes
   for each thread, 64-byte aligned. */
void multiply(float *out, int add, const float *a, int64_t a_stride, int a_dense, const float *b, int64_t b_stride,
              int b_dense, const char *packed, const float *bias, int relu, int may_have_zeros, int64_t n_row, int64_t n_col,
              int64_t n_sum, char *scratch, int n_thread) {
  const output to = {out, bias, n_row, n_col, add, relu};
  const factor left = {a, a_stride, a_dense}, right = {b, b_stride, b_dense};
  const int sparse = may_have_zeros && is_sparse(left, n_row, n_sum);
#pragma omp parallel num_threads(n_thread)
  {
    /* Divide the larger side, so that little is packed more than once. */
    const int by_rows = n_row > n_col, unit = by_rows ? rows_per_unit : columns_per_unit;
    const int64_t size = by_rows ? n_row : n_col, n_unit = CEIL_DIV(size, unit);
    const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
    const int64_t begin = n_unit * thread / team * unit, end = MIN(n_unit * (thread + 1) / team * unit, size);
    const int64_t row = by_rows ? begin : 0, end_row = by_rows ? end : n_row;
    const int64_t column = by_rows ? 0 : begin, end_column = by_rows ? n_col : end;
    char *own_scratch = scratch + thread * room_of_thread();
    if (sparse)
      multiply_sparse(&to, left, right, n_sum, row, end_row, column, end_column, own_scratch);
    else
      multiply_part(&to, left, right, packed, n_sum, row, end_row, column, end_column, own_scratch);
  }
}

#define PART_UNITS 4 /* column units in one piece of work where there are many products */

/* Copy the blocks above the diagonal of x (n, n) to below it. width: of a block. */
static void mirror(float *x, int64_t n, int64_t width) {
  for (int64_t block = width; block < n; block += width)
    transpose(x + block * n, n, x + block, n, block, MIN(width, n - block));
}

/* out (n_matrix, n_row, n_col) = a (n_matrix, n_row, n_sum) · b, for each matrix; b: (n_matrix, n_sum, n_col), or (n_matrix,
   n_col, n_sum) if b_dense. symmetric: only the part above the diagonal is computed. scratch: as above. */
void multiply_each(float *out, const float *a, const float *b, int b_dense, int symmetric, int64_t n_matrix, int64_t n_row,
                   int64_t n_col, int64_t n_sum, char *scratch, int n_thread) {
  const int64_t width = PART_UNITS * columns_per_unit, n_part = CEIL_DIV(n_col, width);
#pragma omp parallel num_threads(n_thread)
  {
    char *own_scratch = scratch + omp_get_thread_num() * room_of_thread();
#pragma omp for schedule(dynamic)
    for (int64_t part = n_matrix * n_part - 1; part >= 0; part--) { /* longest columns of symmetric results first */
      const int64_t matrix = part / n_part, column = part % n_part * width, end = MIN(column + width, n_col);
      const output to = {out + matrix * n_row * n_col, NULL, n_row, n_col, 0, 0};
      const factor left = {a + matrix * n_row * n_sum, n_sum, 1};
      const factor right = {b + matrix * n_sum * n_col, b_dense ? n_sum : n_col, b_dense};
      multiply_part(&to, left, right, NULL, n_sum, 0, symmetric ? end : n_row, column, end, own_scratch);
    }
#pragma omp for schedule(static)
    for (int64_t matrix = 0; matrix < (symmetric ? n_matrix : 0); matrix++) mirror(out + matrix * n_row * n_col, n_col, width);
  }
}
#endif

/* 1 if the processor has instructions for bf16 products. */
int multiplies_half(void) {
#if defined __AVX512BF16__ || defined __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
  return 1;
#else
  return 0;
#endif
}
