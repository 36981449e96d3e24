/* Products of which only some numbers are made: gradients of the states that a ReLU let through, for the others' are zero.
   Known as sampled dense-dense matrix multiplication.

   A part of a row of the left factor lies in registers, and meets four columns at a time, of those that are wanted, in a
   block of columns that lies in the first cache with the numbers of a sum side by side. Four sums have their lanes added up
   together. With the sums of columns, which need no pass of their own, that pays if more than half is not wanted. */

#include "products.h"

#ifdef HAS_PANELS
#define DEEP 64   /* numbers of a sum, */
#ifdef __AVX512F__
#define BESIDE 96 /* columns, */
#else
#define BESIDE 64
#endif
#define NEAR 512  /* and rows, a multiple of ROWS, that are multiplied at a time */
#define AHEAD 12  /* rows that are fetched before their turn: each is far from the one before */
#define MANY 0.45 /* share of what is wanted up to which it pays to leave out the rest */

typedef struct {
  float right[(BESIDE + 1) * DEEP]; /* behind the columns one of zeros, which fills up fours */
  float made[NEAR * BESIDE];
  uint8_t which[NEAR * BESIDE + 8], n_four[NEAR]; /* columns that are wanted, and how many fours of each row */
} workroom;

static uint64_t places[256]; /* of the bits of a byte */
__attribute__((constructor)) static void find_places(void) {
  for (int byte = 0; byte < 256; byte++)
    for (int bit = 7; bit >= 0; bit--)
      if (byte >> bit & 1) places[byte] = places[byte] << 8 | bit;
}

/* -- layout ------------------------------------------------------------------------------------------------------- */

/* n columns of b (n_sum, n_col), DEEP numbers of each, as rows. */
static void lay_columns(float *to, const float *b, int64_t n_col, int64_t n) {
  for (int64_t k = 0; k < DEEP; k += LANES)
    for (int64_t c = 0; c < n; c += 4) {
      if (c + 4 <= n)
        turn_four(to + c * DEEP + k, DEEP, b + k * n_col + c, n_col);
      else
        for (int64_t i = k; i < k + LANES; i++)
          for (int64_t j = c; j < n; j++) to[j * DEEP + i] = b[i * n_col + j];
    }
}

/* Which of n numbers of each of n_row rows are wanted: those that are not zero in `by`, NaN among them. */
static void list(workroom *mine, const float *by, int64_t n_col, int64_t n_row, int64_t n) {
  uint8_t *which = mine->which;
  for (int64_t r = 0; r < n_row; r++, by += n_col) {
    uint8_t *const begin = which;
    prefetch(by, AHEAD * n_col, n, 0, 0);
    int64_t c = 0;
    for (; c + LANES <= n; c += LANES) {
      const int there = not_zero(*(const vector *)(by + c));
      for (int byte = 0; byte < LANES / 8; byte++) {
        const int eight = there >> 8 * byte & 255;
        const uint64_t columns = places[eight] + 0x0101010101010101u * (c + 8 * byte);
        memcpy(which, &columns, 8);
        which += __builtin_popcount(eight);
      }
    }
    for (; c < n; c++)
      if (by[c] != 0.0f) *which++ = c;
    memset(which, BESIDE, 4);
    mine->n_four[r] = PARTS(which - begin, 4);
    which = begin + 4 * mine->n_four[r];
  }
}

/* -- multiplication ----------------------------------------------------------------------------------------------- */

/* The totals of four vectors. */
ALWAYS quarter totals(const vector *sum) {
#ifdef __AVX512F__
  vector pair[2];
  for (int i = 0; i < 2; i++) {
    const __m512i a = (__m512i)sum[2 * i], b = (__m512i)sum[2 * i + 1];
    pair[i] = (vector)_mm512_unpacklo_epi32(a, b) + (vector)_mm512_unpackhi_epi32(a, b);
  }
  const __m512i a = (__m512i)pair[0], b = (__m512i)pair[1];
  const vector all = (vector)_mm512_unpacklo_epi64(a, b) + (vector)_mm512_unpackhi_epi64(a, b);
  quarter part[4];
  memcpy(part, &all, sizeof part);
  return (part[0] + part[1]) + (part[2] + part[3]);
#else
  const __m256 left = _mm256_hadd_ps((__m256)sum[0], (__m256)sum[1]), right = _mm256_hadd_ps((__m256)sum[2], (__m256)sum[3]);
  const __m256 all = _mm256_hadd_ps(left, right);
  return (quarter)_mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
#endif
}

/* What is wanted of n_row rows of a and the columns that are laid out is made, or added to what is. */
ALWAYS void multiply_fours(workroom *mine, const float *a, int64_t n_sum, int64_t n_row, const int plus) {
  const uint8_t *which = mine->which;
  quarter *made = (quarter *)mine->made;
  for (int64_t r = 0; r < n_row; r++, a += n_sum) {
    vector left[DEEP / LANES];
    for (int k = 0; k < DEEP / LANES; k++) left[k] = *(const vector *)(a + k * LANES);
    for (const quarter *end = made + mine->n_four[r]; made < end; made++, which += 4) {
      vector sum[4];
      for (int i = 0; i < 4; i++) {
        const vector *right = (const vector *)(mine->right + which[i] * DEEP);
        sum[i] = left[0] * right[0];
#pragma GCC unroll 8
        for (int k = 1; k < DEEP / LANES; k++) sum[i] += left[k] * right[k];
      }
      quarter found = totals(sum);
      if (plus) found += *made;
      *made = found;
    }
  }
}

/* What is made goes to its places in n columns of `out`, among zeros, and is summed up for each ROWS rows. */
static void put(workroom *mine, float *out, int64_t n_col, int64_t n_row, int64_t n, float *sums) {
  const uint8_t *which = mine->which;
  const float *made = mine->made;
  for (int64_t row = 0; row < n_row; row += ROWS) {
    float sum[BESIDE] = {0};
    for (int64_t r = row; r < UP_TO(row + ROWS, n_row); r++, out += n_col) {
      prefetch(out, AHEAD * n_col, n, 0, 1);
      float line[BESIDE + LANES] = {0}; /* what fills up a four goes behind the columns */
      for (const float *end = made + 4 * mine->n_four[r]; made < end; made += 4, which += 4)
        for (int i = 0; i < 4; i++) line[which[i]] = made[i];
      memcpy(out, line, 4 * n);
      for (int64_t c = 0; c < BESIDE; c++) sum[c] += line[c];
    }
    memcpy(sums + row / ROWS * n_col, sum, 4 * n);
  }
}

/* out (n_row, n_col) = a (n_row, n_sum) · b (n_sum, n_col) where `by`, (n_row, n_col), is not zero; elsewhere zero.
   sums: of each column of it, (n_col). n_sum: a multiple of what numbers_a_sum says.
   room: room_of_sampled bytes for each thread, from a multiple of 64 on, and a row of n_col numbers for each ROWS rows. */
void multiply_where(float *out, float *sums, const float *by, const float *a, const float *b, int64_t n_row, int64_t n_col,
                    int64_t n_sum, char *room, int n_thread) {
  float *parts = (float *)((workroom *)room + n_thread);
#pragma omp parallel num_threads(n_thread)
  {
    const int64_t n_part = PARTS(n_row, ROWS), me = omp_get_thread_num(), all = omp_get_num_threads();
    const int64_t end = UP_TO(n_part * (me + 1) / all * ROWS, n_row);
    workroom *mine = (workroom *)room + me;
    memset(mine->right + BESIDE * DEEP, 0, 4 * DEEP);
    for (int64_t row = n_part * me / all * ROWS; row < end; row += NEAR)
      for (int64_t column = 0; column < n_col; column += BESIDE) {
        const int64_t n_near = UP_TO(end - row, NEAR), n = UP_TO(n_col - column, BESIDE), first = row * n_col + column;
        list(mine, by + first, n_col, n_near, n);
        for (int64_t k = 0; k < n_sum; k += DEEP) {
          lay_columns(mine->right, b + k * n_col + column, n_col, n);
          if (k)
            multiply_fours(mine, a + row * n_sum + k, n_sum, n_near, 1);
          else
            multiply_fours(mine, a + row * n_sum + k, n_sum, n_near, 0);
        }
        put(mine, out + first, n_col, n_near, n, parts + row / ROWS * n_col + column);
      }
  }
  add_parts(sums, parts, PARTS(n_row, ROWS), n_col);
}

int room_of_sampled(void) { return sizeof(workroom); }

int numbers_a_sum(void) { return DEEP; }

int is_sampled(const float *by, int64_t n_row, int64_t n_col) {
  return share_there((factor){by, n_col, 1}, n_row, n_col) < MANY;
}
#endif
