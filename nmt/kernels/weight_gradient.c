/* Gradient of a bf16 weight: products whose inner dimension, all words of a batch, is far longer than the result is wide.
   Both factors are read by columns.

   Each thread computes a part of the result. As many of its sums as fit are in the L2 cache of its core, beside the current
   rows of both factors, packed as tiles. No sum depends on the number of threads. */

#include "halves.h"

#ifdef HAS_HALVES
#ifdef HAS_TILES
#define DEPTH 384             /* rows of both factors that are packed at a time: one panel fits into the L1 cache */
#else
#define DEPTH 256             /* two panels do, one of which is read for each strip of the other */
#endif
#define MAX_ROWS 512                          /* rows of the result that are computed at a time, at most */
#define MAX_COLS 768                          /* columns that are computed at a time, at most */
#define MAX_SUMS (MAX_ROWS * 384)             /* sums that are computed at a time, at most */
#define PANEL_BYTES (DEPTH / STEP * 2 * TILE) /* bytes of a panel, at most */
#define SCRATCH_BYTES (4 * MAX_SUMS + PANEL_BYTES * ((MAX_ROWS + MAX_COLS) / PANEL) + SUMS_BYTES)

/* A factor, (n_sum, n), row by row. */
typedef struct {
  const bf16 *data;
  int64_t n;
} factor;

/* The result. transposed: its rows are the columns of the product. */
typedef struct {
  float *out;
  int64_t n_row, n_col; /* as stored */
  int add, transposed;
} output;

/* -- layout ------------------------------------------------------------------------------------------------------- */

/* Pack 16 columns of 32 rows as a tile of the left factor: 16 rows of 32 numbers. stride: numbers from row to row. */
INLINE void pack_columns(char *to, const bf16 *source, int64_t stride) {
  for (int64_t c = 0; c < SIDE; c += 8) { /* each quarter of a vector has eight of the rows */
    __m512i x[8], y[8];
    for (int64_t i = 0; i < 8; i++) x[i] = gather4(source + i * stride + c, 16 * stride);
    for (int i = 0; i < 4; i++) {
      y[2 * i] = _mm512_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
      y[2 * i + 1] = _mm512_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
    }
    for (int h = 0; h < 2; h++) /* half of the columns */
      for (int g = 0; g < 2; g++) { /* half of the rows */
        x[4 * h + 2 * g] = _mm512_unpacklo_epi32(y[4 * g + h], y[4 * g + 2 + h]);
        x[4 * h + 2 * g + 1] = _mm512_unpackhi_epi32(y[4 * g + h], y[4 * g + 2 + h]);
      }
    for (int h = 0; h < 2; h++)
      for (int i = 0; i < 2; i++, to += 128) {
        _mm512_store_si512(to, _mm512_unpacklo_epi64(x[4 * h + i], x[4 * h + 2 + i]));
        _mm512_store_si512(to + 64, _mm512_unpackhi_epi64(x[4 * h + i], x[4 * h + 2 + i]));
      }
  }
}

INLINE void pack_step(char *to, const bf16 *source, int64_t stride, const int right) {
  if (right) {
    pack_pairs(to, source, 0, stride, 1);
  } else {
    pack_columns(to, source, stride);
    pack_columns(to + TILE, source + SIDE, stride);
  }
}

/* Pack columns column .. end, and `depth` rows from `first` on, as panels of 32 columns: two tiles for every 32 rows. */
INLINE void pack(char *to, factor x, const int right, int64_t column, int64_t end, int64_t first, int64_t depth) {
  const int64_t n_step = CEIL_DIV(depth, STEP);
  for (int64_t step = 0; step < n_step; step++) /* in the order of memory */
    for (int64_t c = column; c < end; c += PANEL) {
      char *out = to + ((c - column) / PANEL * n_step + step) * 2 * TILE;
      const bf16 *source = x.data + (first + step * STEP) * x.n + c;
      const int64_t n_row = depth - step * STEP, n_col = end - c;
      for (int64_t i = 0; i < STEP && n_row >= 2 * STEP; i++) __builtin_prefetch(source + (STEP + i) * x.n, 0, 2);
      if (n_row >= STEP && n_col >= PANEL) {
        pack_step(out, source, x.n, right);
        continue;
      }
      bf16 padded_step[STEP * PANEL] = {0};
      for (int64_t i = 0; i < MIN(n_row, STEP); i++)
        memcpy(padded_step + i * PANEL, source + i * x.n, 2 * MIN(n_col, PANEL));
      pack_step(out, padded_step, PANEL, right);
    }
}

/* -- multiplication ----------------------------------------------------------------------------------------------- */

/* Write four tiles, (2, 2) of (16, 16), at (row, column) of the result. */
static void store_tiles(const output *to, const float *sums, int64_t row, int64_t column) {
  float transposed[4 * SIDE * SIDE] __attribute__((aligned(64)));
  if (to->transposed) {
    for (int t = 0; t < 4; t++)
      for (int c = 0; c < SIDE; c += 4)
        transpose4(transposed + (t % 2 * 2 + t / 2) * SIDE * SIDE + c * SIDE, SIDE, sums + t * SIDE * SIDE + c, SIDE);
    const int64_t old_row = row;
    sums = transposed, row = column, column = old_row;
  }
  for (int64_t t = 0; t < 4; t++, sums += SIDE * SIDE) {
    const int64_t r = row + t / 2 * SIDE, c = column + t % 2 * SIDE, n = MIN(to->n_col - c, SIDE);
    const __mmask16 valid = n > 0 ? (1 << n) - 1 : 0;
    for (int64_t i = 0; i < MIN(to->n_row - r, SIDE); i++) {
      float *out = to->out + (r + i) * to->n_col + c;
      vector x = *(const vector *)(sums + i * SIDE);
      if (to->add) x += (vector)_mm512_maskz_loadu_ps(valid, out);
      _mm512_mask_storeu_ps(out, valid, (__m512)x);
    }
  }
}

/* Compute rows row .. end_row and columns column .. end_column of the product. scratch: SCRATCH_BYTES. */
static void multiply_part(const output *to, factor a, factor b, int64_t n_sum, int64_t row, int64_t end_row, int64_t column,
                          int64_t end_column, char *scratch) {
  if (row >= end_row) return;
  const int64_t height = MIN(CEIL_DIV(end_row - row, PANEL) * PANEL, MAX_ROWS);
  const int64_t width = MIN(MAX_SUMS / height / PANEL * PANEL, MAX_COLS);
  char *left = scratch + 4 * MAX_SUMS, *right = left + PANEL_BYTES * (MAX_ROWS / PANEL),
       *complete = right + PANEL_BYTES * (MAX_COLS / PANEL);
  for (int64_t c = column; c < end_column; c += width)
    for (int64_t r = row; r < end_row; r += height) {
      const int64_t n_right = CEIL_DIV(MIN(end_column - c, width), PANEL), n_left = CEIL_DIV(MIN(end_row - r, height), PANEL);
      for (int64_t k = 0; k < n_sum; k += DEPTH) {
        const int64_t depth = MIN(n_sum - k, DEPTH), size = CEIL_DIV(depth, STEP) * 2 * TILE;
        pack(right, b, 1, c, MIN(c + width, end_column), k, depth);
        pack(left, a, 0, r, MIN(r + height, end_row), k, depth);
        for (int64_t i = 0; i < n_left; i++)
          for (int64_t j = 0; j < n_right; j++) {
            char *sums = scratch + (i * n_right + j) * SUMS_BYTES, *out = k + depth == n_sum ? complete : sums;
            multiply_panels(out, k ? sums : NULL, left + i * size, right + j * size, CEIL_DIV(depth, STEP));
            if (out == complete) store_tiles(to, (float *)complete, r + i * PANEL, c + j * PANEL);
          }
      }
    }
}

/* Scratch bytes of `weight_gradient` for each thread. */
int room_of_gradient(void) { return SCRATCH_BYTES; }

/* out (n_row, n_col) = aT · b of a (n_sum, n_row) and b (n_sum, n_col); its transpose, (n_col, n_row), if transposed; out +
   that if add. b should be the wider factor. scratch: room_of_gradient bytes for each thread, 64-byte aligned. */
void weight_gradient(float *out, int add, int transposed, const bf16 *a, const bf16 *b, int64_t n_row, int64_t n_col,
                     int64_t n_sum, char *scratch, int n_thread) {
  const output to = {out, transposed ? n_col : n_row, transposed ? n_row : n_col, add, transposed};
#pragma omp parallel num_threads(n_thread)
  {
    const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
    int64_t row_parts = 1; /* chosen so that the sides of a part are short: a part packs all of both */
    for (int64_t n = 2; n <= team; n++)
      if (team % n == 0 && n_row / n + n_col / (team / n) < n_row / row_parts + n_col / (team / row_parts)) row_parts = n;
    const int64_t column_parts = team / row_parts, n_left = CEIL_DIV(n_row, PANEL), n_right = CEIL_DIV(n_col, PANEL);
    const int64_t i = thread / column_parts, j = thread % column_parts;
    configure_tiles();
    multiply_part(&to, (factor){a, n_row}, (factor){b, n_col}, n_sum, n_left * i / row_parts * PANEL,
                  MIN(n_left * (i + 1) / row_parts * PANEL, n_row), n_right * j / column_parts * PANEL,
                  MIN(n_right * (j + 1) / column_parts * PANEL, n_col), scratch + thread * SCRATCH_BYTES);
    release_tiles();
  }
}
#endif
