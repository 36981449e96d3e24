/* Matrix products of fp32, divided among threads by `products.c`, computed by `panels.c` or `sparse.c`. */

#pragma once

#include "numbers.h"

/* A factor, (n, n_sum): `dense` along the inner dimension n_sum, with rows `stride` numbers apart, or vice versa. */
typedef struct {
  const float *data;
  int64_t stride;
  int dense;
} factor;

/* The result of a product, and what is fused with it. */
typedef struct {
  float *out;
  const float *bias; /* may be NULL */
  int64_t n_row, n_col;
  int add, relu;
} output;

/* For processors with AVX2 but not AVX-512: panels are designed for 16 registers of 8 numbers. */
#if defined __AVX2__ && defined __FMA__ && !defined __AVX512F__
#define HAS_PANELS
#include <immintrin.h>

#define DEPTH 256 /* numbers along the inner dimension that are added in order; longer sums are added up in such parts */

/* Bit mask of the numbers that are not zero (NaN counts as not zero). */
INLINE uint64_t nonzero_bits(vector x) {
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, _mm256_setzero_ps(), _CMP_NEQ_UQ));
}
#endif

/* Rows and columns that are multiplied at a time: a thread gets multiples of them. */
extern const int rows_per_unit, columns_per_unit;

/* Compute rows row .. end_row and columns column .. end_column of the result. No sum may depend on the range. packed: b in
   packed layout, or NULL. scratch: scratch_of_part bytes. */
void multiply_part(const output *to, factor a, factor b, const char *packed, int64_t n_sum, int64_t row, int64_t end_row,
                   int64_t column, int64_t end_column, char *scratch);

/* Bytes of scratch memory that `multiply_part` needs. */
int scratch_of_part(void);

/* The same for a left factor with many zeros, with the same result; is_sparse estimates from a sample if it has many. */
void multiply_sparse(const output *to, factor a, factor b, int64_t n_sum, int64_t row, int64_t end_row, int64_t column,
                     int64_t end_column, char *scratch);
int is_sparse(factor a, int64_t n_row, int64_t n_sum);
int scratch_of_sparse(void);

/* Size in bytes of a packed right factor, (n_sum, n_col), and packing it to a 64-byte aligned address. */
int64_t size_laid_out(int64_t n_col, int64_t n_sum);
void lay_out(char *to, const float *b, int64_t stride, int dense, int64_t n_col, int64_t n_sum);
