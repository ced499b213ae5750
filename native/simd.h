// Vectors of sixteen lanes, and the few operations that kernels need beyond the compiler's own vector arithmetic.
//
// A kernel is written once over these and compiled for each instruction set. What needs all sixteen lanes at once (sums
// over lanes, whose order must be the same everywhere) uses f32x16, be it one register or four; what treats lanes apart
// uses `fvec` and its kin, one register wide, and does a tile of sixteen in pieces.
//
// Everything lies in an unnamed namespace, for the same function compiled with wider instructions must never stand in
// for the baseline one.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(HEADRACE_AVX512VNNI)
#include <immintrin.h>
#define HEADRACE_LANES 16
#elif defined(HEADRACE_AVX2)
#include <immintrin.h>
#define HEADRACE_LANES 8
#else
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#define HEADRACE_LANES 4
#endif

namespace {

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

constexpr int kLanes = HEADRACE_LANES;  // of one register
typedef float fvec __attribute__((vector_size(4 * HEADRACE_LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * HEADRACE_LANES)));
typedef uint32_t uvec __attribute__((vector_size(4 * HEADRACE_LANES)));
typedef uint16_t hvec __attribute__((vector_size(4 * HEADRACE_LANES)));
typedef uint8_t bvec __attribute__((vector_size(4 * HEADRACE_LANES)));
typedef uint16_t half_hvec __attribute__((vector_size(2 * HEADRACE_LANES)));
typedef uint8_t quarter_bvec __attribute__((vector_size(HEADRACE_LANES)));
typedef int8_t quarter_svec __attribute__((vector_size(HEADRACE_LANES)));

#define INLINE inline __attribute__((always_inline))

template <class V, class T>
INLINE V load(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class V, class T>
INLINE void store(T* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

INLINE f32x16 splat(float x) { return f32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

#if HEADRACE_LANES == 16
INLINE fvec vsplat(float x) { return splat(x); }
INLINE ivec isplat(int32_t x) { return ivec{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
#elif HEADRACE_LANES == 8
INLINE fvec vsplat(float x) { return fvec{x, x, x, x, x, x, x, x}; }
INLINE ivec isplat(int32_t x) { return ivec{x, x, x, x, x, x, x, x}; }
#else
INLINE fvec vsplat(float x) { return fvec{x, x, x, x}; }
INLINE ivec isplat(int32_t x) { return ivec{x, x, x, x}; }
#endif

// a·b + c. Rounded once where the instruction set has it; the portable class rounds twice.
INLINE fvec fma(fvec a, fvec b, fvec c) {
#if defined(HEADRACE_AVX512VNNI)
  return (fvec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(HEADRACE_AVX2)
  return (fvec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

#if HEADRACE_LANES < 16
INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  union U {
    f32x16 whole;
    fvec piece[16 / kLanes];
  } x{a}, y{b}, z{c};
  for (int i = 0; i < 16 / kLanes; ++i) z.piece[i] = fma(x.piece[i], y.piece[i], z.piece[i]);
  return z.whole;
}
#endif

INLINE f32x16 max(f32x16 a, f32x16 b) {
#if defined(HEADRACE_AVX512VNNI)
  return (f32x16)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}

INLINE f32x16 abs(f32x16 x) { return (f32x16)((u32x16)x & 0x7fffffffu); }

// Sum and maximum over the lanes, always in the same order: halves onto halves.
INLINE float reduce_add(f32x16 v) {
  float x[16];
  store(x, v);
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; ++i) x[i] += x[i + width];
  return x[0];
}

INLINE float reduce_max(f32x16 v) {
#if defined(HEADRACE_AVX512VNNI)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float x[16];
  store(x, v);
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; ++i) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
  return x[0];
#endif
}

INLINE int32_t reduce_add(i32x16 v) {
#if defined(HEADRACE_AVX512VNNI)
  return _mm512_reduce_add_epi32((__m512i)v);
#else
  int32_t x[16], sum = 0;
  store(x, v);
  for (int i = 0; i < 16; ++i) sum += x[i];
  return sum;
#endif
}

INLINE f32x16 to_float(i32x16 v) { return __builtin_convertvector(v, f32x16); }

// To the nearest integer, ties to even; |x| < 2^22.
INLINE i32x16 round_to_int(f32x16 x) {
#if defined(HEADRACE_AVX512VNNI)
  return (i32x16)_mm512_cvtps_epi32((__m512)x);
#else
  const f32x16 magic = splat(12582912.0f);  // 1.5 · 2^23: adding it leaves no bits for a fraction
  return (i32x16)(x + magic) - (i32x16)magic;
#endif
}

INLINE fvec load_f16(const uint16_t* p) {
#if defined(HEADRACE_AVX512VNNI)
  return (fvec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(HEADRACE_AVX2)
  return (fvec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
  // Shift exponent and mantissa into place, then scale by 2^112: right for subnormals as well.
  const uvec h = __builtin_convertvector(load<half_hvec>(p), uvec);
  const uvec magnitude = (h & 0x7fffu) << 13;
  const fvec scaled = (fvec)magnitude * vsplat(0x1p112f);
  const uvec special = (uvec)(magnitude >= (0x7c00u << 13)) & 0x7f800000u;  // infinity and NaN
  return (fvec)((uvec)scaled | special | ((h & 0x8000u) << 16));
#endif
}

// To half precision, ties to even; beyond ±65504 the largest finite value, so that a cache holds no infinity.
INLINE void store_f16(uint16_t* p, f32x16 v) {
  const f32x16 limit = splat(65504.0f);
  v = v > limit ? limit : v;
  v = v < -limit ? -limit : v;
#if defined(HEADRACE_AVX512VNNI)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(HEADRACE_AVX2)
  union U {
    f32x16 v;
    __m256 h[2];
  } x{v};
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x.h[0], _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(x.h[1], _MM_FROUND_TO_NEAREST_INT));
#else
  const u32x16 bits = (u32x16)v, sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  // Normal: rebias the exponent and round the 13 lost bits to even. Subnormal: let an addition do the rounding.
  const u32x16 normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const f32x16 half = splat(0.5f);
  const u32x16 subnormal = (u32x16)((f32x16)magnitude + half) - (u32x16)half;
  const u32x16 is_normal = (u32x16)(magnitude >= (113u << 23));
  store(p, __builtin_convertvector(sign | (is_normal & normal) | (~is_normal & subnormal), u16x16));
#endif
}

INLINE fvec load_bf16(const uint16_t* p) { return (fvec)(__builtin_convertvector(load<half_hvec>(p), uvec) << 16); }

INLINE fvec load_u8(const uint8_t* p) {
#if defined(HEADRACE_AVX512VNNI)
  return (fvec)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(HEADRACE_AVX2)
  return (fvec)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
  return __builtin_convertvector(load<quarter_bvec>(p), fvec);
#endif
}

INLINE fvec load_i8(const int8_t* p) {
#if defined(HEADRACE_AVX512VNNI)
  return (fvec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(HEADRACE_AVX2)
  return (fvec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
  return __builtin_convertvector(load<quarter_svec>(p), fvec);
#endif
}

// Natural exponential for x <= 88, within 2 units in the last place; 0 below -87. The only one in the house.
INLINE f32x16 exp(f32x16 x) {
  const f32x16 low = splat(-87.0f);
  const i32x16 underflow = x < low;
  x = max(x, low);
  const i32x16 n = round_to_int(x * splat(1.44269504f));
  const f32x16 nf = to_float(n);
  // ln 2 in two parts, the first short enough that n times it is exact.
  f32x16 r = fma(nf, splat(-0.693145751953125f), x);
  r = fma(nf, splat(-1.42860682030941723212e-6f), r);
  f32x16 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + splat(1.0f);
  const f32x16 y = (f32x16)((i32x16)p + (n << 23));
  return (f32x16)(~underflow & (i32x16)y);
}

// sums[r] += w · x for `rows` rows of signed bytes, exactly: sums[r][lane] = Σ_c Σ_i w[c][4·lane + i] · x[32·r + 4·c +
// i]. `chunks` vectors of unsigned weights below 2^bits.
template <int bits, int chunks, int rows>
INLINE void dot(const bvec* w, const int8_t* x, ivec* sums) {
  const auto four = [&](int r, int c) {
    int32_t bytes;
    std::memcpy(&bytes, x + 32 * r + 4 * c, 4);
    return bytes;
  };
#if defined(HEADRACE_AVX512VNNI)
  // Chunk by chunk over the rows, so that their chains of sums run side by side; two chains each where rows are few.
  ivec other[rows] = {};
#pragma GCC unroll 8
  for (int c = 0; c < chunks; ++c)
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      ivec& sum = rows < 4 && c % 2 ? other[r] : sums[r];
      sum = (ivec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w[c], _mm512_set1_epi32(four(r, c)));
    }
  if (rows < 4)
    for (int r = 0; r < rows; ++r) sums[r] += other[r];
#elif defined(HEADRACE_AVX2)
  // The byte product adds pairs with saturation at 16 bits. As many pairs are added there as fit: 8 of four-bit weights
  // (8 · 2 · 15 · 127 = 30480), 4 of five-bit, 2 of six-bit ones. Of eight-bit weights not one fits, so their highest
  // bit is multiplied apart.
  constexpr int fit = bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < chunks; c += fit) {
      __m256i pairs, sum = (__m256i)sums[r];
      if constexpr (bits < 8) {
        pairs = _mm256_maddubs_epi16((__m256i)w[c], _mm256_set1_epi32(four(r, c)));
        for (int k = c + 1; k < c + fit && k < chunks; ++k)
          pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16((__m256i)w[k], _mm256_set1_epi32(four(r, k))));
      } else {
        const __m256i high_bit = _mm256_set1_epi8(char(0x80)), xs = _mm256_set1_epi32(four(r, c));
        pairs = _mm256_maddubs_epi16(_mm256_andnot_si256(high_bit, (__m256i)w[c]), xs);
        const __m256i halved = _mm256_srli_epi16(_mm256_and_si256((__m256i)w[c], high_bit), 1);  // 64 or 0
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(halved, xs), _mm256_set1_epi16(2)));
      }
      sums[r] = (ivec)_mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
#elif defined(__SSE2__)
#pragma GCC unroll 8
  for (int c = 0; c < chunks; ++c) {
    const __m128i even = _mm_and_si128((__m128i)w[c], _mm_set1_epi16(0xff)), odd = _mm_srli_epi16((__m128i)w[c], 8);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const __m128i xs = _mm_set1_epi32(four(r, c));
      const __m128i x_even = _mm_srai_epi16(_mm_slli_epi16(xs, 8), 8), x_odd = _mm_srai_epi16(xs, 8);
      const __m128i both = _mm_add_epi32(_mm_madd_epi16(even, x_even), _mm_madd_epi16(odd, x_odd));
      sums[r] = (ivec)_mm_add_epi32((__m128i)sums[r], both);
    }
  }
#else
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < chunks; ++c)
      for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 4; ++i) sums[r][lane] += int32_t(w[c][4 * lane + i]) * x[32 * r + 4 * c + i];
#endif
}

}  // namespace
