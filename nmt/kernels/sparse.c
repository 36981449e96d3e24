/* Products of a left factor with many zeros, such as outputs of a ReLU and their gradients: rows of the right factor that
   would be multiplied by zero are not read. In training half of these numbers are zeros at first, and soon three of four.

   Nonzero numbers of a row are bits of a word. Each one is multiplied by a strip of its row of the right factor, which is as
   wide as the accumulators that fit into registers. The rows of a strip for all bits of a word fit into the L1 cache. This
   loads one vector for each product of vectors, where panels load two for three, so it pays from a quarter of zeros on.

   Adding zero times a finite number does not change a sum, and the order of sums is that of `panels.c`, so both give the same
   result to the bit. But zero times a number that is not finite, which is NaN, is missed. */

#include "products.h"

#ifdef HAS_PANELS
#define CHUNK 64                        /* numbers along the inner dimension: the bits of a word */
#define MAX_VECTORS 11                  /* vectors of columns in a strip, at most */
#define MAX_DENSITY 0.75                /* share of nonzero numbers up to which skipping zeros pays */
#define BLOCK_ROWS 128                  /* rows, a multiple of CHUNK, that are multiplied at a time */
#define WIDTH (3 * MAX_VECTORS * LANES) /* columns that are packed at a time */
#define AHEAD 12                        /* rows that are prefetched ahead: they are far apart */
#define N_SAMPLE 32                     /* rows, or columns, that are sampled for zeros */
#define MIN_ROWS 64                     /* rows for which packing the right factor pays */
#define DENSE 0.95                      /* share of nonzero numbers in two rows above which no more rows are sampled */

typedef struct {
  float right[DEPTH * WIDTH], sums[BLOCK_ROWS * WIDTH], left[BLOCK_ROWS * CHUNK];
  uint64_t nonzero[BLOCK_ROWS]; /* bit mask of each row */
} buffers;

/* -- layout ------------------------------------------------------------------------------------------------------- */

/* Pack a strip of a right factor: columns column .. column + n, `depth` rows from `first` on, each padded with zeros. */
static void pack_strip(float *to, factor b, int64_t column, int64_t n, int64_t first, int64_t depth) {
  const int64_t width = padded(n);
  const float *source = b.data + (b.dense ? column * b.stride + first : first * b.stride + column);
  if (b.dense) transpose(to, width, source, b.stride, n, depth);
  for (int64_t k = 0; k < depth; k++) {
    if (!b.dense) {
      prefetch(source, (k + AHEAD) * b.stride, n, 0, 0);
      memcpy(to + k * width, source + k * b.stride, 4 * n);
    }
    for (int64_t c = n; c < width; c++) to[k * width + c] = 0.0f;
  }
}

/* Copy CHUNK numbers of a row. Returns the bit mask of those that are not zero (NaN counts as not zero). */
INLINE uint64_t pack_row(float *to, const float *row) {
  uint64_t nonzero = 0;
#pragma GCC unroll 8
  for (int k = 0; k < CHUNK; k += LANES) {
    const vector x = *(const vector *)(row + k);
    *(vector *)(to + k) = x;
    nonzero |= nonzero_bits(x) << k;
  }
  return nonzero;
}

/* Pack the first n rows of a left factor, `depth` numbers of each, and their bit masks. */
static void pack_rows(float *to, uint64_t *nonzero, factor a, int64_t n, int64_t depth) {
  const float *source = a.data;
  if (a.dense)
    for (int64_t r = 0; r < n; r++) memcpy(to + r * CHUNK, source + r * a.stride, 4 * depth);
  else
    transpose(to, CHUNK, source, a.stride, depth, n);
  for (int64_t r = 0; r < n; r++, to += CHUNK) {
    for (int64_t k = depth; k < CHUNK; k++) to[k] = 0.0f;
    nonzero[r] = pack_row(to, to);
  }
}

/* -- multiplication ----------------------------------------------------------------------------------------------- */

/* x · y + sum, rounded once. In a strip of one vector, whose sums are one chain, GCC would use two instructions. */
INLINE vector multiply_add(float x, vector y, vector sum) {
  return (vector)_mm256_fmadd_ps(_mm256_set1_ps(x), (__m256)y, (__m256)sum);
}

/* Destination of the complete sums of a strip, n_col columns of each row. */
typedef struct {
  float *out;
  const float *bias; /* may be NULL */
  int64_t n_col, stride;
  int add, relu;
} dest;

#define EACH(statement) for (int v = 0; v < n_vector; v++) statement /* for each vector of a strip */

/* Write the sums of a row of a strip whose n_vector vectors are all inside the result. */
INLINE void store_row(const int n_vector, const dest *to, int64_t row, vector *acc) {
  vector *out = (vector *)(to->out + row * to->stride);
  if (to->add) EACH(acc[v] += out[v];)
  if (to->bias) EACH(acc[v] += ((const vector *)to->bias)[v];)
  if (to->relu) EACH(acc[v] = (vector)((integers)acc[v] & ~(acc[v] < 0.0f));)
  EACH(out[v] = acc[v];)
}

/* The same for a strip that is partly outside. */
static void store_partial_row(const dest *to, int64_t row, const float *sums) {
  float *out = to->out + row * to->stride;
  for (int64_t c = 0; c < to->n_col; c++) {
    float x = to->add ? sums[c] + out[c] : sums[c];
    if (to->bias) x += to->bias[c];
    out[c] = to->relu && x < 0.0f ? 0.0f : x;
  }
}

/* Multiply n packed rows by a strip of n_vector vectors, adding to sums (n, n_vector · LANES) if add. to: destination, or
   NULL while sums are incomplete. next_rows: rows of a left factor, or NULL. If dense along the inner dimension, they are
   these rows, each packed just before its turn; else they are the next rows, which are prefetched. */
INLINE void multiply_strip(const int n_vector, float *sums, float *a, uint64_t *nonzero, const float *strip, int64_t n,
                           int add, const dest *to, const factor *next_rows) {
  for (int64_t r = 0; r < n; r++, a += CHUNK, sums += n_vector * LANES) {
    if (to) prefetch(to->out, (r + AHEAD) * to->stride, n_vector * LANES, 0, 1);
    if (next_rows && next_rows->dense) {
      prefetch(next_rows->data, (r + AHEAD) * next_rows->stride, CHUNK, 0, 0);
      nonzero[r] = pack_row(a, next_rows->data + r * next_rows->stride);
    } else if (next_rows)
      prefetch(next_rows->data, r / (BLOCK_ROWS / CHUNK) * next_rows->stride + r % (BLOCK_ROWS / CHUNK) * CHUNK, CHUNK, 0, 0);
    vector acc[MAX_VECTORS];
    EACH(acc[v] = add ? ((const vector *)sums)[v] : (vector){0};)
#pragma GCC unroll 1
    for (uint64_t bits = nonzero[r]; bits; bits &= bits - 1) {
      const int k = __builtin_ctzll(bits);
      const float x = a[k];
      const vector *right = (const vector *)(strip + k * n_vector * LANES);
#pragma GCC unroll 16
      for (int v = 0; v < n_vector; v++) acc[v] = multiply_add(x, right[v], acc[v]);
    }
    if (to && to->n_col == n_vector * LANES) {
      store_row(n_vector, to, r, acc);
      continue;
    }
    EACH(((vector *)sums)[v] = acc[v];)
    if (to) store_partial_row(to, r, sums);
  }
}

static void multiply_any_strip(int n_vector, float *sums, float *a, uint64_t *nonzero, const float *strip, int64_t n, int add,
                               const dest *to, const factor *next_rows) {
#define VECTORS(n_vector)                                                     \
  case n_vector:                                                              \
    multiply_strip(n_vector, sums, a, nonzero, strip, n, add, to, next_rows); \
    break;
  switch (n_vector) {
    VECTORS(1)
    VECTORS(2)
    VECTORS(3)
    VECTORS(4)
    VECTORS(5)
    VECTORS(6)
    VECTORS(7)
    VECTORS(8)
    VECTORS(9)
    VECTORS(10)
    VECTORS(11)
  }
}

void multiply_sparse(const output *to, factor a, factor b, int64_t n_sum, int64_t row, int64_t end_row, int64_t column,
                     int64_t end_column, char *scratch) {
  buffers *buffer = (buffers *)scratch;
  const int64_t row_stride = a.dense ? a.stride : 1, k_stride = a.dense ? 1 : a.stride;
  for (int64_t k = 0; k < n_sum; k += DEPTH)
    for (int64_t c = column; c < end_column; c += WIDTH) {
      const int64_t depth = MIN(n_sum - k, DEPTH), width = MIN(end_column - c, WIDTH);
      const int64_t n_vector = CEIL_DIV(width, LANES), n_strip = CEIL_DIV(n_vector, MAX_VECTORS);
      const int add = k > 0 || to->add, last = k + depth == n_sum, relu = last && to->relu;
      const float *bias = last ? to->bias : NULL;
#define START(s) (n_vector * (s) / n_strip * LANES) /* first column of a strip; all strips have nearly the same width */
#define STRIP(d, s) (buffer->right + (d) * n_vector * LANES + START(s) * CHUNK)
      for (int64_t d = 0; d < depth; d += CHUNK)
        for (int64_t s = 0; s < n_strip; s++)
          pack_strip(STRIP(d, s), b, c + START(s), MIN(START(s + 1), width) - START(s), k + d, MIN(depth - d, CHUNK));
      for (int64_t r = row; r < end_row; r += BLOCK_ROWS)
        for (int64_t d = 0; d < depth; d += CHUNK) {
          const int64_t n = MIN(end_row - r, BLOCK_ROWS), n_k = MIN(depth - d, CHUNK);
          const int pack_in_loop = a.dense && n_k == CHUNK, complete = d + CHUNK >= depth;
          factor rows = {a.data + r * row_stride + (k + d) * k_stride, a.stride, a.dense};
          if (!pack_in_loop) pack_rows(buffer->left, buffer->nonzero, rows, n, n_k);
          if (!a.dense) rows.data += CHUNK * k_stride; /* the next rows */
          for (int64_t s = 0; s < n_strip; s++) {
            const int64_t first = c + START(s), end = c + MIN(START(s + 1), width);
            const dest out = {to->out + r * to->n_col + first, bias ? bias + first : NULL, end - first, to->n_col, add, relu};
            multiply_any_strip((START(s + 1) - START(s)) / LANES, buffer->sums + START(s) * BLOCK_ROWS, buffer->left,
                               buffer->nonzero, STRIP(d, s), n, d > 0, complete ? &out : NULL,
                               s == 0 && (pack_in_loop || (!a.dense && !complete)) ? &rows : NULL);
          }
        }
    }
}

int scratch_of_sparse(void) { return sizeof(buffers); }

/* Share of nonzero numbers in a left factor, from a sample of its rows or columns. */
static double density(factor a, int64_t n_row, int64_t n_sum) {
  const int64_t n_line = a.dense ? n_row : n_sum, length = a.dense ? n_sum : n_row, n_sample = MIN(n_line, N_SAMPLE);
  int64_t n_nonzero = 0;
  for (int64_t i = 0; i < n_sample; i++) {
    const float *line = a.data + n_line * i / n_sample * a.stride;
    for (int64_t j = 0; j < length; j++) n_nonzero += line[j] != 0.0f;
  }
  return (double)n_nonzero / (n_sample * length);
}

int is_sparse(factor a, int64_t n_row, int64_t n_sum) {
  if (n_row < MIN_ROWS) return 0;
  if (a.dense && density(a, 2, n_sum) > DENSE) return 0; /* most factors have no zeros, and two rows show it */
  return density(a, n_row, n_sum) < MAX_DENSITY;
}
#endif
