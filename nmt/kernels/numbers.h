/* Numbers as the kernels hold them: fp32, in vectors, whatever the type of a tensor is; and the words of chance.

   Written for any compiler that knows vector types and OpenMP (GCC, Clang). No number is hidden: what is not finite stays
   so. */

#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX512F__
#include <immintrin.h>
#define LANES 16 /* numbers of fp32 that the processor takes at a time */
#else
#define LANES 8
#endif
#if defined __AVX512BF16__ && defined __AVX512BW__
#define HAS_HALVES /* instructions for products of bf16, */
#ifdef __AMX_BF16__
#define HAS_TILES  /* of tiles at a time */
#endif
#endif
#define ALWAYS static inline __attribute__((always_inline))
#define BLOCK 256 /* numbers that elementwise passes hold at a time: multiples of 4, so that words of chance are whole */
#define ROWS 64 /* rows whose sums are one part of the sums over all rows */

#define UP_TO(n, most) ((n) < (most) ? (n) : (most))
#define PARTS(n, size) (((n) + (size) - 1) / (size))

extern int omp_get_thread_num(void), omp_get_num_threads(void);

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t naturals __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef uint16_t bf16;

/* Numbers of vectors a and b by their places: those of b come after those of a. `places`: integers as wide as a number. */
#if defined(__clang__) || __GNUC__ >= 12
#define MIX(places, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MIX(places, a, b, ...) __builtin_shuffle(a, b, (places){__VA_ARGS__})
#endif

/* -- numbers ------------------------------------------------------------------------------------------------------ */

ALWAYS uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}

ALWAYS float float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}

ALWAYS float widen(bf16 x) { return float_of((uint32_t)x << 16); }

ALWAYS bf16 narrow(float x) { /* to the nearest, ties to even */
  uint32_t u = bits_of(x);
  uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return (bf16)(x == x ? rounded : 0x7fc0);
}

/* exp(x) for x <= 0, to two units of the last place; 0 where it would be less than exp(-87). */
ALWAYS vector exponentials(vector x) {
  const vector one = (vector){0} + 1.0f, magic = one * 12582912.0f; /* 1.5 · 2^23: adding it rounds to whole numbers */
  integers tiny = x < one * -87.0f;
  x = (vector)(((integers)x & ~tiny) | ((integers)(one * -87.0f) & tiny));
  vector t = x * 1.44269504f + magic, n = t - magic;
  vector r = x - n * 0.693145752f - n * 1.42860677e-6f;
  vector p = one / 720.0f;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  p *= (vector)(((integers)t - (integers)magic + 127) << 23);
  return (vector)((integers)p & ~tiny);
}

/* The same of one number. */
ALWAYS float exponential(float x) { return exponentials((vector){0} + x)[0]; }

typedef float quarter __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t integers_of_quarter __attribute__((vector_size(16), aligned(4), may_alias));

ALWAYS float largest(vector v) {
  quarter part[LANES / 4];
  memcpy(part, &v, sizeof part);
  for (int i = 1; i < LANES / 4; i++) {
    integers_of_quarter above = part[i] > part[0];
    part[0] = (quarter)(((integers_of_quarter)part[i] & above) | ((integers_of_quarter)part[0] & ~above));
  }
  float a = part[0][0] > part[0][1] ? part[0][0] : part[0][1], b = part[0][2] > part[0][3] ? part[0][2] : part[0][3];
  return a > b ? a : b;
}

ALWAYS float total_of(vector v) {
  quarter part[LANES / 4];
  memcpy(part, &v, sizeof part);
  for (int i = 1; i < LANES / 4; i++) part[0] += part[i];
  return (part[0][0] + part[0][1]) + (part[0][2] + part[0][3]);
}

ALWAYS int64_t up(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* What will be read or written in a while: by then it is in the cache. */
ALWAYS void prefetch(const void *at, int64_t first, int64_t n, int half, const int to_write) {
  const char *from = (const char *)at + first * (half ? 2 : 4);
  for (int64_t i = 0; i < n * (half ? 2 : 4); i += 64)
    if (to_write)
      __builtin_prefetch(from + i, 1);
    else
      __builtin_prefetch(from + i, 0);
}

/* LANES of bf16 as fp32, and back, to the nearest, ties to even. Of AVX-512, GCC finds the instructions for neither. */
ALWAYS vector widened(halves x) {
#ifdef __AVX512F__
  return (vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)x), 16);
#else
  return (vector)(__builtin_convertvector(x, integers) << 16);
#endif
}

ALWAYS halves narrowed(vector x) {
#ifdef __AVX512BF16__ /* to which what is less than 2^-126 is 0 */
  return (halves)_mm512_cvtneps_pbh((__m512)x);
#else
  naturals u = (naturals)x, number = (naturals)(x == x);
  u = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  u = (u & number) | (0x7fc0 & ~number);
#ifdef __AVX512F__
  return (halves)_mm512_cvtepi32_epi16((__m512i)u);
#else
  return __builtin_convertvector(u, halves);
#endif
#endif
}

/* total = the sum of n_part rows of n numbers each, in their order. */
static inline void add_parts(float *restrict total, const float *restrict parts, int64_t n_part, int64_t n) {
  memset(total, 0, 4 * n);
  for (int64_t part = 0; part < n_part; part++)
#pragma omp simd
    for (int64_t i = 0; i < n; i++) total[i] += parts[part * n + i];
}

/* LANES numbers of a tensor from `first` on, and one. */
ALWAYS vector vector_at(const void *x, int64_t first, int half) {
  return half ? widened(*(const halves *)((const bf16 *)x + first)) : *(const vector *)((const float *)x + first);
}

ALWAYS float number_at(const void *x, int64_t at, int half) {
  return half ? widen(((const bf16 *)x)[at]) : ((const float *)x)[at];
}

ALWAYS void load(float *restrict to, const void *restrict from, int64_t first, int64_t n, int half) {
  if (!half) {
    memcpy(to, (const float *)from + first, 4 * n);
    return;
  }
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) *(vector *)(to + i) = vector_at(from, first + i, half);
  for (; i < n; i++) to[i] = number_at(from, first + i, half);
}

/* One number and LANES of them, written into a tensor. */
ALWAYS void put_number(void *to, int64_t at, float x, int half) {
  if (half)
    ((bf16 *)to)[at] = narrow(x);
  else
    ((float *)to)[at] = x;
}

ALWAYS void put_vector(void *to, int64_t first, vector x, int half) {
  if (half)
    *(halves *)((bf16 *)to + first) = narrowed(x);
  else
    *(vector *)((float *)to + first) = x;
}

ALWAYS void store(void *restrict to, int64_t first, const float *restrict from, int64_t n, int half) {
  if (!half) {
    memcpy((float *)to + first, from, 4 * n);
    return;
  }
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) put_vector(to, first + i, *(const vector *)(from + i), half);
  for (; i < n; i++) put_number(to, first + i, from[i], half);
}

#ifdef __AVX512F__
/* 16 bytes of each of four places, `apart` bytes from one to the next. */
ALWAYS __m512i gathered(const void *at, int64_t apart) {
  const char *from = at;
  __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const void *)from));
  x = _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(from + apart)), 1);
  x = _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(from + 2 * apart)), 2);
  return _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(from + 3 * apart)), 3);
}

/* Four columns of LANES rows, numbers of 32 bits, as four rows; stride and to_row: numbers from row to row. */
ALWAYS void turn_four(void *to, int64_t to_row, const void *from, int64_t stride) {
  __m512i row[4], pair[4]; /* of every fourth row four numbers */
  for (int i = 0; i < 4; i++) row[i] = gathered((const char *)from + 4 * i * stride, 16 * stride);
  for (int i = 0; i < 2; i++) {
    pair[i] = _mm512_unpacklo_epi32(row[2 * i], row[2 * i + 1]);
    pair[2 + i] = _mm512_unpackhi_epi32(row[2 * i], row[2 * i + 1]);
  }
  for (int i = 0; i < 2; i++) {
    _mm512_storeu_si512((char *)to + 8 * i * to_row, _mm512_unpacklo_epi64(pair[2 * i], pair[2 * i + 1]));
    _mm512_storeu_si512((char *)to + (8 * i + 4) * to_row, _mm512_unpackhi_epi64(pair[2 * i], pair[2 * i + 1]));
  }
}
#else
ALWAYS void turn_four(void *to, int64_t to_row, const void *from, int64_t stride) {
  for (int64_t r = 0; r < LANES; r += 4) {
    quarter row[4], pair[4];
    for (int i = 0; i < 4; i++) row[i] = *(const quarter *)((const float *)from + (r + i) * stride);
    for (int i = 0; i < 4; i += 2) {
      pair[i] = MIX(integers_of_quarter, row[i], row[i + 1], 0, 4, 1, 5);
      pair[i + 1] = MIX(integers_of_quarter, row[i], row[i + 1], 2, 6, 3, 7);
    }
    for (int i = 0; i < 2; i++) {
      float *place = (float *)to + 2 * i * to_row + r;
      *(quarter *)place = MIX(integers_of_quarter, pair[i], pair[i + 2], 0, 1, 4, 5);
      *(quarter *)(place + to_row) = MIX(integers_of_quarter, pair[i], pair[i + 2], 2, 3, 6, 7);
    }
  }
}
#endif

/* -- chance ------------------------------------------------------------------------------------------------------- */

/* Four decisions a word, words first, first + 1, ... of a seed: SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable
   pseudorandom number generators"), whose words need not be drawn one after the other. */
static inline void draw(uint16_t *restrict decision, uint64_t seed, uint64_t first, int64_t n_word) {
#pragma omp simd
  for (int64_t i = 0; i < n_word; i++) {
    uint64_t z = seed + (first + i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    memcpy(decision + 4 * i, &z, 8);
  }
}

/* x · scale where a decision is at least n_drop of 65,536, else 0; a number that is not finite is left out alike. */
ALWAYS vector kept(vector x, const uint16_t *decision, int n_drop, float scale) {
#ifdef __AVX512F__
  const integers chance = (integers)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)decision));
#else
  const integers chance = __builtin_convertvector(*(const halves *)decision, integers);
#endif
  return (vector)((integers)(x * scale) & (chance >= n_drop));
}

/* x · scale, in place, where a decision is at least n_drop of 65,536, else 0. */
static inline void drop(float *restrict x, const uint16_t *restrict decision, int64_t n, int n_drop, float scale) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) *(vector *)(x + i) = kept(*(vector *)(x + i), decision + i, n_drop, scale);
  for (; i < n; i++) x[i] = decision[i] >= n_drop ? x[i] * scale : 0.0f;
}
