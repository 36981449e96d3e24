/* The tiles of a processor that has them (AMX): 16 rows of 64 bytes, each the numbers of bf16 that are summed at once, or of
   the right factor of a product pairs of them, one pair for each column; and 16 x 16 numbers of fp32, their sums. Without
   them factors lie in memory as they would be loaded into tiles, and registers multiply them (halves.h). */

#pragma once

#include "numbers.h"

#define SIDE 16            /* rows of a tile, and columns of the result of two */
#define STEP 32            /* numbers that are summed at once */
#define PANEL (2 * SIDE)   /* rows, or columns, that are multiplied at a time */
#define LINE 64            /* bytes of a row, */
#define TILE (SIDE * LINE) /* of a tile, */
#define OF_SUMS (4 * TILE) /* and of the sums of two panels */

#ifdef HAS_TILES
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

static inline void release(void) { _tile_release(); }
#else
static inline void configure(void) {}
static inline void release(void) {}
#endif
