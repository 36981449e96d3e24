/* The gradient of a weight of bf16: products whose sums, over all the words of a batch, are far longer than the
   result is wide, of factors that both are read by columns.

   Each thread makes a part of the result for itself. The sums of as many columns as fit lie in the second cache of its core,
   and beside them what is to be added: some rows of both factors, laid out by tiles. No sum depends on the number of
   threads. */

#include "halves.h"

#ifdef HAS_HALVES
#ifdef HAS_TILES
#define DEPTH 384             /* numbers of a sum that are laid out at a time: a panel of them lies in the first cache, */
#else
#define DEPTH 256             /* or two do, of which one is read for each strip of the other */
#endif
#define HEIGHT 512            /* rows of the result that are made at a time, at most, */
#define WIDTH 768             /* and columns */
#define SUMS (HEIGHT * 384)   /* of them, */
#define OF_PANEL (DEPTH / STEP * 2 * TILE) /* bytes of a panel, at most */
#define ROOM (4 * SUMS + OF_PANEL * ((HEIGHT + WIDTH) / PANEL) + OF_SUMS)

/* (n_sum, n) numbers, row by row. */
typedef struct {
  const bf16 *at;
  int64_t n;
} factor;

/* Where a product goes: `turned`, its columns are rows there. */
typedef struct {
  float *out;
  int64_t n_row, n_col; /* there */
  int add, turned;
} target;

/* -- layout ------------------------------------------------------------------------------------------------------- */

/* 16 columns of 32 rows as a tile of the left factor, 16 rows of 32 numbers. stride: numbers from row to row. */
ALWAYS void lay_columns(char *to, const bf16 *at, int64_t stride) {
  for (int64_t c = 0; c < SIDE; c += 8) { /* in each quarter of a vector eight of the rows */
    __m512i x[8], y[8];
    for (int64_t i = 0; i < 8; i++) x[i] = gathered(at + i * stride + c, 16 * stride);
    for (int i = 0; i < 4; i++) {
      y[2 * i] = _mm512_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
      y[2 * i + 1] = _mm512_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
    }
    for (int h = 0; h < 2; h++) /* half of the columns, */
      for (int g = 0; g < 2; g++) { /* and of the rows */
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

ALWAYS void lay_step(char *to, const bf16 *at, int64_t stride, const int right) {
  if (right) {
    lay_pairs(to, at, 0, stride, 1);
  } else {
    lay_columns(to, at, stride);
    lay_columns(to + TILE, at + SIDE, stride);
  }
}

/* Columns `column` .. end, and `depth` rows from `first` on, as panels of 32 columns: of every 32 rows two tiles. */
ALWAYS void lay(char *to, factor x, const int right, int64_t column, int64_t end, int64_t first, int64_t depth) {
  const int64_t n_step = PARTS(depth, STEP);
  for (int64_t step = 0; step < n_step; step++) /* in the order of memory */
    for (int64_t c = column; c < end; c += PANEL) {
      char *place = to + ((c - column) / PANEL * n_step + step) * 2 * TILE;
      const bf16 *at = x.at + (first + step * STEP) * x.n + c;
      const int64_t n_row = depth - step * STEP, n_col = end - c;
      for (int64_t i = 0; i < STEP && n_row >= 2 * STEP; i++) __builtin_prefetch(at + (STEP + i) * x.n, 0, 2);
      if (n_row >= STEP && n_col >= PANEL) {
        lay_step(place, at, x.n, right);
        continue;
      }
      bf16 whole[STEP * PANEL] = {0};
      for (int64_t i = 0; i < UP_TO(n_row, STEP); i++)
        memcpy(whole + i * PANEL, at + i * x.n, 2 * UP_TO(n_col, PANEL));
      lay_step(place, whole, PANEL, right);
    }
}

/* -- multiplication ----------------------------------------------------------------------------------------------- */

/* Four tiles, (2, 2) of (16, 16), to a row and a column of the result. */
static void put(const target *to, const float *sums, int64_t row, int64_t column) {
  float turned[4 * SIDE * SIDE] __attribute__((aligned(64)));
  if (to->turned) {
    for (int t = 0; t < 4; t++)
      for (int c = 0; c < SIDE; c += 4)
        turn_four(turned + (t % 2 * 2 + t / 2) * SIDE * SIDE + c * SIDE, SIDE, sums + t * SIDE * SIDE + c, SIDE);
    const int64_t other = row;
    sums = turned, row = column, column = other;
  }
  for (int64_t t = 0; t < 4; t++, sums += SIDE * SIDE) {
    const int64_t r = row + t / 2 * SIDE, c = column + t % 2 * SIDE, n = UP_TO(to->n_col - c, SIDE);
    const __mmask16 there = n > 0 ? (1 << n) - 1 : 0;
    for (int64_t i = 0; i < UP_TO(to->n_row - r, SIDE); i++) {
      float *place = to->out + (r + i) * to->n_col + c;
      vector x = *(const vector *)(sums + i * SIDE);
      if (to->add) x += (vector)_mm512_maskz_loadu_ps(there, place);
      _mm512_mask_storeu_ps(place, there, (__m512)x);
    }
  }
}

/* Rows row .. end_row and columns column .. end_column of the result. room: ROOM bytes. */
static void multiply_part(const target *to, factor a, factor b, int64_t n_sum, int64_t row, int64_t end_row, int64_t column,
                          int64_t end_column, char *room) {
  if (row >= end_row) return;
  const int64_t height = UP_TO(PARTS(end_row - row, PANEL) * PANEL, HEIGHT);
  const int64_t width = UP_TO(SUMS / height / PANEL * PANEL, WIDTH);
  char *left = room + 4 * SUMS, *right = left + OF_PANEL * (HEIGHT / PANEL), *last = right + OF_PANEL * (WIDTH / PANEL);
  for (int64_t c = column; c < end_column; c += width)
    for (int64_t r = row; r < end_row; r += height) {
      const int64_t n_right = PARTS(UP_TO(end_column - c, width), PANEL), n_left = PARTS(UP_TO(end_row - r, height), PANEL);
      for (int64_t k = 0; k < n_sum; k += DEPTH) {
        const int64_t depth = UP_TO(n_sum - k, DEPTH), size = PARTS(depth, STEP) * 2 * TILE;
        lay(right, b, 1, c, UP_TO(c + width, end_column), k, depth);
        lay(left, a, 0, r, UP_TO(r + height, end_row), k, depth);
        for (int64_t i = 0; i < n_left; i++)
          for (int64_t j = 0; j < n_right; j++) {
            char *sums = room + (i * n_right + j) * OF_SUMS, *place = k + depth == n_sum ? last : sums;
            multiply_halves(place, k ? sums : NULL, left + i * size, right + j * size, PARTS(depth, STEP));
            if (place == last) put(to, (float *)last, r + i * PANEL, c + j * PANEL);
          }
      }
    }
}

/* Bytes that `weight_gradient` needs for each thread. */
int room_of_gradient(void) { return ROOM; }

/* out (n_row, n_col) = aT · b of a (n_sum, n_row) and b (n_sum, n_col), or turned, (n_col, n_row); or that is added to what
   is there. b should be the wider one. room: room_of_gradient bytes for each thread, from a multiple of 64 on. */
void weight_gradient(float *out, int add, int turned, const bf16 *a, const bf16 *b, int64_t n_row, int64_t n_col,
                     int64_t n_sum, char *room, int n_thread) {
  const target to = {out, turned ? n_col : n_row, turned ? n_row : n_col, add, turned};
#pragma omp parallel num_threads(n_thread)
  {
    const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
    int64_t down = 1; /* parts of rows, so that both sides of a part are short: all of them are laid out for it */
    for (int64_t n = 2; n <= all; n++)
      if (all % n == 0 && n_row / n + n_col / (all / n) < n_row / down + n_col / (all / down)) down = n;
    const int64_t across = all / down, n_left = PARTS(n_row, PANEL), n_right = PARTS(n_col, PANEL);
    const int64_t i = me / across, j = me % across;
    configure();
    multiply_part(&to, (factor){a, n_row}, (factor){b, n_col}, n_sum, n_left * i / down * PANEL,
                  UP_TO(n_left * (i + 1) / down * PANEL, n_row), n_right * j / across * PANEL,
                  UP_TO(n_right * (j + 1) / across * PANEL, n_col), room + me * ROOM);
    release();
  }
}
#endif
