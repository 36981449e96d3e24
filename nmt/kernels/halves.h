/* Products of bf16: panels of 32 rows, or columns, laid out by tiles, times each other. Where the processor has no tiles,
   AVX-512 multiplies what would be in them: 16 pairs at a time. */

#pragma once

#include "tiles.h"

#ifdef HAS_HALVES
/* 32 numbers from `first` on, of bf16, or of fp32 made such. */
ALWAYS __m512i halves_at(const void *x, int64_t first, const int half) {
  if (half) return _mm512_loadu_si512((const bf16 *)x + first);
  return (__m512i)_mm512_cvtne2ps_pbh((__m512)vector_at(x, first + SIDE, 0), (__m512)vector_at(x, first, 0));
}

/* 32 columns of 32 rows as two tiles of the right factor: of two rows each, pairs. stride: numbers from row to row. */
ALWAYS void lay_pairs(char *to, const void *x, int64_t first, int64_t stride, const int half) {
  const __m512i upper = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5,
                                         36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i lower = _mm512_add_epi16(upper, _mm512_set1_epi16(16));
  for (int64_t i = 0; i < SIDE; i++) {
    const __m512i a = halves_at(x, first + 2 * i * stride, half), b = halves_at(x, first + (2 * i + 1) * stride, half);
    _mm512_store_si512(to + 64 * i, _mm512_permutex2var_epi16(a, upper, b));
    _mm512_store_si512(to + TILE + 64 * i, _mm512_permutex2var_epi16(a, lower, b));
  }
}

#ifdef HAS_TILES
/* to = sums + a panel of bf16 times another, four tiles; of each step two of both. sums may be absent. Loads stand between
   products, not before them all, so that each waits for no more than it reads. */
ALWAYS void multiply_halves(char *to, const char *sums, const char *a, const char *b, int64_t n_step) {
  WRITTEN(a);
  begin_sums(sums);
  for (int64_t s = 0; s < n_step; s++, a += 2 * TILE, b += 2 * TILE) {
    _tile_loadd(4, a, 64);
    _tile_stream_loadd(6, b, 64); /* once, while the other panel, which is read again, is to stay in the first cache */
    _tile_dpbf16ps(0, 4, 6);
    _tile_stream_loadd(7, b + TILE, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + TILE, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, to, 64);
  _tile_stored(1, to + TILE, 64);
  _tile_stored(2, to + 2 * TILE, 64);
  _tile_stored(3, to + 3 * TILE, 64);
}
#else
#define STRIP 11 /* rows whose sums, and what they grow by, are in registers */

/* Adds the products of n rows and a panel, laid out as the right factor, to sums. apart: bytes from row to row, of_step: and
   from the numbers that are summed at once to the next. */
ALWAYS void multiply_strip(__m512 sum[STRIP][2], const int n, const char *a, int64_t apart, int64_t of_step, const char *b,
                           int64_t n_step) {
  const char *at[4] = {a, a + 3 * apart, a + 6 * apart, a + 9 * apart}; /* where each row is would take too many registers */
  for (int64_t s = 0; s < n_step; s++, b += 2 * TILE) {
    for (int64_t pair = 0; pair < SIDE; pair++) {
      const __m512bh left = *(const __m512bh *)(b + pair * LINE), right = *(const __m512bh *)(b + TILE + pair * LINE);
#pragma GCC unroll 11
      for (int i = 0; i < n; i++) {
        const __m512bh x = (__m512bh)_mm512_set1_epi32(*(const int32_t *)(at[i / 3] + i % 3 * apart + pair * 4));
        sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, left);
        sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, right);
      }
    }
    for (int i = 0; i < 4; i++) at[i] += of_step;
  }
}

/* `multiply_halves` of n rows, `row` and those below it. */
ALWAYS void multiply_rows(const int n, int64_t row, char *to, const char *sums, const char *a, const char *b, int64_t n_step) {
  __m512 sum[STRIP][2];
#define PLACE(i, t) (((row + (i)) / SIDE * 2 + (t)) * TILE + (row + (i)) % SIDE * LINE)
#pragma GCC unroll 11
  for (int i = 0; i < n; i++)
    for (int t = 0; t < 2; t++) sum[i][t] = sums ? *(const __m512 *)(sums + PLACE(i, t)) : (__m512){0};
  multiply_strip(sum, n, a + row * LINE, LINE, 2 * TILE, b, n_step);
#pragma GCC unroll 11
  for (int i = 0; i < n; i++)
    for (int t = 0; t < 2; t++) *(__m512 *)(to + PLACE(i, t)) = sum[i][t];
#undef PLACE
}

ALWAYS void multiply_halves(char *to, const char *sums, const char *a, const char *b, int64_t n_step) {
  multiply_rows(STRIP, 0, to, sums, a, b, n_step);
  multiply_rows(STRIP, STRIP, to, sums, a, b, n_step);
  multiply_rows(PANEL - 2 * STRIP, 2 * STRIP, to, sums, a, b, n_step);
}
#endif
#endif
