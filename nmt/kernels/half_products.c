/* Products of bf16, (N, D) by (D, E), whose left factor has its rows dense: what a layer makes of its inputs, and their
   gradient by that of its outputs. What follows a product is done with its sums as they are made.

   The right factor is laid out by tiles as a whole. Of it as many columns as the second cache of a core holds are multiplied
   by one panel of 32 rows after the other. For tiles the next panel is laid out meanwhile; registers read it where it is. A
   sum is made at once, whole: none depends on the number of threads, or on what other rows there are. */

#include "halves.h"

#ifdef HAS_TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

#ifdef HAS_HALVES
#define NEAR (1 << 20)      /* bytes of the right factor that the second cache holds beside the rest */
#define FEW 4               /* panels of it, for which it pays to lay out one of the left factor */
#define OF_STEP (2 * TILE)  /* bytes of the numbers of a panel that are summed at once */

/* What is made: (n_row, n_col), of sums of n_sum numbers. */
typedef struct {
  bf16 *out;
  const bf16 *a, *kept; /* kept, bias and sums may be absent */
  const float *bias;
  float *sums; /* of the columns of each ROWS rows */
  int64_t n_row, n_col, n_sum;
  int relu;
} task;

/* -- layout ------------------------------------------------------------------------------------------------------- */

/* 16 columns of the right factor, of each 32 numbers that lie side by side, as a tile: rows of pairs. */
ALWAYS void lay_turned(char *to, const void *x, int64_t first, int64_t stride, const int half) {
  __m512i column[SIDE];
  for (int64_t i = 0; i < SIDE; i++) column[i] = halves_at(x, first + i * stride, half);
  for (int64_t c = 0; c < SIDE; c += 4) turn_four(to + c * LINE, SIDE, (const int32_t *)column + c, SIDE);
}

/* A step of a panel of the right factor: 32 columns, 32 numbers of their sums. */
ALWAYS void lay_step(char *to, const void *b, int64_t stride, const int half, int dense, int64_t panel, int64_t step) {
  if (dense)
    for (int64_t t = 0; t < 2; t++)
      lay_turned(to + t * TILE, b, (panel * PANEL + t * SIDE) * stride + step * STEP, stride, half);
  else
    lay_pairs(to, b, step * STEP * stride + panel * PANEL, stride, half);
}

/* Bytes of a right factor that is laid out. */
int64_t size_of_half(int64_t n_col, int64_t n_sum) { return 2 * n_col * n_sum; }

/* n_col columns from `column` on of a right factor, and n numbers from `first` on of the n_sum of each: from b, of bf16 or
   of fp32. In that numbers of a column are side by side, if they are `dense`, and columns `stride` apart, or the other way
   round. */
void lay_half(char *to, const void *b, int half, int64_t stride, int dense, int64_t column, int64_t n_col, int64_t first,
              int64_t n, int64_t n_sum, int n_thread) {
  const int64_t n_panel = n_col / PANEL, n_step = n / STEP;
#pragma omp parallel for schedule(static) num_threads(n_thread)
  for (int64_t unit = 0; unit < n_panel * n_step; unit++) { /* in the order of memory */
    const int64_t panel = dense ? unit / n_step : unit % n_panel, step = dense ? unit % n_step : unit / n_panel;
    char *place = to + ((column / PANEL + panel) * (n_sum / STEP) + first / STEP + step) * OF_STEP;
    if (half)
      lay_step(place, b, stride, 1, dense, panel, step);
    else
      lay_step(place, b, stride, 0, dense, panel, step);
  }
}

/* Lines line .. end of the panel of the left factor that begins with `row`; rows that are not there are 0. */
static void lay_lines(char *to, const task *task, int64_t row, int64_t line, int64_t end) {
  const int64_t n_step = task->n_sum / STEP;
  int64_t i = line / n_step, s = line % n_step;
  for (; line < end; line++) {
    const bf16 *at = task->a + (row + i) * task->n_sum + s * STEP;
    *(__m512i *)(to + s * OF_STEP + i * LINE) = row + i < task->n_row ? _mm512_loadu_si512(at) : (__m512i){0};
    if (++s == n_step) i++, s = 0;
  }
}

/* -- multiplication ----------------------------------------------------------------------------------------------- */

/* What will be written of n rows and a panel of columns, and read beside it. */
ALWAYS void fetch(const task *task, int64_t row, int64_t n, int64_t column) {
  for (int64_t i = 0; i < n; i++) {
    const int64_t place = (row + i) * task->n_col + column;
    __builtin_prefetch(task->out + place, 1);
    if (task->kept) __builtin_prefetch(task->kept + place);
  }
}

/* What belongs to two vectors of columns: what is added to each row, and the sums of rows of the result. */
typedef struct {
  vector bias[2], total[2];
  float *sums; /* may be absent */
} columns;

ALWAYS columns columns_at(const task *task, int64_t row, int64_t column) {
  columns found = {.sums = task->sums ? task->sums + row / ROWS * task->n_col + column : NULL};
  for (int t = 0; t < 2; t++) {
    if (task->bias) found.bias[t] = *(const vector *)(task->bias + column + t * SIDE);
    if (found.sums && row % ROWS) found.total[t] = *(const vector *)(found.sums + t * SIDE); /* of rows before */
  }
  return found;
}

ALWAYS void keep_sums(const columns *columns) {
  for (int t = 0; t < 2 && columns->sums; t++) *(vector *)(columns->sums + t * SIDE) = columns->total[t];
}

/* Two vectors of sums, to a place of the result. */
ALWAYS void put(const task *task, columns *columns, int64_t place, vector left, vector right) {
  vector x[2] = {left, right};
  for (int t = 0; t < 2; t++) {
    x[t] += columns->bias[t];
    if (task->relu) x[t] = (vector)((integers)x[t] & ~(x[t] < 0.0f));
    if (task->kept) x[t] = (vector)((integers)x[t] & (vector_at(task->kept, place + t * SIDE, 1) != 0.0f));
  }
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)x[1], (__m512)x[0]);
  _mm512_storeu_si512(task->out + place, both);
  if (!columns->sums) return;
  columns->total[0] += widened((halves)_mm512_castsi512_si256(both));
  columns->total[1] += widened((halves)_mm512_extracti64x4_epi64(both, 1));
}

#ifdef HAS_TILES
/* Bytes that a thread needs: two panels of the left factor, of which one is laid out while the other is multiplied, and
   sums. */
ALWAYS int64_t room_of_part(int64_t n_sum) { return 2 * (n_sum / STEP * OF_STEP) + OF_SUMS; }

/* Rows row .. end_row, a multiple of ROWS where not all, and panels `first` .. end of columns of the result. */
static void multiply_part(const task *task, const char *right, int64_t row, int64_t end_row, int64_t first, int64_t end,
                          char *room) {
  const int64_t n_step = task->n_sum / STEP, size = n_step * OF_STEP, n_panel = end - first, n_line = PANEL * n_step;
  char *left = room, *next = room + size;
  const float *sums = (const float *)(room + 2 * size);
  lay_lines(left, task, row, 0, n_line);
  for (; row < end_row; row += PANEL) {
    const int64_t to_lay = row + PANEL < end_row ? n_line : 0, n = UP_TO(end_row - row, PANEL);
    for (int64_t j = 0; j < n_panel; j++) {
      const int64_t column = (first + j) * PANEL;
      fetch(task, row, n, column);
      multiply_halves((char *)sums, NULL, left, right + (first + j) * size, n_step);
      lay_lines(next, task, row + PANEL, to_lay * j / n_panel, to_lay * (j + 1) / n_panel);
      columns columns = columns_at(task, row, column);
      for (int64_t i = 0; i < n; i++) {
        const float *from = sums + i / SIDE * 2 * SIDE * SIDE + i % SIDE * SIDE;
        put(task, &columns, (row + i) * task->n_col + column, *(const vector *)from,
            *(const vector *)(from + SIDE * SIDE));
      }
      keep_sums(&columns);
    }
    char *other = left;
    left = next, next = other;
  }
}
#else
/* Bytes that a thread needs: for a panel of the left factor that is not whole. */
ALWAYS int64_t room_of_part(int64_t n_sum) { return n_sum / STEP * OF_STEP; }

/* A strip of up to n rows times a panel, to a row and a column of the result. */
ALWAYS void multiply_to(const task *task, const int n, const char *a, int64_t apart, int64_t of_step, const char *b,
                        int64_t row, int64_t column) {
  const int64_t n_row = UP_TO(task->n_row - row, n);
  if (n_row <= 0) return;
  __m512 sum[STRIP][2] = {0};
  fetch(task, row, n_row, column);
  multiply_strip(sum, n, a, apart, of_step, b, task->n_sum / STEP);
  columns columns = columns_at(task, row, column);
#pragma GCC unroll 11
  for (int i = 0; i < n; i++)
    if (i < n_row) put(task, &columns, (row + i) * task->n_col + column, (vector)sum[i][0], (vector)sum[i][1]);
  keep_sums(&columns);
}

/* Rows row .. end_row, a multiple of ROWS where not all, and panels `first` .. end of columns of the result. */
static void multiply_part(const task *task, const char *right, int64_t row, int64_t end_row, int64_t first, int64_t end,
                          char *room) {
  const int64_t n_step = task->n_sum / STEP;
  for (; row < end_row; row += PANEL) {
    const char *left = (const char *)(task->a + row * task->n_sum);
    int64_t apart = 2 * task->n_sum, of_step = LINE;
    if (end_row - row < PANEL) {
      lay_lines(room, task, row, 0, PANEL * n_step);
      left = room, apart = LINE, of_step = OF_STEP;
    }
    for (int64_t j = first; j < end; j++) {
      const char *panel = right + j * n_step * OF_STEP;
      for (int64_t i = 0; i < 2 * STRIP; i += STRIP)
        multiply_to(task, STRIP, left + i * apart, apart, of_step, panel, row + i, j * PANEL);
      multiply_to(task, PANEL - 2 * STRIP, left + 2 * STRIP * apart, apart, of_step, panel, row + 2 * STRIP, j * PANEL);
    }
  }
}
#endif

/* Bytes that `multiply_half` needs: for the sums of columns, and for each thread. */
int64_t room_of_half(int64_t n_row, int64_t n_col, int64_t n_sum, int n_thread) {
  return PARTS(n_row, ROWS) * n_col * 4 + n_thread * room_of_part(n_sum);
}

/* Whether it multiplies such: whole panels of columns, of which the second cache holds a few, and whole steps of sums. */
int takes_half(int64_t n_col, int64_t n_sum) {
  return n_col % PANEL == 0 && n_sum % STEP == 0 && n_sum > 0 && n_sum / STEP * OF_STEP <= NEAR / FEW;
}

/* out (n_row, n_col) = a (n_row, n_sum) · b (n_sum, n_col), plus bias (n_col) of fp32, then its ReLU if wanted, then 0 where
   `kept` (n_row, n_col) is; and the sums of the columns of that, (n_col) of fp32. bias, kept and sums may be absent. laid: b
   as `lay_half` lays it out; room: room_of_half bytes; both from multiples of 64 on. */
void multiply_half(bf16 *out, const bf16 *a, const char *laid, const float *bias, int relu, const bf16 *kept, float *sums,
                   int64_t n_row, int64_t n_col, int64_t n_sum, char *room, int n_thread) {
  const int64_t n_panel = n_col / PANEL, n_unit = PARTS(n_row, ROWS);
  const int64_t most = NEAR / (n_sum / STEP * OF_STEP), n_block = PARTS(n_panel, most), width = PARTS(n_panel, n_block);
  char *rest = room + n_unit * n_col * 4;
  const task task = {out, a, kept, bias, sums ? (float *)room : NULL, n_row, n_col, n_sum, relu};
#pragma omp parallel num_threads(n_thread)
  {
    const int64_t me = omp_get_thread_num(), all = omp_get_num_threads(), n = n_block * n_unit;
    configure();
    for (int64_t at = n * me / all, end = n * (me + 1) / all; at < end;) { /* units of rows of one block after the other */
      const int64_t block = at / n_unit, unit = at % n_unit, count = UP_TO(n_unit - unit, end - at);
      multiply_part(&task, laid, unit * ROWS, UP_TO((unit + count) * ROWS, n_row), block * width,
                    UP_TO((block + 1) * width, n_panel), rest + me * room_of_part(n_sum));
      at += count;
    }
    release();
  }
  if (sums) add_parts(sums, task.sums, n_unit, n_col);
}
#endif

/* Whether products of bf16 can be made here: there are tiles, and the system lets this process use them, or registers do. */
int has_half_products(void) {
#ifdef HAS_TILES
  return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0;
#elif defined HAS_HALVES
  return 1;
#else
  return 0;
#endif
}
