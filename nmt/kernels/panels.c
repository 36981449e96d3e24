/* Matrix products of fp32 for processors of AVX2.

   Six rows times two vectors of columns are twelve sums, which with the numbers that they grow by fill the 16 registers: two
   products a cycle, if all is read from the first cache.  So a panel of
   columns is laid out as it is read, number of a sum by number of a sum, and meets all the rows that lie in the second cache
   before the next one comes (Goto and van de Geijn 2008, "Anatomy of high-performance matrix multiplication"; Van Zee and
   van de Geijn 2015, "BLIS"). What comes next, rows or columns, is fetched meanwhile, a line now and then.

   Each thread makes a part of the result for itself. No sum depends on the number of threads, or on what other rows there
   are. */

#include "products.h"

#ifdef HAS_PANELS
#define HEIGHT 6          /* rows, */
#define PANEL (2 * LANES) /* and columns, that are multiplied at a time, DEPTH numbers of a sum; */
#define NEAR (96 / HEIGHT * HEIGHT) /* rows that lie in the second cache, */
#define WIDTH ((1 << 17) / DEPTH)    /* and columns that are laid out, half a megabyte */
#define LINE 16             /* numbers in a line of the cache */
#define APART (DEPTH + LINE) /* numbers from one row to the next, where rows are copied */
#define AHEAD 12          /* numbers of a sum that are fetched before their turn: each is far from the one before */
#define STEP 16           /* numbers of a sum after which lines are fetched: many at once would be waited for */
#define ROOM (4 * (DEPTH * WIDTH + APART * NEAR)) /* bytes */

/* -- layout ------------------------------------------------------------------------------------------------------- */

/* n columns of a right factor from `column` on, `depth` numbers of each from `first` on, as panels: of every number of a
   sum those of PANEL columns, of which the last panel may have fewer, and zeros. */
static void lay_panels(float *to, factor b, int64_t column, int64_t n, int64_t first, int64_t depth) {
  for (int64_t c = 0; c < n; c += PANEL, to += depth * PANEL) {
    const int64_t width = UP_TO(n - c, PANEL);
    const float *at = b.at + (b.dense ? (column + c) * b.stride + first : first * b.stride + column + c);
    int64_t k = 0;
    for (; width == PANEL && k + 4 <= depth; k += 4) {
      for (int64_t i = k + AHEAD; !b.dense && i < k + AHEAD + 4; i++) __builtin_prefetch(at + i * b.stride);
      for (int64_t j = 0; j < PANEL; j += LANES) {
        if (b.dense)
          turn_four(to + k * PANEL + j, PANEL, at + j * b.stride + k, b.stride);
        else
          for (int64_t i = k; i < k + 4; i++) *(vector *)(to + i * PANEL + j) = *(const vector *)(at + i * b.stride + j);
      }
    }
    for (; k < depth; k++)
      for (int64_t j = 0; j < PANEL; j++)
        to[k * PANEL + j] = j >= width ? 0.0f : b.dense ? at[j * b.stride + k] : at[k * b.stride + j];
  }
}

/* n rows of a left factor whose sums lie side by side, as strips: of every number of a sum those of HEIGHT rows. */
static void lay_strips(float *to, factor a, int64_t row, int64_t n, int64_t first, int64_t depth) {
  for (int64_t k = 0; k < depth; k++, to += HEIGHT) {
    const float *at = a.at + (first + k) * a.stride + row;
    prefetch(at, AHEAD * a.stride, n, 0, 0);
    for (int64_t r = 0; r < n; r += HEIGHT) {
      float *place = to + r * depth;
      if (k + 1 < depth && r + LANES <= n) /* with two that the next number of a sum overwrites */
        *(vector *)place = *(const vector *)(at + r);
      else
        memcpy(place, at + r, 4 * UP_TO(n - r, HEIGHT));
    }
  }
}

/* -- what comes next ---------------------------------------------------------------------------------------------- */

/* Lines of the cache that are still to be fetched: `of_row` in each of n_row rows, of which the first has `done` behind it. */
typedef struct {
  const float *at;
  int64_t stride, n_row, of_row, done;
} coming;

/* What of a factor is read next: rows of `row` .. end_row, up to `most`, and DEPTH numbers of their sums from `first` on. */
static coming soon(factor x, int64_t row, int64_t end_row, int64_t most, int64_t first, int64_t n_sum) {
  const int64_t n = UP_TO(end_row - row, most), depth = first < n_sum ? UP_TO(n_sum - first, DEPTH) : 0;
  if (x.dense) return (coming){x.at + row * x.stride + first, x.stride, depth ? n : 0, PARTS(depth, LINE), 0};
  return (coming){x.at + first * x.stride + row, x.stride, depth, PARTS(n, LINE), 0};
}

/* A line of the first of two that has any left. */
ALWAYS void fetch(coming next[2]) {
  coming *one = next;
  if (!one->n_row && !(++one)->n_row) return;
  __builtin_prefetch(one->at + one->done * LINE);
  if (++one->done == one->of_row) {
    one->at += one->stride;
    one->done = 0;
    one->n_row--;
  }
}

/* -- multiplication ----------------------------------------------------------------------------------------------- */

/* n_row rows, up to HEIGHT, times a panel, to a row and a column of the result. a: of_row numbers from row to row, of_number
   from one number of a sum to the next. plus: the product is added to what is there. next: what is fetched meanwhile. */
ALWAYS void multiply_strip(const int n_row, const target *to, int64_t row, int64_t column, const float *a, int64_t of_row,
                           int64_t of_number, const float *panel, int64_t depth, int plus, const float *bias, int relu,
                           coming next[2]) {
  const int64_t n = UP_TO(to->n_col - column, PANEL);
  float *out = to->out + row * to->n_col + column, part[HEIGHT * PANEL], part_of_bias[PANEL];
  vector sum[HEIGHT][2];
  for (int r = 0; r < n_row; r++) sum[r][0] = sum[r][1] = (vector){0};
  const float *at[PARTS(HEIGHT, 3)]; /* where every third row is: all of them would take too many registers */
  for (int i = 0; i < PARTS(HEIGHT, 3); i++) at[i] = a + 3 * i * of_row;
  const float *written_soon = out;
  for (int64_t k = 0, step = 0; k < depth; step++) {
    fetch(next);
    fetch(next);
    if (step < n_row) {
      prefetch(written_soon, 0, PANEL, 0, 1);
      written_soon += to->n_col;
    }
    for (const int64_t end = UP_TO(k + STEP, depth); k < end; k++, panel += PANEL) {
      const vector left = *(const vector *)panel, right = *(const vector *)(panel + LANES);
#pragma GCC unroll 6
      for (int r = 0; r < n_row; r++) {
        const float x = at[r / 3][r % 3 * of_row + k * of_number];
        sum[r][0] += x * left;
        sum[r][1] += x * right;
      }
    }
  }
  float *place = n < PANEL ? part : out;
  const int64_t stride = n < PANEL ? PANEL : to->n_col;
  if (bias) bias += column;
  if (n < PANEL) { /* there are no whole vectors to read, or to write */
    for (int r = 0; plus && r < n_row; r++) memcpy(part + r * PANEL, out + r * to->n_col, 4 * n);
    if (bias) bias = memcpy(part_of_bias, bias, 4 * n);
  }
  for (int r = 0; r < n_row; r++)
    for (int v = 0; v < 2; v++) {
      vector *whole = (vector *)(place + r * stride + v * LANES), x = sum[r][v];
      if (plus) x += *whole;
      if (bias) x += *(const vector *)(bias + v * LANES);
      *whole = relu ? (vector)((integers)x & ~(x < 0.0f)) : x;
    }
  for (int r = 0; n < PANEL && r < n_row; r++) memcpy(out + r * to->n_col, part + r * PANEL, 4 * n);
}

/* n rows times panels of `width` columns, to a row and a column of the result. of_strip: numbers from one strip of HEIGHT rows
   to the next. */
ALWAYS void multiply_strips(const target *to, int64_t row, int64_t n, int64_t column, int64_t width, const float *a,
                            int64_t of_strip, int64_t of_row, int64_t of_number, const float *panel, int64_t depth,
                            int plus, const float *bias, int relu, coming next[2]) {
  for (int64_t c = 0; c < width; c += PANEL, panel += depth * PANEL)
    for (int64_t r = 0; r < n; r += HEIGHT) {
#define STRIP(n_row)                                                                                                   \
  case n_row:                                                                                                          \
    multiply_strip(n_row, to, row + r, column + c, a + r / HEIGHT * of_strip, of_row, of_number, panel, depth, plus,   \
                   bias, relu, next);                                                                                  \
    break;
      switch (UP_TO(n - r, HEIGHT)) {
        STRIP(6)
        STRIP(5)
        STRIP(4)
        STRIP(3)
        STRIP(2)
        STRIP(1)
      }
    }
}

/* Where panels of a right factor of n columns begin in one that is laid out as a whole, DEPTH numbers of a sum after DEPTH
   others. k: their first number, of which there are `depth`. */
ALWAYS int64_t place_of(int64_t column, int64_t k, int64_t depth, int64_t n) {
  return PARTS(n, PANEL) * PANEL * k + column * depth;
}

const int unit_of_rows = HEIGHT, unit_of_columns = PANEL;

void multiply_part(const target *to, factor a, factor b, const char *laid, int64_t n_sum, int64_t row, int64_t end_row,
                   int64_t column, int64_t end_column, char *room) {
  float *panels = (float *)room, *rows = panels + DEPTH * WIDTH;
  for (int64_t k = 0; k < n_sum; k += DEPTH)
    for (int64_t c = column; c < end_column; c += WIDTH) {
      const int64_t depth = UP_TO(n_sum - k, DEPTH), width = UP_TO(end_column - c, WIDTH);
      const int64_t next_c = c + width < end_column ? c + width : column, next_k = next_c > c ? k : k + depth;
      const int plus = k > 0 || to->add, last = k + depth == n_sum, relu = last && to->relu;
      const float *bias = last ? to->bias : NULL;
      const float *right = laid ? (const float *)laid + place_of(c, k, depth, to->n_col) : panels;
      coming next[2] = {{0}, soon(b, next_c, end_column, WIDTH, laid ? n_sum : next_k, n_sum)};
      if (!laid) lay_panels(panels, b, c, width, k, depth);
      for (int64_t r = row; r < end_row; r += NEAR) {
        const int64_t n = UP_TO(end_row - r, NEAR), next_r = r + n < end_row ? r + n : row;
        next[0] = soon(a, next_r, end_row, NEAR, next_r > r ? k : next_k, n_sum);
        const float *left = a.at + (a.dense ? r * a.stride + k : k * a.stride + r);
        int64_t of_row = a.dense ? a.stride : 1, of_number = a.dense ? 1 : a.stride, of_strip = HEIGHT * of_row;
        if (a.dense && a.stride % 1024 == 0) { /* rows so far apart meet in the same few lines of the first cache */
          for (int64_t i = 0; i < n; i++) memcpy(rows + i * APART, left + i * of_row, 4 * depth);
          left = rows, of_row = APART, of_strip = HEIGHT * APART;
        } else if (!a.dense) {
          lay_strips(rows, a, r, n, k, depth);
          left = rows, of_number = HEIGHT, of_strip = HEIGHT * depth;
        }
        multiply_strips(to, r, n, c, width, left, of_strip, of_row, of_number, right, depth, plus, bias, relu, next);
      }
    }
}

int64_t size_laid_out(int64_t n_col, int64_t n_sum) { return 4 * PARTS(n_col, PANEL) * PANEL * n_sum; }

void lay_out(char *to, const float *b, int64_t stride, int dense, int64_t n_col, int64_t n_sum) {
  for (int64_t k = 0; k < n_sum; k += DEPTH) {
    const int64_t depth = UP_TO(n_sum - k, DEPTH);
    lay_panels((float *)to + place_of(0, k, depth, n_col), (factor){b, stride, dense}, 0, n_col, k, depth);
  }
}

int room_of_part(void) { return ROOM; }

int has_panels(void) { return 1; }
#else
int has_panels(void) { return 0; }
#endif
