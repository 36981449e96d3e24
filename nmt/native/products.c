/* Matrix products of fp32, shared out among threads. What multiplies a part of one is `tiles.c` or `panels.c`, whichever
   the processor has. */

#include "products.h"
#include "tiles.h"

#if defined HAS_TILES || defined HAS_PANELS
/* out (n_row, n_col) = a (n_row, n_sum) · b (n_sum, n_col), or that is added to it. Numbers of a sum are dense, or they are
   `stride` numbers apart; then those of all sums are side by side. b may be absent where it is `laid` out. bias may be
   absent; it is added, and the ReLU taken if wanted, which lets NaN through. room: room_of_thread bytes for each thread,
   from a multiple of 64 on. */
void multiply(float *out, int add, const float *a, int64_t a_stride, int a_dense, const float *b, int64_t b_stride,
              int b_dense, const char *laid, const float *bias, int relu, int64_t n_row, int64_t n_col, int64_t n_sum,
              char *room, int n_thread) {
  const target to = {out, bias, n_row, n_col, add, relu};
  const factor left = {a, a_stride, a_dense}, right = {b, b_stride, b_dense};
#pragma omp parallel num_threads(n_thread)
  {
    /* The larger side is parted, so that little is laid out more than once. */
    const int by_rows = n_row > n_col, unit = by_rows ? unit_of_rows : unit_of_columns;
    const int64_t size = by_rows ? n_row : n_col, n_unit = PARTS(size, unit);
    const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
    const int64_t from = n_unit * me / all * unit, end = UP_TO(n_unit * (me + 1) / all * unit, size);
    char *mine = room + me * room_of_thread();
    if (by_rows)
      multiply_part(&to, left, right, laid, n_sum, from, end, 0, n_col, mine);
    else
      multiply_part(&to, left, right, laid, n_sum, 0, n_row, from, end, mine);
  }
}
#endif
