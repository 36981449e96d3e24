/* Int8 matrix products for processors with AVX2: states from 0 to 127 by weights from -127 to 127.

   One instruction multiplies 32 pairs and adds neighbouring products in 16 bits; a second one adds two of those sums in 32
   bits. With 7-bit states and suitably limited weights, the products of two pairs fit into 16 bits, too, so the second
   instruction is needed half as often. In the layout, each group of 8 numbers of a column is split into two fours. Sums are
   exact, and independent of the other rows and columns. */

#include "products.h"

/* Not needed on processors with instructions for 8-bit sums. */
#if defined HAS_PANELS && !defined __AVXVNNI__

#define STRIP_ROWS 4  /* rows of a strip */
#define PANEL 16      /* columns of a panel; the sums of a strip stay in registers */
#define GROUP 8       /* numbers along the inner dimension that are multiplied at a time */
#define BLOCK_ROWS 96 /* rows, a multiple of STRIP_ROWS, that are multiplied by a panel before the next panel */
#define MAX_STATE 127 /* largest state */
#define ROUND_UP(n, size) (CEIL_DIV(n, size) * (size))

/* A packed matrix (n_col, n_sum). A sum represents sum · scale + bias; scale and bias are padded to whole panels. */
typedef struct {
  const int8_t *packed;
  const float *scale, *bias;
  int64_t n_col, n_sum;
} matrix;

/* The result: fp32 in `out`, plus `addend` if that is not NULL; or `states` as input of the next product, with rows padded to
   whole panels. */
typedef struct {
  float *out;
  const float *addend;
  uint8_t *states;
} result;

/* fp32 states, to be rounded: x, or x · gain + shift if those are not NULL. */
typedef struct {
  const float *x, *gain, *shift;
} unrounded;

INLINE vector to_floats(__m256i x) { return __builtin_convertvector((integers)x, vector); }

/* Round to the nearest state; NaN becomes 0. */
INLINE __m256i to_states(vector x) {
  return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps((__m256)x, _mm256_setzero_ps()), _mm256_set1_ps(MAX_STATE)));
}

/* -- layout ------------------------------------------------------------------------------------------------------- */

int64_t size_of_bytes(int64_t n_col, int64_t n_sum) { return ROUND_UP(n_col, PANEL) * ROUND_UP(n_sum, GROUP); }

/* Pack a matrix (n_col, n_sum), padded with zeros. to: 64-byte aligned. */
void lay_out_bytes(int8_t *to, const int8_t *matrix, int64_t n_col, int64_t n_sum) {
  for (int64_t c = 0; c < n_col; c += PANEL)
    for (int64_t k = 0; k < ROUND_UP(n_sum, GROUP); k += GROUP / 2)
      for (int64_t j = c; j < c + PANEL; j++)
        for (int64_t i = k; i < k + GROUP / 2; i++) *to++ = j < n_col && i < n_sum ? matrix[j * n_sum + i] : 0;
}

/* Round n_row rows to states, with a stride of `width`, a multiple of GROUP, padded with zeros. nonfinite: set for each row
   that has a number that is not finite. */
static void round_states(uint8_t *to, char *nonfinite, unrounded from, int64_t row, int64_t n_row, int64_t n, int64_t width) {
  for (int64_t r = 0; r < n_row; r++, to += width) {
    const float *x = from.x + (row + r) * n;
    vector check = {0}; /* zero, or NaN after a number that is not finite */
    for (int64_t k = 0; k < width; k += LANES) {
      vector y = {0};
      if (k + LANES <= n)
        y = *(const vector *)(x + k);
      else
        memcpy(&y, x + k, 4 * (n - k));
      check += y - y;
      if (from.gain) y = y * *(const vector *)(from.gain + k) + *(const vector *)(from.shift + k);
      const __m256i ints = to_states(y);
      const __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256(ints, 1));
      _mm_storel_epi64((__m128i *)(to + k), _mm_packus_epi16(shorts, shorts));
    }
    nonfinite[r] = reduce_add(check) != 0.0f;
  }
}

/* -- multiplication ----------------------------------------------------------------------------------------------- */

INLINE __m256i broadcast_four(const uint8_t *x) { /* numbers, for each of eight columns */
  int32_t word;
  memcpy(&word, x, 4);
  return _mm256_set1_epi32(word);
}

/* Multiply n_row rows of states, at most STRIP_ROWS, `stride` apart, by a panel; write at (row, column) of the result. */
INLINE void multiply_strip(const int n_row, const result *to, const matrix *b, int64_t row, int64_t column,
                           const uint8_t *a, int64_t stride) {
  const int64_t width = ROUND_UP(b->n_sum, GROUP), n_valid = MIN(b->n_col - column, PANEL);
  const __m256i *panel = (const __m256i *)(b->packed + column * width), ones = _mm256_set1_epi16(1);
  /* Separate variables: the compiler would keep an array of sums in memory. */
  __m256i l0 = {0}, l1 = {0}, l2 = {0}, l3 = {0}, r0 = {0}, r1 = {0}, r2 = {0}, r3 = {0};
#define ADD(r, l_sum, r_sum)                                                                          \
  if (n_row > r) {                                                                                    \
    const __m256i x = broadcast_four(a + r * stride + k), y = broadcast_four(a + r * stride + k + 4); \
    __m256i left_pairs = _mm256_maddubs_epi16(x, left), right_pairs = _mm256_maddubs_epi16(x, right); \
    left_pairs = _mm256_add_epi16(left_pairs, _mm256_maddubs_epi16(y, next_left));                    \
    right_pairs = _mm256_add_epi16(right_pairs, _mm256_maddubs_epi16(y, next_right));                 \
    l_sum = _mm256_add_epi32(l_sum, _mm256_madd_epi16(left_pairs, ones));                             \
    r_sum = _mm256_add_epi32(r_sum, _mm256_madd_epi16(right_pairs, ones));                            \
  }
  for (int64_t k = 0; k < width; k += GROUP, panel += 4) {
    const __m256i left = panel[0], right = panel[1], next_left = panel[2], next_right = panel[3];
    ADD(0, l0, r0)
    ADD(1, l1, r1)
    ADD(2, l2, r2)
    ADD(3, l3, r3)
  }
  const __m256i sum[STRIP_ROWS][2] = {{l0, r0}, {l1, r1}, {l2, r2}, {l3, r3}};
  const vector *scale = (const vector *)(b->scale + column), *bias = (const vector *)(b->bias + column);
  const vector l_scale = scale[0], r_scale = scale[1], l_bias = bias[0], r_bias = bias[1];
  const int64_t n_col = b->n_col, offset = row * n_col + column;
  uint8_t *states = to->states;
  for (int r = 0; r < n_row; r++) {
    vector y[2] = {to_floats(sum[r][0]) * l_scale + l_bias, to_floats(sum[r][1]) * r_scale + r_bias};
    if (states) {
      const __m256i shorts = _mm256_permute4x64_epi64(_mm256_packs_epi32(to_states(y[0]), to_states(y[1])), 0xd8);
      const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1));
      _mm_storeu_si128((__m128i *)(states + (row + r) * ROUND_UP(n_col, PANEL) + column), bytes);
    } else if (n_valid == PANEL) {
      vector *out = (vector *)(to->out + offset + r * n_col);
      for (int v = 0; v < 2; v++) {
        if (to->addend) y[v] += ((const vector *)(to->addend + offset + r * n_col))[v];
        out[v] = y[v];
      }
    } else {
      for (int i = 0; i < n_valid; i++)
        to->out[offset + r * n_col + i] = y[i / LANES][i % LANES] + (to->addend ? to->addend[offset + r * n_col + i] : 0.0f);
    }
  }
}

/* Multiply n_row rows of states by columns column .. end_column; write from row `first` of the result on. */
static void multiply_rows(const result *to, const matrix *b, const uint8_t *a, int64_t stride, int64_t first, int64_t n_row,
                          int64_t column, int64_t end_column) {
  for (int64_t c = column; c < end_column; c += PANEL)
    for (int64_t r = 0; r < n_row; r += STRIP_ROWS) {
      const uint8_t *a_strip = a + r * stride;
#define STRIP(n)                                             \
  case n:                                                    \
    multiply_strip(n, to, b, first + r, c, a_strip, stride); \
    break;
      switch (MIN(n_row - r, STRIP_ROWS)) {
        STRIP(4)
        STRIP(3)
        STRIP(2)
        STRIP(1)
      }
    }
}

/* Bytes of scratch memory of each thread. */
int64_t room_of_bytes(int64_t n_sum) { return BLOCK_ROWS * ROUND_UP(n_sum, GROUP); }

/* Product of states (n_row, n_sum) and a matrix (n_col, n_sum), to `out` or to `states`. Input: known_states, with rows
   padded to whole panels, or x, gain, shift as in `unrounded`, with gain and shift padded to whole groups. If a row of x is
   not finite, its row of `out` is NaN. scratch: room_of_bytes for each thread. */
void multiply_bytes(float *out, const float *addend, uint8_t *states, const uint8_t *known_states, const float *x,
                    const float *gain, const float *shift, const int8_t *packed, const float *scale, const float *bias,
                    int64_t n_row, int64_t n_col, int64_t n_sum, uint8_t *scratch, int n_thread) {
  const result to = {out, addend, states};
  const matrix b = {packed, scale, bias, n_col, n_sum};
  const unrounded from = {x, gain, shift};
#pragma omp parallel num_threads(n_thread)
  {
    const int by_rows = n_row > n_col, unit = by_rows ? STRIP_ROWS : PANEL;
    const int64_t size = by_rows ? n_row : n_col, n_unit = CEIL_DIV(size, unit);
    const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
    const int64_t begin = n_unit * thread / team * unit, end = MIN(n_unit * (thread + 1) / team * unit, size);
    const int64_t row = by_rows ? begin : 0, end_row = by_rows ? end : n_row;
    const int64_t column = by_rows ? 0 : begin, end_column = by_rows ? n_col : end;
    const int64_t stride = known_states ? ROUND_UP(n_sum, PANEL) : ROUND_UP(n_sum, GROUP);
    uint8_t *own_scratch = scratch + thread * room_of_bytes(n_sum);
    char nonfinite[BLOCK_ROWS] = {0};
    for (int64_t r = row; r < end_row; r += BLOCK_ROWS) {
      const int64_t n = MIN(end_row - r, BLOCK_ROWS);
      if (!known_states) round_states(own_scratch, nonfinite, from, r, n, n_sum, stride);
      multiply_rows(&to, &b, known_states ? known_states + r * stride : own_scratch, stride, r, n, column, end_column);
      for (int64_t i = 0; out && i < n; i++)
        for (int64_t c = column; nonfinite[i] && c < end_column; c++) out[(r + i) * n_col + c] = NAN;
    }
  }
}

/* 1 if this processor uses these products. */
int has_bytes(void) { return 1; }
#else
int has_bytes(void) { return 0; }
#endif
