/* bf16 products of two panels of 32 rows, or columns, in the layout of tiles. Without AMX, AVX-512 multiplies the contents of
   tiles, 16 pairs at a time. */

#pragma once

#include "tiles.h"

#ifdef HAS_HALVES
/* 32 bf16 numbers from index `first` on, converted if they are fp32 (half = 0). */
INLINE __m512i halves_at(const void *x, int64_t first, const int half) {
  if (half) return _mm512_loadu_si512((const bf16 *)x + first);
  return (__m512i)_mm512_cvtne2ps_pbh((__m512)vector_at(x, first + SIDE, 0), (__m512)vector_at(x, first, 0));
}

/* Pack 32 columns of 32 rows as two tiles of the right factor, in pairs of rows. stride: numbers from row to row. */
INLINE void pack_pairs(char *to, const void *x, int64_t first, int64_t stride, const int half) {
  const __m512i left = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5,
                                        36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i right = _mm512_add_epi16(left, _mm512_set1_epi16(16));
  for (int64_t i = 0; i < SIDE; i++) {
    const __m512i even = halves_at(x, first + 2 * i * stride, half), odd = halves_at(x, first + (2 * i + 1) * stride, half);
    _mm512_store_si512(to + 64 * i, _mm512_permutex2var_epi16(even, left, odd));
    _mm512_store_si512(to + TILE + 64 * i, _mm512_permutex2var_epi16(even, right, odd));
  }
}

#ifdef HAS_TILES
/* to = sums + product of two bf16 panels, four tiles of fp32. In each step both panels advance by two tiles. sums may be
   NULL. Loads are between products, not all before the first, so that each product waits only for its own operands. */
INLINE void multiply_panels(char *to, const char *sums, const char *a, const char *b, int64_t n_step) {
  COMMIT_WRITES(a);
  load_sums(sums);
  for (int64_t s = 0; s < n_step; s++, a += 2 * TILE, b += 2 * TILE) {
    _tile_loadd(4, a, 64);
    _tile_stream_loadd(6, b, 64); /* streaming: b is read once, and a, which is reused, should stay in L1 */
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
#define STRIP 11 /* rows whose accumulators and operands fit into registers */

/* Add the product of n rows and a panel, in the layout of the right factor, to acc. Strides are in bytes: row_stride from row
   to row, k_stride from one step of the inner dimension to the next. */
INLINE void multiply_strip(__m512 acc[STRIP][2], const int n, const char *a, int64_t row_stride, int64_t k_stride,
                           const char *b, int64_t n_step) {
  const char *base[4] = {a, a + 3 * row_stride, a + 6 * row_stride, a + 9 * row_stride}; /* for every third row */
  for (int64_t s = 0; s < n_step; s++, b += 2 * TILE) {
    for (int64_t pair = 0; pair < SIDE; pair++) {
      const __m512bh b_left = *(const __m512bh *)(b + pair * LINE), b_right = *(const __m512bh *)(b + TILE + pair * LINE);
#pragma GCC unroll 11
      for (int i = 0; i < n; i++) {
        const __m512bh x = (__m512bh)_mm512_set1_epi32(*(const int32_t *)(base[i / 3] + i % 3 * row_stride + pair * 4));
        acc[i][0] = _mm512_dpbf16_ps(acc[i][0], x, b_left);
        acc[i][1] = _mm512_dpbf16_ps(acc[i][1], x, b_right);
      }
    }
    for (int i = 0; i < 4; i++) base[i] += k_stride;
  }
}

/* `multiply_panels` for n rows from `row` on. */
INLINE void multiply_rows(const int n, int64_t row, char *to, const char *sums, const char *a, const char *b, int64_t n_step) {
  __m512 acc[STRIP][2];
#define OFFSET(i, t) (((row + (i)) / SIDE * 2 + (t)) * TILE + (row + (i)) % SIDE * LINE)
#pragma GCC unroll 11
  for (int i = 0; i < n; i++)
    for (int t = 0; t < 2; t++) acc[i][t] = sums ? *(const __m512 *)(sums + OFFSET(i, t)) : (__m512){0};
  multiply_strip(acc, n, a + row * LINE, LINE, 2 * TILE, b, n_step);
#pragma GCC unroll 11
  for (int i = 0; i < n; i++)
    for (int t = 0; t < 2; t++) *(__m512 *)(to + OFFSET(i, t)) = acc[i][t];
#undef OFFSET
}

INLINE void multiply_panels(char *to, const char *sums, const char *a, const char *b, int64_t n_step) {
  multiply_rows(STRIP, 0, to, sums, a, b, n_step);
  multiply_rows(STRIP, STRIP, to, sums, a, b, n_step);
  multiply_rows(PANEL - 2 * STRIP, 2 * STRIP, to, sums, a, b, n_step);
}
#endif
#endif
