/* bf16 products, (N, D) by (D, E), whose left factor has dense rows: outputs of linear layers, and gradients of their inputs.
   The epilogue (bias, ReLU, mask, column sums) is fused.

   The whole right factor is packed in the layout of tiles. As many of its columns as fit into the L2 cache of a core are
   multiplied by one panel of 32 rows after another. With AMX the next panel of rows is packed meanwhile; AVX-512 reads rows
   in place. Each sum is computed in one go: it does not depend on the number of threads or on other rows. */

#include "halves.h"

#ifdef HAS_TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

#ifdef HAS_HALVES
#define L2_BYTES (1 << 20)    /* bytes of the right factor that fit into the L2 cache beside other data */
#define MIN_PANELS 4          /* panels of it, at least, for which packing one of the left factor pays */
#define STEP_BYTES (2 * TILE) /* bytes of one step of a panel */

/* A product (n_row, n_col) with inner dimension n_sum. */
typedef struct {
  bf16 *out;
  const bf16 *a, *mask; /* mask, bias and sums may be NULL */
  const float *bias;
  float *sums; /* of the columns, for each ROWS_PER_PART rows */
  int64_t n_row, n_col, n_sum;
  int relu;
} task;

/* -- layout ------------------------------------------------------------------------------------------------------- */

/* Pack 16 columns of 32 contiguous numbers each as a tile of the right factor: rows of pairs. */
INLINE void pack_transposed(char *to, const void *x, int64_t first, int64_t stride, const int half) {
  __m512i column[SIDE];
  for (int64_t i = 0; i < SIDE; i++) column[i] = halves_at(x, first + i * stride, half);
  for (int64_t c = 0; c < SIDE; c += 4) transpose4(to + c * LINE, SIDE, (const int32_t *)column + c, SIDE);
}

/* Pack one step of a panel of the right factor: 32 columns of 32 numbers. */
INLINE void pack_step(char *to, const void *b, int64_t stride, const int half, int dense, int64_t panel, int64_t step) {
  if (dense)
    for (int64_t t = 0; t < 2; t++)
      pack_transposed(to + t * TILE, b, (panel * PANEL + t * SIDE) * stride + step * STEP, stride, half);
  else
    pack_pairs(to, b, step * STEP * stride + panel * PANEL, stride, half);
}

/* Size in bytes of a packed right factor. */
int64_t size_of_half(int64_t n_col, int64_t n_sum) { return 2 * n_col * n_sum; }

/* Pack a part of a right factor: columns `column` .. column + n_col, and numbers `first` .. first + n of the n_sum of each
   column. b: bf16 or fp32. dense: the numbers of a column are contiguous, and columns are `stride` apart; else vice versa. */
void lay_half(char *to, const void *b, int half, int64_t stride, int dense, int64_t column, int64_t n_col, int64_t first,
              int64_t n, int64_t n_sum, int n_thread) {
  const int64_t n_panel = n_col / PANEL, n_step = n / STEP;
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t unit = 0; unit < n_panel * n_step; unit++) { /* in the order of memory */
    const int64_t panel = dense ? unit / n_step : unit % n_panel, step = dense ? unit % n_step : unit / n_panel;
    char *out = to + ((column / PANEL + panel) * (n_sum / STEP) + first / STEP + step) * STEP_BYTES;
    if (half)
      pack_step(out, b, stride, 1, dense, panel, step);
    else
      pack_step(out, b, stride, 0, dense, panel, step);
  }
}

/* Pack lines line .. end of the panel of the left factor that starts at `row`; missing rows are 0. */
static void pack_lines(char *to, const task *task, int64_t row, int64_t line, int64_t end) {
  const int64_t n_step = task->n_sum / STEP;
  int64_t i = line / n_step, s = line % n_step;
  for (; line < end; line++) {
    const bf16 *source = task->a + (row + i) * task->n_sum + s * STEP;
    *(__m512i *)(to + s * STEP_BYTES + i * LINE) = row + i < task->n_row ? _mm512_loadu_si512(source) : (__m512i){0};
    if (++s == n_step) i++, s = 0;
  }
}

/* -- multiplication ----------------------------------------------------------------------------------------------- */

/* Prefetch n rows and a panel of columns of the output, and of the mask. */
INLINE void prefetch_outputs(const task *task, int64_t row, int64_t n, int64_t column) {
  for (int64_t i = 0; i < n; i++) {
    const int64_t index = (row + i) * task->n_col + column;
    __builtin_prefetch(task->out + index, 1);
    if (task->mask) __builtin_prefetch(task->mask + index);
  }
}

/* Epilogue of two vectors of columns: bias, and column sums of the result. */
typedef struct {
  vector bias[2], total[2];
  float *sums; /* may be NULL */
} epilogue;

INLINE epilogue begin_epilogue(const task *task, int64_t row, int64_t column) {
  epilogue result = {.sums = task->sums ? task->sums + row / ROWS_PER_PART * task->n_col + column : NULL};
  for (int t = 0; t < 2; t++) {
    if (task->bias) result.bias[t] = *(const vector *)(task->bias + column + t * SIDE);
    if (result.sums && row % ROWS_PER_PART) result.total[t] = *(const vector *)(result.sums + t * SIDE); /* rows before */
  }
  return result;
}

INLINE void store_sums(const epilogue *epilogue) {
  for (int t = 0; t < 2 && epilogue->sums; t++) *(vector *)(epilogue->sums + t * SIDE) = epilogue->total[t];
}

/* Apply the epilogue to two vectors of sums, and write them at an index of the result. */
INLINE void write_outputs(const task *task, epilogue *epilogue, int64_t index, vector left, vector right) {
  vector x[2] = {left, right};
  for (int t = 0; t < 2; t++) {
    x[t] += epilogue->bias[t];
    if (task->relu) x[t] = (vector)((integers)x[t] & ~(x[t] < 0.0f));
    if (task->mask) x[t] = (vector)((integers)x[t] & (vector_at(task->mask, index + t * SIDE, 1) != 0.0f));
  }
  const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh((__m512)x[1], (__m512)x[0]);
  _mm512_storeu_si512(task->out + index, rounded);
  if (!epilogue->sums) return;
  epilogue->total[0] += widen_vector((halves)_mm512_castsi512_si256(rounded));
  epilogue->total[1] += widen_vector((halves)_mm512_extracti64x4_epi64(rounded, 1));
}

#ifdef HAS_TILES
/* Scratch bytes of a thread: two panels of the left factor, one being packed while the other is multiplied, and sums. */
INLINE int64_t scratch_of_part(int64_t n_sum) { return 2 * (n_sum / STEP * STEP_BYTES) + SUMS_BYTES; }

/* Compute rows row .. end_row, a multiple of ROWS_PER_PART or the last, and panels `first` .. end of columns. */
static void multiply_part(const task *task, const char *right, int64_t row, int64_t end_row, int64_t first, int64_t end,
                          char *scratch) {
  const int64_t n_step = task->n_sum / STEP, size = n_step * STEP_BYTES, n_panel = end - first, n_line = PANEL * n_step;
  char *left = scratch, *next = scratch + size;
  const float *sums = (const float *)(scratch + 2 * size);
  pack_lines(left, task, row, 0, n_line);
  for (; row < end_row; row += PANEL) {
    const int64_t to_pack = row + PANEL < end_row ? n_line : 0, n = MIN(end_row - row, PANEL);
    for (int64_t j = 0; j < n_panel; j++) {
      const int64_t column = (first + j) * PANEL;
      prefetch_outputs(task, row, n, column);
      multiply_panels((char *)sums, NULL, left, right + (first + j) * size, n_step);
      pack_lines(next, task, row + PANEL, to_pack * j / n_panel, to_pack * (j + 1) / n_panel);
      epilogue epilogue = begin_epilogue(task, row, column);
      for (int64_t i = 0; i < n; i++) {
        const float *source = sums + i / SIDE * 2 * SIDE * SIDE + i % SIDE * SIDE;
        write_outputs(task, &epilogue, (row + i) * task->n_col + column, *(const vector *)source,
                      *(const vector *)(source + SIDE * SIDE));
      }
      store_sums(&epilogue);
    }
    char *previous = left;
    left = next, next = previous;
  }
}
#else
/* Scratch bytes of a thread: a panel of the left factor, for one that is not full. */
INLINE int64_t scratch_of_part(int64_t n_sum) { return n_sum / STEP * STEP_BYTES; }

/* Multiply a strip of up to n rows by a panel; write at (row, column) of the result. */
INLINE void multiply_to(const task *task, const int n, const char *a, int64_t row_stride, int64_t k_stride, const char *b,
                        int64_t row, int64_t column) {
  const int64_t n_row = MIN(task->n_row - row, n);
  if (n_row <= 0) return;
  __m512 acc[STRIP][2] = {0};
  prefetch_outputs(task, row, n_row, column);
  multiply_strip(acc, n, a, row_stride, k_stride, b, task->n_sum / STEP);
  epilogue epilogue = begin_epilogue(task, row, column);
#pragma GCC unroll 11
  for (int i = 0; i < n; i++)
    if (i < n_row) write_outputs(task, &epilogue, (row + i) * task->n_col + column, (vector)acc[i][0], (vector)acc[i][1]);
  store_sums(&epilogue);
}

/* Compute rows row .. end_row, a multiple of ROWS_PER_PART or the last, and panels `first` .. end of columns. */
static void multiply_part(const task *task, const char *right, int64_t row, int64_t end_row, int64_t first, int64_t end,
                          char *scratch) {
  const int64_t n_step = task->n_sum / STEP;
  for (; row < end_row; row += PANEL) {
    const char *left = (const char *)(task->a + row * task->n_sum);
    int64_t stride = 2 * task->n_sum, k_stride = LINE;
    if (end_row - row < PANEL) {
      pack_lines(scratch, task, row, 0, PANEL * n_step);
      left = scratch, stride = LINE, k_stride = STEP_BYTES;
    }
    for (int64_t j = first; j < end; j++) {
      const char *panel = right + j * n_step * STEP_BYTES;
      for (int64_t i = 0; i < 2 * STRIP; i += STRIP)
        multiply_to(task, STRIP, left + i * stride, stride, k_stride, panel, row + i, j * PANEL);
      multiply_to(task, PANEL - 2 * STRIP, left + 2 * STRIP * stride, stride, k_stride, panel, row + 2 * STRIP, j * PANEL);
    }
  }
}
#endif

/* Scratch bytes of `multiply_half`: partial column sums, and scratch of each thread. */
int64_t room_of_half(int64_t n_row, int64_t n_col, int64_t n_sum, int n_thread) {
  return CEIL_DIV(n_row, ROWS_PER_PART) * n_col * 4 + n_thread * scratch_of_part(n_sum);
}

/* 1 if `multiply_half` takes these sizes: full panels, a few of which fit into the L2 cache, and full steps. */
int takes_half(int64_t n_col, int64_t n_sum) {
  return n_col % PANEL == 0 && n_sum % STEP == 0 && n_sum > 0 && n_sum / STEP * STEP_BYTES <= L2_BYTES / MIN_PANELS;
}

/* out (n_row, n_col) = a (n_row, n_sum) · b (n_sum, n_col) + bias (n_col, fp32), then ReLU if relu, then 0 where mask (n_row,
   n_col) is 0. sums: column sums of out (n_col, fp32). bias, mask and sums may be NULL. packed: b from `lay_half`; scratch:
   room_of_half bytes; both 64-byte aligned. */
void multiply_half(bf16 *out, const bf16 *a, const char *packed, const float *bias, int relu, const bf16 *mask, float *sums,
                   int64_t n_row, int64_t n_col, int64_t n_sum, char *scratch, int n_thread) {
  const int64_t n_panel = n_col / PANEL, n_unit = CEIL_DIV(n_row, ROWS_PER_PART);
  const int64_t max_panel = L2_BYTES / (n_sum / STEP * STEP_BYTES), n_block = CEIL_DIV(n_panel, max_panel),
                width = CEIL_DIV(n_panel, n_block);
  char *thread_scratch = scratch + n_unit * n_col * 4;
  const task task = {out, a, mask, bias, sums ? (float *)scratch : NULL, n_row, n_col, n_sum, relu};
#pragma omp parallel num_threads(n_thread)
  {
    const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads(), n = n_block * n_unit;
    configure_tiles();
    for (int64_t u = n * thread / team, end = n * (thread + 1) / team; u < end;) { /* row units, block by block */
      const int64_t block = u / n_unit, row_unit = u % n_unit, count = MIN(n_unit - row_unit, end - u);
      multiply_part(&task, packed, row_unit * ROWS_PER_PART, MIN((row_unit + count) * ROWS_PER_PART, n_row), block * width,
                    MIN((block + 1) * width, n_panel), thread_scratch + thread * scratch_of_part(n_sum));
      u += count;
    }
    release_tiles();
  }
  if (sums) add_partial_sums(sums, task.sums, n_unit, n_col);
}
#endif

/* 1 if bf16 products work here: with AMX, if the system permits it to this process, or with AVX-512. */
int has_half_products(void) {
#ifdef HAS_TILES
  return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0;
#elif defined HAS_HALVES
  return 1;
#else
  return 0;
#endif
}
