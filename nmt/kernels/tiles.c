/* Matrix products of fp32 in the tiles of bf16 of a processor that has them (AMX), as exact as others of fp32.

   A tile is 16 rows of 64 bytes. One instruction multiplies 16 x 32 numbers of bf16 by 32 x 16 of them and adds the result
   to 16 x 16 of fp32, at fifteen times the speed of fp32 itself. A number of fp32, with its 24 bits, is the sum of three
   of bf16 with 8 bits each; of the nine products of two such sums the six largest are taken, and what is left out is less
   than half a unit of the last place (Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 Artificial Intelligence
   Datatype For Higher-Precision Computations"). What is less than 2^-126 counts as 0, and a number that is not finite
   makes NaN.

   Each thread makes a part of the result for itself: it lays out what it reads by tiles, in the second cache of its core.
   No sum depends on the number of threads, or on what other rows there are. */

#include "products.h"

#ifdef HAS_TILES
#include "tiles.h"

#include <sys/syscall.h>
#include <unistd.h>

#define PIECES 3             /* of bf16, of a number */
#define STEP_OF_PANEL (PIECES * 2 * TILE) /* bytes of the numbers of a panel that are summed at once */
#define NEAR 128             /* numbers of a sum of which a panel lies in the first cache */
#define DEPTH 256            /* numbers of a sum, */
#define WIDTH 512            /* and columns, that are laid out in the second one */
#define GROUP 8              /* panels that are laid out at a time where they lie side by side in memory */
#define PART_OF_STATE 18     /* of what the system keeps of a process: XTILEDATA */
#define REQUEST_PART 0x1023  /* ARCH_REQ_XCOMP_PERM */

typedef __m512i lines[SIDE]; /* a tile in registers */

/* -- layout ------------------------------------------------------------------------------------------------------- */

/* The numbers of two rows as pairs: of the first in the even places, of the second in the odd ones. */
ALWAYS __m512i paired(__m512i rows) {
  const __m512i places = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                          20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(places, rows);
}

/* 32 numbers of fp32 as the sum of three of bf16 each, from the largest to the smallest. */
ALWAYS void split(__m512i *piece, int64_t apart, vector a, vector b, int dense) {
  for (int p = 0; p < 3; p++) {
    const __m512i nearest = (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
    piece[p * apart] = dense ? nearest : paired(nearest);
    a -= widened((halves)_mm512_castsi512_si256(nearest)); /* which is exact */
    b -= widened((halves)_mm512_extracti64x4_epi64(nearest, 1));
  }
}

/* 16 rows of a factor, 32 numbers of a sum each, as tiles, one for each piece: rows of numbers, or for the right factor
   rows of pairs. What comes next is fetched. */
ALWAYS void lay_tile(char *to, const float *at, int64_t stride, const int dense, const int right) {
  lines turned[PIECES];
  const int turns = right == dense;
  for (int i = 0; i < SIDE; i++) {
    const float *first = at + (dense ? i : 2 * i) * stride, *second = first + (dense ? SIDE : stride);
    __builtin_prefetch(first + PANEL * stride, 0, 2);
    __builtin_prefetch(second + PANEL * stride, 0, 2);
    split(turns ? turned[0] + i : (__m512i *)to + i, turns ? SIDE : 2 * SIDE, *(const vector *)first,
          *(const vector *)second, dense);
  }
  for (int p = 0; turns && p < PIECES; p++)
    for (int c = 0; c < SIDE; c += 4) turn_four(to + p * 2 * TILE + c * 64, SIDE, (const int32_t *)turned[p] + c, SIDE);
}

/* `lay_tile` where there are fewer rows, or numbers: the others are 0. */
static void lay_rest(char *to, const float *at, int64_t stride, int dense, int right, int64_t n_row, int64_t n_number) {
  float whole[(2 * SIDE + PANEL) * STEP] = {0}; /* with what would come next */
  const int64_t apart = dense ? STEP : SIDE, n = dense ? n_row : n_number, width = dense ? n_number : n_row;
  for (int64_t i = 0; i < n && n_row > 0; i++) memcpy(whole + i * apart, at + i * stride, 4 * width);
  lay_tile(to, whole, apart, dense, right);
}

/* n rows of a factor from `row` on, `depth` numbers of each from `first` on, as panels: of every 32 numbers of a sum all
   pieces, two tiles each. */
ALWAYS void lay(char *to, factor x, const int dense, const int right, int64_t row, int64_t n, int64_t first, int64_t depth) {
  const int64_t n_panel = PARTS(n, PANEL), n_step = PARTS(depth, STEP);
  for (int64_t unit = 0; unit < n_panel * n_step; unit++) { /* in the order of memory */
    const int64_t panel = dense ? unit / n_step : unit % n_panel, step = dense ? unit % n_step : unit / n_panel;
    for (int64_t t = 0; t < 2; t++) {
      char *place = to + (panel * n_step + step) * STEP_OF_PANEL + t * TILE;
      const int64_t r = panel * PANEL + t * SIDE, k = step * STEP, n_row = n - r, n_number = depth - k;
      const float *at = x.at + (dense ? (row + r) * x.stride + first + k : (first + k) * x.stride + row + r);
      if (n_row >= SIDE && n_number >= STEP)
        lay_tile(place, at, x.stride, dense, right);
      else
        lay_rest(place, at, x.stride, dense, right, UP_TO(n_row, SIDE), UP_TO(n_number, STEP));
    }
  }
}

static void lay_left(char *to, factor x, int64_t row, int64_t n, int64_t first, int64_t depth) {
  if (x.dense)
    lay(to, x, 1, 0, row, n, first, depth);
  else
    lay(to, x, 0, 0, row, n, first, depth);
}

static void lay_right(char *to, factor x, int64_t row, int64_t n, int64_t first, int64_t depth) {
  if (x.dense)
    lay(to, x, 1, 1, row, n, first, depth);
  else
    lay(to, x, 0, 1, row, n, first, depth);
}

/* -- multiplication ----------------------------------------------------------------------------------------------- */

#define UPPER(p) _tile_loadd(4, a + (p) * 2 * TILE, 64)
#define LOWER(p) _tile_loadd(5, a + (p) * 2 * TILE + TILE, 64)
#define FIRST(p) _tile_loadd(6, b + (p) * 2 * TILE, 64)
#define SECOND(p) _tile_loadd(7, b + (p) * 2 * TILE + TILE, 64)
#define UPPER_FIRST _tile_dpbf16ps(0, 4, 6)
#define UPPER_SECOND _tile_dpbf16ps(1, 4, 7)
#define LOWER_FIRST _tile_dpbf16ps(2, 5, 6)
#define LOWER_SECOND _tile_dpbf16ps(3, 5, 7)
/* The products of all pairs of which one side is new: loads stand between products, as in `multiply_halves`. */
#define NEW_LEFT(p) UPPER(p); UPPER_FIRST; UPPER_SECOND; LOWER(p); LOWER_FIRST; LOWER_SECOND
#define NEW_RIGHT(p) FIRST(p); UPPER_FIRST; LOWER_FIRST; SECOND(p); UPPER_SECOND; LOWER_SECOND

/* A panel times another: four tiles, of which `sums` has the parts that were made before, if the sums go on. They go to
   `upper`, 16 rows of two tiles, and `lower`, 16 more; stride: bytes from row to row of a tile, next: to the second tile. */
ALWAYS void multiply_panels(char *upper, char *lower, int64_t stride, int64_t next, const char *sums, int goes_on,
                            const char *a, const char *b, int64_t n_step) {
  WRITTEN(a);
  begin_sums(goes_on ? sums : NULL);
  for (int64_t s = 0; s < n_step; s++, a += STEP_OF_PANEL, b += STEP_OF_PANEL) {
    UPPER(0); FIRST(2); UPPER_FIRST; SECOND(2); UPPER_SECOND; LOWER(0); LOWER_FIRST; LOWER_SECOND;
    NEW_RIGHT(1); /* each pair of pieces differs from the one before in one of them */
    NEW_LEFT(1);
    NEW_RIGHT(0);
    NEW_LEFT(2);
    NEW_LEFT(0);
  }
  _tile_stored(0, upper, stride);
  _tile_stored(1, upper + next, stride);
  _tile_stored(2, lower, stride);
  _tile_stored(3, lower + next, stride);
}

/* Four tiles, to a row and a column of the result, to which they are added, or not; whole: all of them are there. */
ALWAYS void put(const target *to, const float *sums, int64_t row, int64_t column, const int whole, const int plus,
                const float *bias, int relu) {
  for (int64_t t = 0; t < 4; t++, sums += SIDE * SIDE) {
    const int64_t r = row + t / 2 * SIDE, c = column + t % 2 * SIDE;
    const int64_t n = whole ? SIDE : UP_TO(to->n_col - c, SIDE), n_row = whole ? SIDE : UP_TO(to->n_row - r, SIDE);
    if (n <= 0) continue;
    const __mmask16 there = (1 << n) - 1;
    const vector biases = bias ? (vector)_mm512_maskz_loadu_ps(there, bias + c) : (vector){0};
    for (int64_t i = 0; i < n_row; i++) {
      float *place = to->out + (r + i) * to->n_col + c;
      vector x = *(const vector *)(sums + i * SIDE) + biases;
      if (plus) x += (vector)_mm512_maskz_loadu_ps(there, place);
      if (relu) x = (vector)((integers)x & ~(x < 0.0f));
      _mm512_mask_storeu_ps(place, there, (__m512)x);
    }
  }
}

/* Panels times each other, to a row and a column of the result. k: the first number of the sums that are added now, of
   which n_step steps are left; sums: what was made of those before, if `goes_on`. */
ALWAYS void multiply_to(const target *to, float *sums, const char *a, const char *b, int64_t row, int64_t column, int64_t k,
                        int64_t n_step, int goes_on, int last) {
  const int ends = n_step <= NEAR / STEP, whole = row + PANEL <= to->n_row && column + PANEL <= to->n_col;
  const int plus = k > 0 || to->add, relu = last && to->relu;
  const float *bias = last ? to->bias : NULL;
  const int as_it_is = ends && whole && !plus && !bias && !relu;
  float *place = to->out + row * to->n_col + column;
  char *upper = (char *)(as_it_is ? place : sums), *lower = as_it_is ? upper + SIDE * to->n_col * 4 : upper + 2 * TILE;
  if (ends) /* what will be written */
    for (int64_t i = 0; i < PANEL; i++) {
      __builtin_prefetch(place + i * to->n_col, 1);
      __builtin_prefetch(place + i * to->n_col + SIDE, 1);
    }
  multiply_panels(upper, lower, as_it_is ? to->n_col * 4 : 64, as_it_is ? 64 : TILE, (const char *)sums, goes_on, a, b,
                  UP_TO(n_step, NEAR / STEP));
  if (!ends || as_it_is) return;
  if (!whole)
    put(to, sums, row, column, 0, plus, bias, relu);
  else if (plus)
    put(to, sums, row, column, 1, 1, bias, relu);
  else
    put(to, sums, row, column, 1, 0, bias, relu);
}

#define LAID_OUT (DEPTH / STEP * STEP_OF_PANEL) /* bytes of a panel, at most */
#define ROOM (LAID_OUT * (WIDTH / PANEL + GROUP) + PANEL * WIDTH * 4)

/* Where panels of a right factor of n columns begin in one that is laid out as a whole, DEPTH numbers of a sum after DEPTH
   others. k: their first number, of which there are n_step steps. */
ALWAYS int64_t place_of(int64_t column, int64_t k, int64_t n_step, int64_t n) {
  return (PARTS(n, PANEL) * (k / STEP) + column / PANEL * n_step) * STEP_OF_PANEL;
}

const int unit_of_rows = PANEL, unit_of_columns = PANEL;

void multiply_part(const target *to, factor a, factor b, const char *laid, int64_t n_sum, int64_t row, int64_t end_row,
                   int64_t column, int64_t end_column, char *room) {
  char *left = room + LAID_OUT * (WIDTH / PANEL);
  float *sums = (float *)(left + LAID_OUT * GROUP);
  configure();
  for (int64_t k = 0; k < n_sum; k += DEPTH)
    for (int64_t c = column; c < end_column; c += WIDTH) {
      const int64_t depth = UP_TO(n_sum - k, DEPTH), width = UP_TO(end_column - c, WIDTH), n_step = PARTS(depth, STEP);
      const int64_t size = n_step * STEP_OF_PANEL, group = a.dense ? 1 : GROUP;
      const char *right = laid ? laid + place_of(c, k, n_step, to->n_col) : room;
      if (!laid) lay_right(room, b, c, width, k, depth);
      for (int64_t r = row; r < end_row; r += PANEL) {
        const char *panel = left + (r - row) / PANEL % group * size;
        if (panel == left) lay_left(left, a, r, UP_TO(end_row - r, group * PANEL), k, depth);
        for (int64_t s = 0; s < n_step; s += NEAR / STEP)
          for (int64_t j = 0; j < PARTS(width, PANEL); j++)
            multiply_to(to, sums + j * PANEL * PANEL, panel + s * STEP_OF_PANEL, right + j * size + s * STEP_OF_PANEL, r,
                        c + j * PANEL, k, n_step - s, s > 0, k + depth == n_sum);
      }
    }
  release();
}

int64_t size_laid_out(int64_t n_col, int64_t n_sum) { return PARTS(n_col, PANEL) * PARTS(n_sum, STEP) * STEP_OF_PANEL; }

void lay_out(char *to, const float *b, int64_t stride, int dense, int64_t n_col, int64_t n_sum) {
  for (int64_t k = 0; k < n_sum; k += DEPTH)
    lay_right(to + place_of(0, k, 0, n_col), (factor){b, stride, dense}, 0, n_col, k, UP_TO(n_sum - k, DEPTH));
}

int room_of_part(void) { return ROOM; }

/* Whether there are tiles, and the system lets this process use them. */
int has_tiles(void) { return syscall(SYS_arch_prctl, REQUEST_PART, PART_OF_STATE) == 0; }
#else
int has_tiles(void) { return 0; }
#endif
