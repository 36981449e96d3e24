/* Matrix products of fp32: what `products.c` shares out among threads, and `panels.c` or `sparse.c` multiply. */

#pragma once

#include "numbers.h"

/* (n, depth) numbers, of which those of a sum are `dense`, one behind the other, or `stride` numbers apart. */
typedef struct {
  const float *at;
  int64_t stride;
  int dense;
} factor;

/* Where a product goes, and what is done with it there. */
typedef struct {
  float *out;
  const float *bias; /* may be absent */
  int64_t n_row, n_col;
  int add, relu;
} target;

/* Where the processor has AVX2 and no more: panels are made for its 16 registers of 8 numbers. */
#if defined __AVX2__ && defined __FMA__ && !defined __AVX512F__
#define HAS_PANELS
#include <immintrin.h>

#define DEPTH 256 /* numbers of a sum, added one to the other; of a longer one such parts are added up */

/* Which numbers are not zero, as NaN is not: bits. */
ALWAYS uint64_t not_zero(vector x) {
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, _mm256_setzero_ps(), _CMP_NEQ_UQ));
}
#endif

/* Rows, and columns, that are multiplied at a time, and so are one thread's. */
extern const int unit_of_rows, unit_of_columns;

/* Rows row .. end_row and columns column .. end_column of the result, no sum of which may depend on what else is asked for.
   laid: b, if that is laid out. room: room_of_part bytes. */
void multiply_part(const target *to, factor a, factor b, const char *laid, int64_t n_sum, int64_t row, int64_t end_row,
                   int64_t column, int64_t end_column, char *room);

/* Bytes that `multiply_part` needs. */
int room_of_part(void);

/* The same, and the same numbers, of a left factor that has many zeros; whether one has, by some of its rows or columns. */
void multiply_sparse(const target *to, factor a, factor b, int64_t n_sum, int64_t row, int64_t end_row, int64_t column,
                     int64_t end_column, char *room);
int is_sparse(factor a, int64_t n_row, int64_t n_sum);
int room_of_sparse(void);

/* Bytes of a right factor, (n_sum, n_col), that is laid out as a whole; and laying it out, from a multiple of 64 on. */
int64_t size_laid_out(int64_t n_col, int64_t n_sum);
void lay_out(char *to, const float *b, int64_t stride, int dense, int64_t n_col, int64_t n_sum);
