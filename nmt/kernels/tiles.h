/* AMX tiles: 16 rows of 64 bytes. In a tile of the left factor each row holds 32 bf16 numbers along the inner dimension; in a
   tile of the right factor, one pair of them for each of 16 columns. A tile of sums is 16 x 16 fp32. On a processor without
   AMX, factors have the same layout in memory, and vector registers multiply them (halves.h). */

#pragma once

#include "numbers.h"

#define SIDE 16               /* rows of a tile; rows and columns of a tile of sums */
#define STEP 32               /* numbers along the inner dimension in a tile */
#define PANEL (2 * SIDE)      /* rows, or columns, that are multiplied at a time */
#define LINE 64               /* bytes of a row of a tile */
#define TILE (SIDE * LINE)    /* bytes of a tile */
#define SUMS_BYTES (4 * TILE) /* bytes of the sums of two panels */

#ifdef HAS_TILES
/* Complete all writes to memory: GCC does not know that some tile instructions read memory. */
#define COMMIT_WRITES(address) __asm__ volatile("" : : "r"(address) : "memory")

#define LOAD_PAIR(left, right, from) _tile_loadd(left, from, 64); _tile_loadd(right, (from) + TILE, 64)

/* Configure all eight tiles with full size. */
static inline void configure_tiles(void) {
  struct {
    uint8_t palette, start, none[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } config = {.palette = 1};
  for (int i = 0; i < 8; i++) config.bytes[i] = 64, config.rows[i] = SIDE;
  COMMIT_WRITES(&config);
  _tile_loadconfig(&config);
}

/* Load tiles 0 to 3, the sums of two panels, from `initial`, or set them to 0 if it is NULL. */
INLINE void load_sums(const char *initial) {
  if (initial) {
    LOAD_PAIR(0, 1, initial);
    LOAD_PAIR(2, 3, initial + 2 * TILE);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
}

static inline void release_tiles(void) { _tile_release(); }
#else
static inline void configure_tiles(void) {}
static inline void release_tiles(void) {}
#endif
