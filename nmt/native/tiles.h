/* The tiles of a processor that has them (AMX): 16 rows of 64 bytes, each the numbers of bf16 that are summed at once, or of
   the right factor of a product pairs of them, one pair for each column; and 16 x 16 numbers of fp32, their sums. */

#pragma once

#include "numbers.h"

#if defined __AMX_BF16__ && defined __AVX512BF16__ && defined __AVX512BW__
#define HAS_TILES

#define SIDE 16            /* rows of a tile, and columns of the result of two */
#define STEP 32            /* numbers that are summed at once */
#define PANEL (2 * SIDE)   /* rows, or columns, that are multiplied at a time */
#define TILE 1024          /* bytes, */
#define OF_SUMS (4 * TILE) /* and of the sums of two panels */

/* What is written before is in memory: not of all instructions on tiles does GCC know that they read it. */
#define WRITTEN(place) __asm__ volatile("" : : "r"(place) : "memory")

#define BOTH(left, right, from) _tile_loadd(left, from, 64); _tile_loadd(right, (from) + TILE, 64)

/* All eight tiles whole. */
static inline void configure(void) {
  struct {
    uint8_t palette, start, none[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } shape = {.palette = 1};
  for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = SIDE;
  WRITTEN(&shape);
  _tile_loadconfig(&shape);
}

/* Tiles 0 to 3, the sums of two panels: what was made of them before, or 0 where that is absent. */
ALWAYS void begin_sums(const char *before) {
  if (before) {
    BOTH(0, 1, before);
    BOTH(2, 3, before + 2 * TILE);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
}

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
#endif
