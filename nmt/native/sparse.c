/* Products of a left factor with many zeros, as are the states that a ReLU lets through and their gradients: what a zero
   would be multiplied by is not read. At first half of such numbers are zeros, and soon three of four.

   The numbers of a row that are not zero are bits of a word. Each is multiplied by a strip of its row of the right factor,
   as wide as registers hold sums; as many rows of a strip as a word has bits lie in the first cache. That reads a vector
   for each that is multiplied, where panels read two for three, so it pays from two fifths of zeros on.

   A sum stays what it is when zero times a number is added, and sums are made in the order of `panels.c`: both give the
   same numbers, to the bit. But zero times what is not finite, which is NaN, is not found. */

#include "products.h"

#ifdef HAS_PANELS
#include <immintrin.h>

#define DEEP 64                  /* numbers of a sum, as many as a word has bits, */
#define MOST 11                  /* vectors of columns, which are a strip, */
#define NEAR 128                 /* and rows that are multiplied at a time */
#define WIDTH (3 * MOST * LANES) /* columns that are laid out */
#define SEEN 32                  /* rows, or columns, that tell how many zeros there are */
#define FEWEST 64                /* rows, for which it pays to lay out the right factor, */
#define NEARLY 0.95              /* share of what is not zero in two of them where it is not worth it to look further, */
#define MANY 0.6                 /* share of what is not zero up to which it pays to leave out the rest */

typedef struct {
  float right[DEPTH * WIDTH], sums[NEAR * WIDTH], left[NEAR * DEEP];
  uint64_t there[NEAR]; /* which of a row are not zero */
} workroom;

/* -- layout ------------------------------------------------------------------------------------------------------- */

/* A strip of a right factor, n columns from `column` on: `depth` rows from `first` on, each filled up with zeros. */
static void lay_strip(float *to, factor b, int64_t column, int64_t n, int64_t first, int64_t depth) {
  const int64_t width = up(n);
  const float *at = b.at + (b.dense ? column * b.stride + first : first * b.stride + column);
  int64_t k = 0;
  for (; b.dense && k + 4 <= depth; k += 4) {
    for (int64_t c = 0; c + LANES <= n; c += LANES) turn_four(to + k * width + c, width, at + c * b.stride + k, b.stride);
    for (int64_t i = k; i < k + 4; i++)
      for (int64_t c = n / LANES * LANES; c < width; c++) to[i * width + c] = c < n ? at[c * b.stride + i] : 0.0f;
  }
  for (; k < depth; k++) {
    if (!b.dense) memcpy(to + k * width, at + k * b.stride, 4 * n);
    for (int64_t c = b.dense ? 0 : n; c < width; c++) to[k * width + c] = c < n ? at[c * b.stride + k] : 0.0f;
  }
}

/* n rows of a left factor, `depth` numbers from `first` on, and which of these are not zero. */
static void lay_rows(float *to, uint64_t *there, factor a, int64_t row, int64_t n, int64_t first, int64_t depth) {
  const float *at = a.at + (a.dense ? row * a.stride + first : first * a.stride + row);
  if (a.dense)
    for (int64_t r = 0; r < n; r++) memcpy(to + r * DEEP, at + r * a.stride, 4 * depth);
  else
    for (int64_t k = 0; k < depth; k += LANES)
      for (int64_t r = 0; r < n; r += 4) {
        if (k + LANES <= depth && r + 4 <= n)
          turn_four(to + r * DEEP + k, DEEP, at + k * a.stride + r, a.stride);
        else
          for (int64_t i = k; i < UP_TO(k + LANES, depth); i++)
            for (int64_t j = r; j < UP_TO(r + 4, n); j++) to[j * DEEP + i] = at[i * a.stride + j];
      }
  for (int64_t r = 0; r < n; r++, to += DEEP) {
    for (int64_t k = depth; k < DEEP; k++) to[k] = 0.0f;
    there[r] = 0;
    for (int64_t k = 0; k < DEEP; k += LANES) {
      const __m256 differs = _mm256_cmp_ps(_mm256_loadu_ps(to + k), _mm256_setzero_ps(), _CMP_NEQ_UQ); /* as NaN does */
      there[r] |= (uint64_t)_mm256_movemask_ps(differs) << k;
    }
  }
}

/* -- multiplication ----------------------------------------------------------------------------------------------- */

/* x · y + sum, rounded once. Of a strip of one vector, whose sums are one chain, GCC would make a product and a sum. */
ALWAYS vector fused(float x, vector y, vector sum) {
  return (vector)_mm256_fmadd_ps(_mm256_set1_ps(x), (__m256)y, (__m256)sum);
}

/* n rows times a strip of n_vector vectors, as sums (n, n_vector · LANES). plus: added to what is there. */
ALWAYS void multiply_strip(const int n_vector, float *sums, const float *a, const uint64_t *there, const float *strip,
                           int64_t n, int plus) {
  for (int64_t r = 0; r < n; r++, a += DEEP, sums += n_vector * LANES) {
    vector sum[MOST], *out = (vector *)sums;
    for (int v = 0; v < n_vector; v++) sum[v] = plus ? out[v] : (vector){0};
#pragma GCC unroll 1
    for (uint64_t left = there[r]; left; left &= left - 1) {
      const int k = __builtin_ctzll(left);
      const float x = a[k];
      const vector *right = (const vector *)(strip + k * n_vector * LANES);
#pragma GCC unroll 16
      for (int v = 0; v < n_vector; v++) sum[v] = fused(x, right[v], sum[v]);
    }
    for (int v = 0; v < n_vector; v++) out[v] = sum[v];
  }
}

static void multiply_by(int n_vector, float *sums, const float *a, const uint64_t *there, const float *strip, int64_t n,
                        int plus) {
#define VECTORS(n_vector)                                     \
  case n_vector:                                              \
    multiply_strip(n_vector, sums, a, there, strip, n, plus); \
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

/* The sums of n_row rows and n_col columns, whose rows are `width` long, to a row and a column of the result. */
static void put_sums(const target *to, const float *sums, int64_t width, int64_t row, int64_t n_row, int64_t column,
                     int64_t n_col, int plus, const float *bias, int relu) {
  for (int64_t r = 0; r < n_row; r++, sums += width) {
    float *out = to->out + (row + r) * to->n_col + column;
    for (int64_t c = 0; c < n_col; c += LANES) {
      const int64_t n = UP_TO(n_col - c, LANES);
      vector x = *(const vector *)(sums + c), part = {0};
      if (plus) x += n == LANES ? *(const vector *)(out + c) : *(vector *)memcpy(&part, out + c, 4 * n);
      if (bias) x += n == LANES ? *(const vector *)(bias + column + c) : *(vector *)memcpy(&part, bias + column + c, 4 * n);
      if (relu) x = (vector)((integers)x & ~(x < 0.0f));
      if (n == LANES)
        *(vector *)(out + c) = x;
      else
        memcpy(out + c, &x, 4 * n);
    }
  }
}

void multiply_sparse(const target *to, factor a, factor b, int64_t n_sum, int64_t row, int64_t end_row, int64_t column,
                     int64_t end_column, char *room) {
  workroom *mine = (workroom *)room;
  for (int64_t k = 0; k < n_sum; k += DEPTH)
    for (int64_t c = column; c < end_column; c += WIDTH) {
      const int64_t depth = UP_TO(n_sum - k, DEPTH), width = UP_TO(end_column - c, WIDTH);
      const int64_t n_vector = PARTS(width, LANES), n_strip = PARTS(n_vector, MOST);
      const int plus = k > 0 || to->add, last = k + depth == n_sum;
#define FIRST(s) (n_vector * (s) / n_strip * LANES) /* column of a strip; all are nearly as wide */
#define RIGHT(d, s) (mine->right + (d) * n_vector * LANES + FIRST(s) * DEEP)
      for (int64_t d = 0; d < depth; d += DEEP)
        for (int64_t s = 0; s < n_strip; s++)
          lay_strip(RIGHT(d, s), b, c + FIRST(s), UP_TO(FIRST(s + 1), width) - FIRST(s), k + d, UP_TO(depth - d, DEEP));
      for (int64_t r = row; r < end_row; r += NEAR) {
        const int64_t n = UP_TO(end_row - r, NEAR);
        for (int64_t d = 0; d < depth; d += DEEP) {
          lay_rows(mine->left, mine->there, a, r, n, k + d, UP_TO(depth - d, DEEP));
          for (int64_t s = 0; s < n_strip; s++)
            multiply_by((FIRST(s + 1) - FIRST(s)) / LANES, mine->sums + FIRST(s) * NEAR, mine->left, mine->there,
                        RIGHT(d, s), n, d > 0);
        }
        for (int64_t s = 0; s < n_strip; s++)
          put_sums(to, mine->sums + FIRST(s) * NEAR, FIRST(s + 1) - FIRST(s), r, n, c + FIRST(s),
                   UP_TO(FIRST(s + 1), width) - FIRST(s), plus, last ? to->bias : NULL, last && to->relu);
      }
    }
}

int room_of_sparse(void) { return sizeof(workroom); }

double share_there(factor a, int64_t n_row, int64_t n_sum) {
  const int64_t n_line = a.dense ? n_row : n_sum, length = a.dense ? n_sum : n_row, n_seen = UP_TO(n_line, SEEN);
  int64_t n_there = 0;
  for (int64_t i = 0; i < n_seen; i++) {
    const float *line = a.at + n_line * i / n_seen * a.stride;
    for (int64_t j = 0; j < length; j++) n_there += line[j] != 0.0f;
  }
  return (double)n_there / (n_seen * length);
}

int is_sparse(factor a, int64_t n_row, int64_t n_sum) {
  if (n_row < FEWEST) return 0;
  if (a.dense && share_there(a, 2, n_sum) > NEARLY) return 0; /* most factors have no zeros, which two rows tell */
  return share_there(a, n_row, n_sum) < MANY;
}
#endif
