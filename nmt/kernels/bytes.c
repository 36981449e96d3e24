/* Matrix products of whole numbers of 8 bits for processors of AVX2: states from 0 to 127 by weights from -127 to 127.

   One instruction multiplies 32 pairs and adds each two neighbours up in 16 bits, another adds up two of those in 32. What
   two pairs come to fits 16 bits, too, if states have 7 bits and weights are chosen for it, so the second is needed half as
   often: of every eight numbers of a sum those of a column lie in two fours. Sums are exact, and depend on nothing that
   else is multiplied. */

#include "products.h"

/* With instructions of its own for such sums a processor needs none of this. */
#if defined HAS_PANELS && !defined __AVXVNNI__

#define HEIGHT 4  /* rows, */
#define PANEL 16  /* and columns, that are multiplied at a time: their sums are in registers */
#define GROUP 8   /* numbers of a sum */
#define NEAR 96   /* rows, multiples of HEIGHT, that a panel meets before the next one comes */
#define MOST 127  /* of a state */
#define WHOLE(n, size) (PARTS(n, size) * (size))

/* A matrix (n_col, n_sum) that is laid out, and what a sum of each row stands for: sum · scale + bias. There are scales and
   biases for whole panels. */
typedef struct {
  const int8_t *laid;
  const float *scale, *bias;
  int64_t n_col, n_sum;
} matrix;

/* Where a product goes: to numbers of fp32, to which `plus` is added if it is there, or to states as they are multiplied
   next, whose rows are whole panels. */
typedef struct {
  float *out;
  const float *plus;
  uint8_t *states;
} result;

/* States of fp32 that are still to be rounded: x, or x · gain + shift where those are there. */
typedef struct {
  const float *x, *gain, *shift;
} unrounded;

ALWAYS vector numbers(__m256i whole) { return __builtin_convertvector((integers)whole, vector); }

/* To the nearest of the states; what is no number is the least. */
ALWAYS __m256i rounded(vector x) {
  return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps((__m256)x, _mm256_setzero_ps()), _mm256_set1_ps(MOST)));
}

/* -- layout ------------------------------------------------------------------------------------------------------- */

int64_t size_of_bytes(int64_t n_col, int64_t n_sum) { return WHOLE(n_col, PANEL) * WHOLE(n_sum, GROUP); }

/* A matrix (n_col, n_sum) laid out, to a multiple of 64: what no row or column has is zero. */
void lay_out_bytes(int8_t *to, const int8_t *b, int64_t n_col, int64_t n_sum) {
  for (int64_t c = 0; c < n_col; c += PANEL)
    for (int64_t k = 0; k < WHOLE(n_sum, GROUP); k += GROUP / 2)
      for (int64_t j = c; j < c + PANEL; j++)
        for (int64_t i = k; i < k + GROUP / 2; i++) *to++ = j < n_col && i < n_sum ? b[j * n_sum + i] : 0;
}

/* n_row rows of states, rounded, `width` numbers apart: a whole number of groups, and zeros. odd: of each row, whether
   something in it is not finite. */
static void round_states(uint8_t *to, char *odd, unrounded from, int64_t row, int64_t n_row, int64_t n, int64_t width) {
  for (int64_t r = 0; r < n_row; r++, to += width) {
    const float *x = from.x + (row + r) * n;
    vector gap = {0}; /* zeros, or NaN where something is not finite */
    for (int64_t k = 0; k < width; k += LANES) {
      vector y = {0};
      if (k + LANES <= n)
        y = *(const vector *)(x + k);
      else
        memcpy(&y, x + k, 4 * (n - k));
      gap += y - y;
      if (from.gain) y = y * *(const vector *)(from.gain + k) + *(const vector *)(from.shift + k);
      const __m256i whole = rounded(y);
      const __m128i two = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
      _mm_storel_epi64((__m128i *)(to + k), _mm_packus_epi16(two, two));
    }
    odd[r] = total_of(gap) != 0.0f;
  }
}

/* -- multiplication ----------------------------------------------------------------------------------------------- */

ALWAYS __m256i four(const uint8_t *x) { /* numbers, for each of eight columns */
  int32_t word;
  memcpy(&word, x, 4);
  return _mm256_set1_epi32(word);
}

/* n_row rows of states, up to HEIGHT and `stride` numbers apart, times a panel, to a row and a column of the result. */
ALWAYS void multiply_strip(const int n_row, const result *to, const matrix *b, int64_t row, int64_t column,
                           const uint8_t *a, int64_t stride) {
  const int64_t width = WHOLE(b->n_sum, GROUP), n = UP_TO(b->n_col - column, PANEL);
  const __m256i *panel = (const __m256i *)(b->laid + column * width), ones = _mm256_set1_epi16(1);
  /* By names: sums of an array the compiler would keep in memory. */
  __m256i l0 = {0}, l1 = {0}, l2 = {0}, l3 = {0}, r0 = {0}, r1 = {0}, r2 = {0}, r3 = {0};
#define ADD(r, l_sum, r_sum)                                                                                      \
  if (n_row > r) {                                                                                                \
    const __m256i x = four(a + r * stride + k), y = four(a + r * stride + k + 4);                                 \
    __m256i lefts = _mm256_maddubs_epi16(x, left), rights = _mm256_maddubs_epi16(x, right);                       \
    lefts = _mm256_add_epi16(lefts, _mm256_maddubs_epi16(y, next_left));                                          \
    rights = _mm256_add_epi16(rights, _mm256_maddubs_epi16(y, next_right));                                       \
    l_sum = _mm256_add_epi32(l_sum, _mm256_madd_epi16(lefts, ones));                                              \
    r_sum = _mm256_add_epi32(r_sum, _mm256_madd_epi16(rights, ones));                                             \
  }
  for (int64_t k = 0; k < width; k += GROUP, panel += 4) {
    const __m256i left = panel[0], right = panel[1], next_left = panel[2], next_right = panel[3];
    ADD(0, l0, r0)
    ADD(1, l1, r1)
    ADD(2, l2, r2)
    ADD(3, l3, r3)
  }
  const __m256i sum[HEIGHT][2] = {{l0, r0}, {l1, r1}, {l2, r2}, {l3, r3}};
  const vector *scale = (const vector *)(b->scale + column), *bias = (const vector *)(b->bias + column);
  const vector l_scale = scale[0], r_scale = scale[1], l_bias = bias[0], r_bias = bias[1];
  const int64_t n_col = b->n_col, place = row * n_col + column;
  uint8_t *states = to->states;
  for (int r = 0; r < n_row; r++) {
    vector y[2] = {numbers(sum[r][0]) * l_scale + l_bias, numbers(sum[r][1]) * r_scale + r_bias};
    if (states) {
      const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(rounded(y[0]), rounded(y[1])), 0xd8);
      const __m128i packed = _mm_packus_epi16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
      _mm_storeu_si128((__m128i *)(states + (row + r) * WHOLE(n_col, PANEL) + column), packed);
    } else if (n == PANEL) {
      vector *out = (vector *)(to->out + place + r * n_col);
      for (int v = 0; v < 2; v++) {
        if (to->plus) y[v] += ((const vector *)(to->plus + place + r * n_col))[v];
        out[v] = y[v];
      }
    } else {
      for (int i = 0; i < n; i++)
        to->out[place + r * n_col + i] = y[i / LANES][i % LANES] + (to->plus ? to->plus[place + r * n_col + i] : 0.0f);
    }
  }
}

/* Rows and columns of the result, by states (n_row, stride) from `first` on. */
static void multiply_rows(const result *to, const matrix *b, const uint8_t *a, int64_t stride, int64_t first, int64_t n_row,
                          int64_t column, int64_t end_column) {
  for (int64_t c = column; c < end_column; c += PANEL)
    for (int64_t r = 0; r < n_row; r += HEIGHT) {
      const uint8_t *left = a + r * stride;
#define STRIP(n)                                              \
  case n:                                                     \
    multiply_strip(n, to, b, first + r, c, left, stride);     \
    break;
      switch (UP_TO(n_row - r, HEIGHT)) {
        STRIP(4)
        STRIP(3)
        STRIP(2)
        STRIP(1)
      }
    }
}

/* Bytes that each thread needs. */
int64_t room_of_bytes(int64_t n_sum) { return NEAR * WHOLE(n_sum, GROUP); }

/* The product of states (n_row, n_sum) with a matrix (n_col, n_sum): to `out`, or to `states`. The states are `known`, then
   their rows are whole panels, or x, gain, shift as `unrounded` has them, gain and shift for whole groups; of a row of x
   that is not finite `out` is not a number. room: room_of_bytes for each thread. */
void multiply_bytes(float *out, const float *plus, uint8_t *states, const uint8_t *known, const float *x,
                    const float *gain, const float *shift, const int8_t *laid, const float *scale, const float *bias,
                    int64_t n_row, int64_t n_col, int64_t n_sum, uint8_t *room, int n_thread) {
  const result to = {out, plus, states};
  const matrix b = {laid, scale, bias, n_col, n_sum};
  const unrounded from = {x, gain, shift};
#pragma omp parallel num_threads(n_thread)
  {
    const int by_rows = n_row > n_col, unit = by_rows ? HEIGHT : PANEL;
    const int64_t size = by_rows ? n_row : n_col, n_unit = PARTS(size, unit);
    const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
    const int64_t begin = n_unit * me / all * unit, end = UP_TO(n_unit * (me + 1) / all * unit, size);
    const int64_t row = by_rows ? begin : 0, end_row = by_rows ? end : n_row;
    const int64_t column = by_rows ? 0 : begin, end_column = by_rows ? n_col : end;
    const int64_t stride = known ? WHOLE(n_sum, PANEL) : WHOLE(n_sum, GROUP);
    uint8_t *mine = room + me * room_of_bytes(n_sum);
    char odd[NEAR] = {0};
    for (int64_t r = row; r < end_row; r += NEAR) {
      const int64_t n = UP_TO(end_row - r, NEAR);
      if (!known) round_states(mine, odd, from, r, n, n_sum, stride);
      multiply_rows(&to, &b, known ? known + r * stride : mine, stride, r, n, column, end_column);
      for (int64_t i = 0; out && i < n; i++)
        for (int64_t c = column; odd[i] && c < end_column; c++) out[(r + i) * n_col + c] = NAN;
    }
  }
}

/* Whether these products are made here. */
int has_bytes(void) { return 1; }
#else
int has_bytes(void) { return 0; }
#endif
