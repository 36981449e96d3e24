/* The AVX-512 and AMX intrinsics of the kernels, emulated in plain C: slow, but correct on any x86-64 processor.

   It replaces the compiler's immintrin.h, so that tests/kernels/test_emulated.py can run kernels without these instructions.
   Names and meaning follow Intel's Intrinsics Guide and, for tiles, the Software Developer's Manual. An operation that the
   processor would refuse, such as a tile before tiles are configured, ends the process. */

#pragma once

#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MADE static inline

typedef long long __m128i __attribute__((vector_size(16), may_alias));
typedef long long __m256i __attribute__((vector_size(32), may_alias));
typedef long long __m512i __attribute__((vector_size(64), may_alias));
typedef float __m512 __attribute__((vector_size(64), may_alias));
typedef short __m512bh __attribute__((vector_size(64), may_alias));
typedef uint16_t __mmask16;

/* The contents of a register, in the widths that instructions use. */
typedef union {
  __m512i whole;
  __m512 floats;
  __m256i half[2];
  __m128i quarter[4];
  uint64_t of64[8];
  uint32_t of32[16];
  uint16_t of16[32];
  float number[16];
} numbers_of;

/* -- memory ------------------------------------------------------------------------------------------------------- */

MADE __m128i _mm_loadu_si128(const void *from) {
  __m128i x;
  memcpy(&x, from, sizeof x);
  return x;
}

MADE __m256i _mm256_loadu_si256(const void *from) {
  __m256i x;
  memcpy(&x, from, sizeof x);
  return x;
}

MADE __m512i _mm512_loadu_si512(const void *from) {
  __m512i x;
  memcpy(&x, from, sizeof x);
  return x;
}

MADE void _mm512_storeu_si512(void *to, __m512i x) { memcpy(to, &x, sizeof x); }

MADE void _mm512_store_si512(void *to, __m512i x) {
  if ((uintptr_t)to % 64) __builtin_trap();
  memcpy(to, &x, sizeof x);
}

MADE __m512 _mm512_maskz_loadu_ps(__mmask16 there, const float *from) {
  numbers_of x = {{0}};
  for (int i = 0; i < 16; i++)
    if (there >> i & 1) x.number[i] = from[i];
  return x.floats;
}

MADE void _mm512_mask_storeu_ps(float *to, __mmask16 there, __m512 values) {
  const numbers_of x = {.floats = values};
  for (int i = 0; i < 16; i++)
    if (there >> i & 1) to[i] = x.number[i];
}

/* -- parts of registers ------------------------------------------------------------------------------------------- */

MADE __m512i _mm512_castsi128_si512(__m128i part) {
  numbers_of x;
  memset(&x, 0xff, sizeof x); /* the other bits are undefined */
  x.quarter[0] = part;
  return x.whole;
}

MADE __m256i _mm512_castsi512_si256(__m512i a) { return ((numbers_of){.whole = a}).half[0]; }

MADE __m256i _mm512_extracti64x4_epi64(__m512i a, int which) { return ((numbers_of){.whole = a}).half[which]; }

MADE __m512i _mm512_inserti32x4(__m512i a, __m128i part, int which) {
  numbers_of x = {.whole = a};
  x.quarter[which] = part;
  return x.whole;
}

#define UNPACK(name, field, n, from) /* of each 16 bytes, n numbers, those `from` on: of a and b in turns */ \
  MADE __m512i name(__m512i a, __m512i b) {                                                                  \
    const numbers_of x = {.whole = a}, y = {.whole = b};                                                     \
    numbers_of out;                                                                                          \
    for (int first = 0; first < 4 * (n); first += (n))                                                       \
      for (int i = 0; i < (n) / 2; i++) {                                                                    \
        out.field[first + 2 * i] = x.field[first + (from) + i];                                              \
        out.field[first + 2 * i + 1] = y.field[first + (from) + i];                                          \
      }                                                                                                      \
    return out.whole;                                                                                        \
  }
UNPACK(_mm512_unpacklo_epi16, of16, 8, 0)
UNPACK(_mm512_unpackhi_epi16, of16, 8, 4)
UNPACK(_mm512_unpacklo_epi32, of32, 4, 0)
UNPACK(_mm512_unpackhi_epi32, of32, 4, 2)
UNPACK(_mm512_unpacklo_epi64, of64, 2, 0)
UNPACK(_mm512_unpackhi_epi64, of64, 2, 1)

MADE __m512i _mm512_permutex2var_epi16(__m512i a, __m512i places, __m512i b) {
  const numbers_of x = {.whole = a}, y = {.whole = b}, at = {.whole = places};
  numbers_of out;
  for (int i = 0; i < 32; i++) out.of16[i] = (at.of16[i] & 32 ? y : x).of16[at.of16[i] & 31];
  return out.whole;
}

MADE __m512i _mm512_set1_epi16(short value) {
  numbers_of x;
  for (int i = 0; i < 32; i++) x.of16[i] = (uint16_t)value;
  return x.whole;
}

MADE __m512i _mm512_set1_epi32(int value) {
  numbers_of x;
  for (int i = 0; i < 16; i++) x.of32[i] = (uint32_t)value;
  return x.whole;
}

static inline __m512i registered(const short *from_the_last) {
  numbers_of x;
  for (int i = 0; i < 32; i++) x.of16[i] = (uint16_t)from_the_last[31 - i];
  return x.whole;
}
#define _mm512_set_epi16(...) registered((const short[32]){__VA_ARGS__})

MADE __m512i _mm512_add_epi16(__m512i a, __m512i b) {
  numbers_of x = {.whole = a};
  const numbers_of y = {.whole = b};
  for (int i = 0; i < 32; i++) x.of16[i] += y.of16[i];
  return x.whole;
}

MADE __m512i _mm512_slli_epi32(__m512i a, int n) {
  numbers_of x = {.whole = a};
  for (int i = 0; i < 16; i++) x.of32[i] <<= n;
  return x.whole;
}

MADE __m512i _mm512_cvtepu16_epi32(__m256i a) {
  const numbers_of x = {.half = {a, a}};
  numbers_of out;
  for (int i = 0; i < 16; i++) out.of32[i] = x.of16[i];
  return out.whole;
}

MADE __m256i _mm512_cvtepi32_epi16(__m512i a) {
  const numbers_of x = {.whole = a};
  numbers_of out;
  for (int i = 0; i < 16; i++) out.of16[i] = (uint16_t)x.of32[i];
  return out.half[0];
}

/* -- bf16 --------------------------------------------------------------------------------------------------------- */

MADE uint32_t bits_in(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

MADE float without_subnormals(uint32_t bits) { /* below 2^-126: zero with the same sign */
  bits &= bits & 0x7f800000 ? 0xffffffff : 0x80000000;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

MADE uint16_t to_bf16(float x) { /* to nearest, ties to even; NaN stays NaN */
  const uint32_t bits = bits_in(x);
  if (!(bits & 0x7f800000)) return bits >> 16 & 0x8000;
  if (x != x) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

MADE __m512i _mm512_cvtne2ps_pbh(__m512 above, __m512 below) {
  const numbers_of a = {.floats = above}, b = {.floats = below};
  numbers_of out;
  for (int i = 0; i < 16; i++) out.of16[i] = to_bf16(b.number[i]), out.of16[16 + i] = to_bf16(a.number[i]);
  return out.whole;
}

MADE __m256i _mm512_cvtneps_pbh(__m512 a) { return ((numbers_of){.whole = _mm512_cvtne2ps_pbh(a, a)}).half[0]; }

/* Each pair adds its second product first, then its first one, each by a fused multiply-add. */
MADE __m512 _mm512_dpbf16_ps(__m512 sums, __m512bh left, __m512bh right) {
  const numbers_of a = {.whole = (__m512i)left}, b = {.whole = (__m512i)right};
  numbers_of out = {.floats = sums};
  for (int i = 0; i < 16; i++) {
    float sum = without_subnormals(out.of32[i]);
    for (int second = 1; second >= 0; second--) {
      const float x = without_subnormals((uint32_t)a.of16[2 * i + second] << 16);
      const float y = without_subnormals((uint32_t)b.of16[2 * i + second] << 16);
      sum = without_subnormals(bits_in(__builtin_fmaf(x, y, sum)));
    }
    out.number[i] = sum;
  }
  return out.floats;
}

/* -- tiles -------------------------------------------------------------------------------------------------------- */

static __thread struct {
  char byte[8][16][64];
  int configured;
} amx;

/* Only the configuration of the kernels is supported: all tiles have 16 rows of 64 bytes. */
MADE void _tile_loadconfig(const void *shape) {
  const unsigned char *at = shape;
  if (at[0] != 1) __builtin_trap();
  for (int i = 0; i < 8; i++)
    if (at[16 + 2 * i] != 64 || at[17 + 2 * i] || at[48 + i] != 16) __builtin_trap();
  memset(amx.byte, 0, sizeof amx.byte);
  amx.configured = 1;
}

MADE void _tile_release(void) { amx.configured = 0; }

MADE char (*amx_tile(int n))[64] {
  if (!amx.configured) __builtin_trap();
  return amx.byte[n];
}

MADE void _tile_zero(int n) { memset(amx_tile(n), 0, 1024); }

MADE void _tile_loadd(int n, const void *from, int64_t stride) {
  for (int i = 0; i < 16; i++) memcpy(amx_tile(n)[i], (const char *)from + i * stride, 64);
}

MADE void _tile_stream_loadd(int n, const void *from, int64_t stride) { _tile_loadd(n, from, stride); }

MADE void _tile_stored(int n, void *to, int64_t stride) {
  for (int i = 0; i < 16; i++) memcpy((char *)to + i * stride, amx_tile(n)[i], 64);
}

/* Even and odd numbers are summed separately by fused multiply-adds, and then both sums are added. */
static void _tile_dpbf16ps(int to, int left, int right) {
  uint16_t bits[2][16][32];
  float a[16][32], b[32][16], sum[16][16]; /* of pairs side by side, numbers in their order */
  memcpy(bits[0], amx_tile(left), 1024);
  memcpy(bits[1], amx_tile(right), 1024);
  memcpy(sum, amx_tile(to), 1024);
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 32; j++) {
      a[i][j] = without_subnormals((uint32_t)bits[0][i][j] << 16);
      b[2 * i + j % 2][j / 2] = without_subnormals((uint32_t)bits[1][i][j] << 16);
    }
  for (int row = 0; row < 16; row++) {
    float part[2][16] = {{0.0f}};
    for (int k = 0; k < 32; k++)
      for (int column = 0; column < 16; column++)
        part[k % 2][column] =
            without_subnormals(bits_in(__builtin_fmaf(a[row][k], b[k][column], part[k % 2][column])));
    for (int column = 0; column < 16; column++) {
      const float both = without_subnormals(bits_in(part[0][column] + part[1][column]));
      sum[row][column] = without_subnormals(bits_in(sum[row][column] + both));
    }
  }
  memcpy(amx_tile(to), sum, 1024);
}

/* The system lets every process use these tiles. */
#define syscall(...) 0
