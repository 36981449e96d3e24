/* Matrix products of fp32 for processors with AVX2.

   A strip of six rows times a panel of two vectors of columns has twelve accumulators, which with their operands fill the 16
   registers: two products a cycle, if operands come from the L1 cache. So panels of columns are packed in the order in which
   they are read, and each panel is multiplied by all rows in the L2 cache before the next one (Goto and van de Geijn 2008,
   "Anatomy of high-performance matrix multiplication"; Van Zee and van de Geijn 2015, "BLIS"). The next rows or columns are
   prefetched meanwhile, a cache line now and then.

   Each thread computes a part of the result. No sum depends on the number of threads or on other rows. */

#include "products.h"

#ifdef HAS_PANELS
#define STRIP_ROWS 6                           /* rows of a strip */
#define PANEL (2 * LANES)                      /* columns of a panel */
#define L2_ROWS (96 / STRIP_ROWS * STRIP_ROWS) /* rows of DEPTH numbers that fit into the L2 cache */
#define PACKED_COLUMNS ((1 << 17) / DEPTH)     /* columns that are packed at a time: half a megabyte */
#define LINE 16                                /* numbers in a cache line */
#define COPY_STRIDE (DEPTH + LINE)             /* stride of rows that are copied */
#define AHEAD 12                               /* rows of a factor to prefetch ahead: they are far apart */
#define FETCH_STEP 16                          /* numbers along the inner dimension between prefetches, to avoid stalls */
#define SCRATCH_BYTES (4 * (DEPTH * PACKED_COLUMNS + COPY_STRIDE * L2_ROWS))

/* -- layout ------------------------------------------------------------------------------------------------------- */

/* Pack columns column .. column + n of a right factor, numbers first .. first + depth of each, as panels: PANEL columns for
   each k. The last panel is padded with zeros. */
static void pack_panels(float *to, factor b, int64_t column, int64_t n, int64_t first, int64_t depth) {
  for (int64_t c = 0; c < n; c += PANEL, to += depth * PANEL) {
    const int64_t n_valid = MIN(n - c, PANEL);
    const float *source = b.data + (b.dense ? (column + c) * b.stride + first : first * b.stride + column + c);
    if (n_valid < PANEL) memset(to, 0, 4 * depth * PANEL);
    if (b.dense) transpose(to, PANEL, source, b.stride, n_valid, depth);
    for (int64_t k = 0; !b.dense && k < depth; k++) {
      __builtin_prefetch(source + (k + AHEAD) * b.stride);
      if (n_valid == PANEL)
        memcpy(to + k * PANEL, source + k * b.stride, 4 * PANEL); /* of a constant size: two vectors */
      else
        memcpy(to + k * PANEL, source + k * b.stride, 4 * n_valid);
    }
  }
}

/* Pack n rows of a left factor that is contiguous along rows as strips: STRIP_ROWS rows for each k. */
static void pack_strips(float *to, factor a, int64_t row, int64_t n, int64_t first, int64_t depth) {
  for (int64_t k = 0; k < depth; k++, to += STRIP_ROWS) {
    const float *source = a.data + (first + k) * a.stride + row;
    prefetch(source, AHEAD * a.stride, n, 0, 0);
    for (int64_t r = 0; r < n; r += STRIP_ROWS) {
      float *strip = to + r * depth;
      if (k + 1 < depth && r + LANES <= n) /* the two extra numbers are overwritten for the next k */
        *(vector *)strip = *(const vector *)(source + r);
      else
        memcpy(strip, source + r, 4 * MIN(n - r, STRIP_ROWS));
    }
  }
}

/* -- prefetching -------------------------------------------------------------------------------------------------- */

/* Cache lines to prefetch: n_line in each of n_row rows; `done` of the first row are finished. */
typedef struct {
  const float *data;
  int64_t stride, n_row, n_line, done;
} line_queue;

/* Queue what is read next of a factor: up to max_row rows of row .. end_row, and up to DEPTH numbers from `first` on. */
static line_queue queue_lines(factor x, int64_t row, int64_t end_row, int64_t max_row, int64_t first, int64_t n_sum) {
  const int64_t n = MIN(end_row - row, max_row), depth = first < n_sum ? MIN(n_sum - first, DEPTH) : 0;
  if (x.dense) return (line_queue){x.data + row * x.stride + first, x.stride, depth ? n : 0, CEIL_DIV(depth, LINE), 0};
  return (line_queue){x.data + first * x.stride + row, x.stride, depth, CEIL_DIV(n, LINE), 0};
}

/* Prefetch a line of the first queue that is not empty. */
INLINE void prefetch_line(line_queue next[2]) {
  line_queue *queue = next;
  if (!queue->n_row && !(++queue)->n_row) return;
  __builtin_prefetch(queue->data + queue->done * LINE);
  if (++queue->done == queue->n_line) {
    queue->data += queue->stride;
    queue->done = 0;
    queue->n_row--;
  }
}

/* -- multiplication ----------------------------------------------------------------------------------------------- */

/* Multiply n_row rows, at most STRIP_ROWS, by a panel; write at (row, column) of the result. row_stride, k_stride: of a, in
   numbers. add: add the product to the result. next: lines to prefetch meanwhile. */
INLINE void multiply_strip(const int n_row, const output *to, int64_t row, int64_t column, const float *a, int64_t row_stride,
                           int64_t k_stride, const float *panel, int64_t depth, int add, const float *bias, int relu,
                           line_queue next[2]) {
  const int64_t n_valid = MIN(to->n_col - column, PANEL);
  float *out = to->out + row * to->n_col + column, edge[STRIP_ROWS * PANEL], edge_bias[PANEL];
  vector acc[STRIP_ROWS][2];
  for (int r = 0; r < n_row; r++) acc[r][0] = acc[r][1] = (vector){0};
  const float *row_base[CEIL_DIV(STRIP_ROWS, 3)]; /* for every third row */
  for (int i = 0; i < CEIL_DIV(STRIP_ROWS, 3); i++) row_base[i] = a + 3 * i * row_stride;
  const float *next_write = out;
  for (int64_t k = 0, step = 0; k < depth; step++) {
    prefetch_line(next);
    prefetch_line(next);
    if (step < n_row) {
      prefetch(next_write, 0, PANEL, 0, 1);
      next_write += to->n_col;
    }
    for (const int64_t end = MIN(k + FETCH_STEP, depth); k < end; k++, panel += PANEL) {
      const vector left = *(const vector *)panel, right = *(const vector *)(panel + LANES);
#pragma GCC unroll 6
      for (int r = 0; r < n_row; r++) {
        const float x = row_base[r / 3][r % 3 * row_stride + k * k_stride];
        acc[r][0] += x * left;
        acc[r][1] += x * right;
      }
    }
  }
  float *tile = n_valid < PANEL ? edge : out;
  const int64_t tile_stride = n_valid < PANEL ? PANEL : to->n_col;
  if (bias) bias += column;
  if (n_valid < PANEL) { /* the edge of the result has no full vectors to read or write */
    for (int r = 0; add && r < n_row; r++) memcpy(edge + r * PANEL, out + r * to->n_col, 4 * n_valid);
    if (bias) bias = memcpy(edge_bias, bias, 4 * n_valid);
  }
  for (int r = 0; r < n_row; r++)
    for (int v = 0; v < 2; v++) {
      vector *entry = (vector *)(tile + r * tile_stride + v * LANES), x = acc[r][v];
      if (add) x += *entry;
      if (bias) x += *(const vector *)(bias + v * LANES);
      *entry = relu ? (vector)((integers)x & ~(x < 0.0f)) : x;
    }
  for (int r = 0; n_valid < PANEL && r < n_row; r++) memcpy(out + r * to->n_col, edge + r * PANEL, 4 * n_valid);
}

/* Multiply n rows by panels of `width` columns; write at (row, column) of the result. strip_stride: numbers from one strip of
   STRIP_ROWS rows to the next. */
INLINE void multiply_strips(const output *to, int64_t row, int64_t n, int64_t column, int64_t width, const float *a,
                            int64_t strip_stride, int64_t row_stride, int64_t k_stride, const float *panel, int64_t depth,
                            int add, const float *bias, int relu, line_queue next[2]) {
  for (int64_t c = 0; c < width; c += PANEL, panel += depth * PANEL)
    for (int64_t r = 0; r < n; r += STRIP_ROWS) {
#define STRIP(n_row)                                                                                                           \
  case n_row:                                                                                                                  \
    multiply_strip(n_row, to, row + r, column + c, a + r / STRIP_ROWS * strip_stride, row_stride, k_stride, panel, depth, add, \
                   bias, relu, next);                                                                                          \
    break;
      switch (MIN(n - r, STRIP_ROWS)) {
        STRIP(6)
        STRIP(5)
        STRIP(4)
        STRIP(3)
        STRIP(2)
        STRIP(1)
      }
    }
}

/* Offset of a panel in a packed right factor of n_col columns, which has blocks of DEPTH along the inner dimension. k: start
   of the block; depth: its size. */
INLINE int64_t panel_offset(int64_t column, int64_t k, int64_t depth, int64_t n_col) {
  return CEIL_DIV(n_col, PANEL) * PANEL * k + column * depth;
}

const int rows_per_unit = STRIP_ROWS, columns_per_unit = PANEL;

void multiply_part(const output *to, factor a, factor b, const char *packed, int64_t n_sum, int64_t row, int64_t end_row,
                   int64_t column, int64_t end_column, char *scratch) {
  float *panels = (float *)scratch, *rows = panels + DEPTH * PACKED_COLUMNS;
  for (int64_t k = 0; k < n_sum; k += DEPTH)
    for (int64_t c = column; c < end_column; c += PACKED_COLUMNS) {
      const int64_t depth = MIN(n_sum - k, DEPTH), width = MIN(end_column - c, PACKED_COLUMNS);
      const int64_t next_c = c + width < end_column ? c + width : column, next_k = next_c > c ? k : k + depth;
      const int add = k > 0 || to->add, last = k + depth == n_sum, relu = last && to->relu;
      const float *bias = last ? to->bias : NULL;
      const float *right = packed ? (const float *)packed + panel_offset(c, k, depth, to->n_col) : panels;
      line_queue next[2] = {{0}, queue_lines(b, next_c, end_column, PACKED_COLUMNS, packed ? n_sum : next_k, n_sum)};
      if (!packed) pack_panels(panels, b, c, width, k, depth);
      for (int64_t r = row; r < end_row; r += L2_ROWS) {
        const int64_t n = MIN(end_row - r, L2_ROWS), next_r = r + n < end_row ? r + n : row;
        next[0] = queue_lines(a, next_r, end_row, L2_ROWS, next_r > r ? k : next_k, n_sum);
        const float *left = a.data + (a.dense ? r * a.stride + k : k * a.stride + r);
        int64_t row_stride = a.dense ? a.stride : 1, k_stride = a.dense ? 1 : a.stride, strip_stride = STRIP_ROWS * row_stride;
        if (a.dense && a.stride % 1024 == 0) { /* rows with such a stride compete for the same lines of the L1 cache */
          for (int64_t i = 0; i < n; i++) memcpy(rows + i * COPY_STRIDE, left + i * row_stride, 4 * depth);
          left = rows, row_stride = COPY_STRIDE, strip_stride = STRIP_ROWS * COPY_STRIDE;
        } else if (!a.dense) {
          pack_strips(rows, a, r, n, k, depth);
          left = rows, k_stride = STRIP_ROWS, strip_stride = STRIP_ROWS * depth;
        }
        multiply_strips(to, r, n, c, width, left, strip_stride, row_stride, k_stride, right, depth, add, bias, relu, next);
      }
    }
}

int64_t size_laid_out(int64_t n_col, int64_t n_sum) { return 4 * CEIL_DIV(n_col, PANEL) * PANEL * n_sum; }

void lay_out(char *to, const float *b, int64_t stride, int dense, int64_t n_col, int64_t n_sum) {
  for (int64_t k = 0; k < n_sum; k += DEPTH) {
    const int64_t depth = MIN(n_sum - k, DEPTH);
    pack_panels((float *)to + panel_offset(0, k, depth, n_col), (factor){b, stride, dense}, 0, n_col, k, depth);
  }
}

int scratch_of_part(void) { return SCRATCH_BYTES; }

int has_panels(void) { return 1; }
#else
int has_panels(void) { return 0; }
#endif
