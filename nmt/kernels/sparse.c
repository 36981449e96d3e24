/* Products of a left factor with many zeros, as are the states that a ReLU lets through and their gradients: what a zero
   would be multiplied by is not read. At first half of such numbers are zeros, and soon three of four.

   The numbers of a row that are not zero are bits of a word. Each is multiplied by a strip of its row of the right factor,
   as wide as registers hold sums; as many rows of a strip as a word has bits lie in the first cache. That reads a vector
   for each that is multiplied, where panels read two for three, so it pays from a quarter of zeros on.

   A sum stays what it is when zero times a number is added, and sums are made in the order of `panels.c`: both give the
   same numbers, to the bit. But zero times what is not finite, which is NaN, is not found. */

#include "products.h"

#ifdef HAS_PANELS
#define DEEP 64                  /* numbers of a sum, as many as a word has bits, */
#define MOST 11                  /* vectors of columns, which are a strip, */
#define MANY 0.75                /* share of what is not zero up to which it pays to leave out the rest */
#define NEAR 128                 /* and rows, a multiple of DEEP, that are multiplied at a time */
#define WIDTH (3 * MOST * LANES) /* columns that are laid out */
#define AHEAD 12                 /* rows that are fetched before their turn: each is far from the one before */
#define SEEN 32                  /* rows, or columns, that tell how many zeros there are */
#define FEWEST 64                /* rows, for which it pays to lay out the right factor, */
#define NEARLY 0.95              /* share of what is not zero in two of them where it is not worth it to look further, */

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
    if (!b.dense) {
      prefetch(at, (k + AHEAD) * b.stride, n, 0, 0);
      memcpy(to + k * width, at + k * b.stride, 4 * n);
    }
    for (int64_t c = b.dense ? 0 : n; c < width; c++) to[k * width + c] = c < n ? at[c * b.stride + k] : 0.0f;
  }
}

/* DEEP numbers of a row are copied; which of them are not zero, as NaN is not. */
ALWAYS uint64_t lay_row(float *to, const float *row) {
  uint64_t there = 0;
#pragma GCC unroll 8
  for (int k = 0; k < DEEP; k += LANES) {
    const vector x = *(const vector *)(row + k);
    *(vector *)(to + k) = x;
    there |= not_zero(x) << k;
  }
  return there;
}

/* n rows of a left factor that begins with them, `depth` numbers of each, and which of these are not zero. */
static void lay_rows(float *to, uint64_t *there, factor a, int64_t n, int64_t depth) {
  const float *at = a.at;
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
    there[r] = lay_row(to, to);
  }
}

/* -- multiplication ----------------------------------------------------------------------------------------------- */

/* x · y + sum, rounded once. Of a strip of one vector, whose sums are one chain, GCC would make a product and a sum. */
ALWAYS vector fused(float x, vector y, vector sum) {
  return (vector)_mm256_fmadd_ps(_mm256_set1_ps(x), (__m256)y, (__m256)sum);
}

/* Where the sums of a strip go, n_col columns of each row, once they are complete. */
typedef struct {
  float *out;
  const float *bias; /* may be absent */
  int64_t n_col, stride;
  int add, relu;
} goal;

#define EACH(number) for (int v = 0; v < n_vector; v++) number /* what is done with each vector of a strip */

/* The sums of a row of a strip of n_vector vectors, all of which are columns of the result. */
ALWAYS void put(const int n_vector, const goal *to, int64_t row, vector *sum) {
  vector *out = (vector *)(to->out + row * to->stride);
  if (to->add) EACH(sum[v] += out[v];)
  if (to->bias) EACH(sum[v] += ((const vector *)to->bias)[v];)
  if (to->relu) EACH(sum[v] = (vector)((integers)sum[v] & ~(sum[v] < 0.0f));)
  EACH(out[v] = sum[v];)
}

/* The same where not all are. */
static void put_some(const goal *to, int64_t row, const float *sums) {
  float *out = to->out + row * to->stride;
  for (int64_t c = 0; c < to->n_col; c++) {
    float x = to->add ? sums[c] + out[c] : sums[c];
    if (to->bias) x += to->bias[c];
    out[c] = to->relu && x < 0.0f ? 0.0f : x;
  }
}

/* n rows, which are laid out, times a strip of n_vector vectors, added to sums (n, n_vector · LANES) if wanted. to: where
   they go; absent where they are not complete. coming: rows of a left factor, or absent: these, if the numbers of a sum are
   dense in it, which are laid out each in its turn, while others are multiplied; else the next, which are fetched by then. */
ALWAYS void multiply_strip(const int n_vector, float *sums, float *a, uint64_t *there, const float *strip, int64_t n,
                           int add, const goal *to, const factor *coming) {
  for (int64_t r = 0; r < n; r++, a += DEEP, sums += n_vector * LANES) {
    if (to) prefetch(to->out, (r + AHEAD) * to->stride, n_vector * LANES, 0, 1);
    if (coming && coming->dense) {
      prefetch(coming->at, (r + AHEAD) * coming->stride, DEEP, 0, 0);
      there[r] = lay_row(a, coming->at + r * coming->stride);
    } else if (coming)
      prefetch(coming->at, r / (NEAR / DEEP) * coming->stride + r % (NEAR / DEEP) * DEEP, DEEP, 0, 0);
    vector sum[MOST];
    EACH(sum[v] = add ? ((const vector *)sums)[v] : (vector){0};)
#pragma GCC unroll 1
    for (uint64_t left = there[r]; left; left &= left - 1) {
      const int k = __builtin_ctzll(left);
      const float x = a[k];
      const vector *right = (const vector *)(strip + k * n_vector * LANES);
#pragma GCC unroll 16
      for (int v = 0; v < n_vector; v++) sum[v] = fused(x, right[v], sum[v]);
    }
    if (to && to->n_col == n_vector * LANES) {
      put(n_vector, to, r, sum);
      continue;
    }
    EACH(((vector *)sums)[v] = sum[v];)
    if (to) put_some(to, r, sums);
  }
}

static void multiply_by(int n_vector, float *sums, float *a, uint64_t *there, const float *strip, int64_t n, int add,
                        const goal *to, const factor *coming) {
#define VECTORS(n_vector)                                                \
  case n_vector:                                                         \
    multiply_strip(n_vector, sums, a, there, strip, n, add, to, coming); \
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

void multiply_sparse(const target *to, factor a, factor b, int64_t n_sum, int64_t row, int64_t end_row, int64_t column,
                     int64_t end_column, char *room) {
  workroom *mine = (workroom *)room;
  const int64_t of_row = a.dense ? a.stride : 1, of_number = a.dense ? 1 : a.stride;
  for (int64_t k = 0; k < n_sum; k += DEPTH)
    for (int64_t c = column; c < end_column; c += WIDTH) {
      const int64_t depth = UP_TO(n_sum - k, DEPTH), width = UP_TO(end_column - c, WIDTH);
      const int64_t n_vector = PARTS(width, LANES), n_strip = PARTS(n_vector, MOST);
      const int add = k > 0 || to->add, last = k + depth == n_sum, relu = last && to->relu;
      const float *bias = last ? to->bias : NULL;
#define FIRST(s) (n_vector * (s) / n_strip * LANES) /* column of a strip; all are nearly as wide */
#define RIGHT(d, s) (mine->right + (d) * n_vector * LANES + FIRST(s) * DEEP)
      for (int64_t d = 0; d < depth; d += DEEP)
        for (int64_t s = 0; s < n_strip; s++)
          lay_strip(RIGHT(d, s), b, c + FIRST(s), UP_TO(FIRST(s + 1), width) - FIRST(s), k + d, UP_TO(depth - d, DEEP));
      for (int64_t r = row; r < end_row; r += NEAR)
        for (int64_t d = 0; d < depth; d += DEEP) {
          const int64_t n = UP_TO(end_row - r, NEAR), n_deep = UP_TO(depth - d, DEEP);
          const int in_turn = a.dense && n_deep == DEEP, complete = d + DEEP >= depth;
          factor rows = {a.at + r * of_row + (k + d) * of_number, a.stride, a.dense};
          if (!in_turn) lay_rows(mine->left, mine->there, rows, n, n_deep);
          if (!a.dense) rows.at += DEEP * of_number; /* the next */
          for (int64_t s = 0; s < n_strip; s++) {
            const int64_t first = c + FIRST(s), end = c + UP_TO(FIRST(s + 1), width);
            const goal out = {to->out + r * to->n_col + first, bias ? bias + first : NULL, end - first, to->n_col, add, relu};
            multiply_by((FIRST(s + 1) - FIRST(s)) / LANES, mine->sums + FIRST(s) * NEAR, mine->left, mine->there,
                        RIGHT(d, s), n, d > 0, complete ? &out : NULL,
                        s == 0 && (in_turn || (!a.dense && !complete)) ? &rows : NULL);
          }
        }
    }
}

int room_of_sparse(void) { return sizeof(workroom); }

/* The share of a left factor that is not zero, by some of its rows or columns. */
static double share_there(factor a, int64_t n_row, int64_t n_sum) {
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
