/* Basic operations of the kernels: fp32 vectors, conversion from and to the type of a tensor, and random numbers.

   Written for any compiler with vector types and the OpenMP of GCC. Values that are not finite are propagated. */

#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX512F__
#include <immintrin.h>
#define LANES 16 /* fp32 numbers in a vector register */
#else
#define LANES 8
#endif
#if defined __AVX512BF16__ && defined __AVX512BW__
#define HAS_HALVES /* instructions for bf16 products */
#ifdef __AMX_BF16__
#define HAS_TILES  /* AMX: bf16 products of tiles */
#endif
#endif
#define INLINE static inline __attribute__((always_inline))
#define BLOCK 256        /* numbers that an elementwise pass buffers: a multiple of 4, so that no random word is split */
#define ROWS_PER_PART 64 /* rows whose column sums form one partial sum */

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define CEIL_DIV(n, size) (((n) + (size) - 1) / (size))

extern int omp_get_thread_num(void), omp_get_num_threads(void);

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t naturals __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef uint16_t bf16;

/* Elements of a and b by index, those of b after those of a. index_type: integers as wide as an element. */
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(index_type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(index_type, a, b, ...) __builtin_shuffle(a, b, (index_type){__VA_ARGS__})
#endif

/* -- numbers ------------------------------------------------------------------------------------------------------ */

INLINE uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}

INLINE float float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}

INLINE float widen(bf16 x) { return float_of((uint32_t)x << 16); }

INLINE bf16 narrow(float x) { /* round to nearest, ties to even */
  uint32_t bits = bits_of(x);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return (bf16)(x == x ? rounded : 0x7fc0);
}

/* a where the mask is set, else b. */
INLINE vector blend(integers mask, vector a, vector b) { return (vector)(((integers)a & mask) | ((integers)b & ~mask)); }

/* exp(x) for x <= 0, with an error of at most two units in the last place; 0 below exp(-87). */
INLINE vector exponentials(vector x) {
  const vector one = (vector){0} + 1.0f, magic = one * 12582912.0f; /* 1.5 · 2^23: adding it rounds to an integer */
  integers underflow = x < one * -87.0f;
  x = blend(underflow, one * -87.0f, x);
  vector shifted = x * 1.44269504f + magic, whole = shifted - magic;
  vector r = x - whole * 0.693145752f - whole * 1.42860677e-6f;
  vector p = one / 720.0f;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  p *= (vector)(((integers)shifted - (integers)magic + 127) << 23);
  return (vector)((integers)p & ~underflow);
}

/* The same for one number. */
INLINE float exponential(float x) { return exponentials((vector){0} + x)[0]; }

typedef float float4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t int4 __attribute__((vector_size(16), aligned(4), may_alias));

INLINE float reduce_max(vector v) {
  float4 part[LANES / 4];
  memcpy(part, &v, sizeof part);
  for (int i = 1; i < LANES / 4; i++) {
    int4 greater = part[i] > part[0];
    part[0] = (float4)(((int4)part[i] & greater) | ((int4)part[0] & ~greater));
  }
  float a = part[0][0] > part[0][1] ? part[0][0] : part[0][1], b = part[0][2] > part[0][3] ? part[0][2] : part[0][3];
  return a > b ? a : b;
}

INLINE float reduce_add(vector v) {
  float4 part[LANES / 4];
  memcpy(part, &v, sizeof part);
  for (int i = 1; i < LANES / 4; i++) part[0] += part[i];
  return (part[0][0] + part[0][1]) + (part[0][2] + part[0][3]);
}

INLINE int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* Prefetch n numbers of a tensor from index `first` on. */
INLINE void prefetch(const void *data, int64_t first, int64_t n, int half, const int to_write) {
  const char *from = (const char *)data + first * (half ? 2 : 4);
  for (int64_t i = 0; i < n * (half ? 2 : 4); i += 64)
    if (to_write)
      __builtin_prefetch(from + i, 1);
    else
      __builtin_prefetch(from + i, 0);
}

/* Convert LANES numbers from bf16 to fp32, and back with ties to even. GCC does not find the AVX-512 instructions. */
INLINE vector widen_vector(halves x) {
#ifdef __AVX512F__
  return (vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)x), 16);
#else
  return (vector)(__builtin_convertvector(x, integers) << 16);
#endif
}

INLINE halves narrow_vector(vector x) {
#ifdef __AVX512BF16__ /* flushes values below 2^-126 to 0 */
  return (halves)_mm512_cvtneps_pbh((__m512)x);
#else
  naturals bits = (naturals)x, is_number = (naturals)(x == x);
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  bits = (bits & is_number) | (0x7fc0 & ~is_number);
#ifdef __AVX512F__
  return (halves)_mm512_cvtepi32_epi16((__m512i)bits);
#else
  return __builtin_convertvector(bits, halves);
#endif
#endif
}

/* total = the sum of n_part rows of n numbers, added in row order. */
static inline void add_partial_sums(float *restrict total, const float *restrict parts, int64_t n_part, int64_t n) {
  memset(total, 0, 4 * n);
  for (int64_t row = 0; row < n_part; row++)
#pragma omp simd
    for (int64_t i = 0; i < n; i++) total[i] += parts[row * n + i];
}

/* Read LANES numbers of a tensor from index `first` on, or one number. */
INLINE vector vector_at(const void *x, int64_t first, int half) {
  return half ? widen_vector(*(const halves *)((const bf16 *)x + first)) : *(const vector *)((const float *)x + first);
}

INLINE float number_at(const void *x, int64_t index, int half) {
  return half ? widen(((const bf16 *)x)[index]) : ((const float *)x)[index];
}

/* Maximum of n numbers of a tensor from index `first` on, apart from NaN; -inf if there are none. */
static inline float max_of(const void *x, int64_t first, int64_t n, int half) {
  vector maxima = (vector){0} - INFINITY;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    const vector next = vector_at(x, first + i, half);
    maxima = blend(next > maxima, next, maxima);
  }
  float max = reduce_max(maxima);
  for (; i < n; i++) max = number_at(x, first + i, half) > max ? number_at(x, first + i, half) : max;
  return max;
}

INLINE void load(float *restrict to, const void *restrict from, int64_t first, int64_t n, int half) {
  if (!half) {
    memcpy(to, (const float *)from + first, 4 * n);
    return;
  }
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) *(vector *)(to + i) = vector_at(from, first + i, half);
  for (; i < n; i++) to[i] = number_at(from, first + i, half);
}

/* Write one number, or LANES numbers, into a tensor. */
INLINE void put_number(void *to, int64_t index, float x, int half) {
  if (half)
    ((bf16 *)to)[index] = narrow(x);
  else
    ((float *)to)[index] = x;
}

INLINE void put_vector(void *to, int64_t first, vector x, int half) {
  if (half)
    *(halves *)((bf16 *)to + first) = narrow_vector(x);
  else
    *(vector *)((float *)to + first) = x;
}

INLINE void store(void *restrict to, int64_t first, const float *restrict from, int64_t n, int half) {
  if (!half) {
    memcpy((float *)to + first, from, 4 * n);
    return;
  }
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) put_vector(to, first + i, *(const vector *)(from + i), half);
  for (; i < n; i++) put_number(to, first + i, from[i], half);
}

#ifdef __AVX512F__
/* 16 bytes from each of four addresses, `distance` bytes apart. */
INLINE __m512i gather4(const void *first, int64_t distance) {
  const char *base = first;
  __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const void *)base));
  x = _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(base + distance)), 1);
  x = _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(base + 2 * distance)), 2);
  return _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(base + 3 * distance)), 3);
}

/* Transpose four columns of LANES rows of 32-bit numbers into four rows. Strides are in numbers. */
INLINE void transpose4(void *to, int64_t to_stride, const void *from, int64_t from_stride) {
  __m512i row[4], pair[4]; /* of every fourth row four numbers */
  for (int i = 0; i < 4; i++) row[i] = gather4((const char *)from + 4 * i * from_stride, 16 * from_stride);
  for (int i = 0; i < 2; i++) {
    pair[i] = _mm512_unpacklo_epi32(row[2 * i], row[2 * i + 1]);
    pair[2 + i] = _mm512_unpackhi_epi32(row[2 * i], row[2 * i + 1]);
  }
  for (int i = 0; i < 2; i++) {
    _mm512_storeu_si512((char *)to + 8 * i * to_stride, _mm512_unpacklo_epi64(pair[2 * i], pair[2 * i + 1]));
    _mm512_storeu_si512((char *)to + (8 * i + 4) * to_stride, _mm512_unpackhi_epi64(pair[2 * i], pair[2 * i + 1]));
  }
}
#else
INLINE void transpose4(void *to, int64_t to_stride, const void *from, int64_t from_stride) {
  for (int64_t r = 0; r < LANES; r += 4) {
    float4 row[4], pair[4];
    for (int i = 0; i < 4; i++) row[i] = *(const float4 *)((const float *)from + (r + i) * from_stride);
    for (int i = 0; i < 4; i += 2) {
      pair[i] = SHUFFLE(int4, row[i], row[i + 1], 0, 4, 1, 5);
      pair[i + 1] = SHUFFLE(int4, row[i], row[i + 1], 2, 6, 3, 7);
    }
    for (int i = 0; i < 2; i++) {
      float *out = (float *)to + 2 * i * to_stride + r;
      *(float4 *)out = SHUFFLE(int4, pair[i], pair[i + 2], 0, 1, 4, 5);
      *(float4 *)(out + to_stride) = SHUFFLE(int4, pair[i], pair[i + 2], 2, 3, 6, 7);
    }
  }
}
#endif

/* Transpose (n_row, n_col) to (n_col, n_row). Strides are in numbers. */
static inline void transpose(float *restrict to, int64_t to_stride, const float *restrict from, int64_t from_stride,
                             int64_t n_row, int64_t n_col) {
  for (int64_t r = 0; r < n_row; r += LANES)
    for (int64_t c = 0; c < n_col; c += 4) {
      if (r + LANES <= n_row && c + 4 <= n_col)
        transpose4(to + c * to_stride + r, to_stride, from + r * from_stride + c, from_stride);
      else
        for (int64_t i = r; i < MIN(r + LANES, n_row); i++)
          for (int64_t j = c; j < MIN(c + 4, n_col); j++) to[j * to_stride + i] = from[i * from_stride + j];
    }
}

/* -- dropout ------------------------------------------------------------------------------------------------------ */

/* Draw 16-bit random numbers, four from each word first_word, first_word + 1, ... of a seed. SplitMix64 (Steele, Lea and
   Flood 2014, "Fast splittable pseudorandom number generators") computes any word without those before it. */
static inline void draw(uint16_t *restrict draws, uint64_t seed, uint64_t first_word, int64_t n_word) {
#pragma omp simd
  for (int64_t i = 0; i < n_word; i++) {
    uint64_t z = seed + (first_word + i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    memcpy(draws + 4 * i, &z, 8);
  }
}

/* x · scale where the random number is at least n_drop (of 65,536), else 0, even if x is not finite. */
INLINE vector dropout_vector(vector x, const uint16_t *draws, int n_drop, float scale) {
#ifdef __AVX512F__
  const integers drawn = (integers)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)draws));
#else
  const integers drawn = __builtin_convertvector(*(const halves *)draws, integers);
#endif
  return (vector)((integers)(x * scale) & (drawn >= n_drop));
}

/* The same for n numbers, in place. */
static inline void dropout(float *restrict x, const uint16_t *restrict draws, int64_t n, int n_drop, float scale) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) *(vector *)(x + i) = dropout_vector(*(vector *)(x + i), draws + i, n_drop, scale);
  for (; i < n; i++) x[i] = draws[i] >= n_drop ? x[i] * scale : 0.0f;
}
