// Vectors of sixteen lanes, and the few operations that kernels need beyond the compiler's own vector arithmetic.
//
// A kernel is written once over these and compiled for each instruction set: one register of AVX-512, two of AVX2,
// four of SSE2 or NEON. Everything lies in an unnamed namespace, for the same function compiled with wider
// instructions must never stand in for the baseline one.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(HEADRACE_AVX512VNNI) || defined(HEADRACE_AVX2)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x32 __attribute__((vector_size(64)));
typedef uint8_t u8x64 __attribute__((vector_size(64)));
typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

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
INLINE i32x16 splat_i(int32_t x) { return i32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

// a·b + c. Rounded once where the instruction set has it; the portable class rounds twice.
INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(HEADRACE_AVX512VNNI)
  return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(HEADRACE_AVX2)
  union U {
    f32x16 v;
    __m256 h[2];
  } x{a}, y{b}, z{c}, r;
  r.h[0] = _mm256_fmadd_ps(x.h[0], y.h[0], z.h[0]);
  r.h[1] = _mm256_fmadd_ps(x.h[1], y.h[1], z.h[1]);
  return r.v;
#else
  return a * b + c;
#endif
}

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

INLINE f32x16 load_f16(const uint16_t* p) {
#if defined(HEADRACE_AVX512VNNI)
  return (f32x16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(HEADRACE_AVX2)
  union U {
    f32x16 v;
    __m256 h[2];
  } r;
  r.h[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
  r.h[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)));
  return r.v;
#else
  // Shift exponent and mantissa into place, then scale by 2^112: right for subnormals as well.
  const u32x16 h = __builtin_convertvector(load<u16x16>(p), u32x16);
  const u32x16 magnitude = (h & 0x7fffu) << 13;
  const f32x16 scaled = (f32x16)magnitude * splat(0x1p112f);
  const u32x16 special = (u32x16)(magnitude >= (0x7c00u << 13)) & 0x7f800000u;  // infinity and NaN
  return (f32x16)((u32x16)scaled | special | ((h & 0x8000u) << 16));
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

INLINE f32x16 load_bf16(const uint16_t* p) {
  return (f32x16)(__builtin_convertvector(load<u16x16>(p), u32x16) << 16);
}

INLINE f32x16 load_u8(const uint8_t* p) { return __builtin_convertvector(load<u8x16>(p), f32x16); }
INLINE f32x16 load_i8(const int8_t* p) { return __builtin_convertvector(load<i8x16>(p), f32x16); }

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

// acc[lane] += Σ_i w[4·lane + i] · x[i], exactly. Weights are unsigned bytes below 2^bits, x signed ones.
template <int bits>
INLINE i32x16 dot4(i32x16 acc, u8x64 w, const int8_t* x) {
  int32_t four;
  std::memcpy(&four, x, 4);
#if defined(HEADRACE_AVX512VNNI)
  return (i32x16)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, _mm512_set1_epi32(four));
#elif defined(HEADRACE_AVX2)
  // The byte product saturates at 16 bits: two products of 7-bit weights fit, of 8-bit ones do not.
  // Those are split into a high bit and the rest.
  union W {
    u8x64 v;
    __m256i h[2];
  } ww{w};
  union A {
    i32x16 v;
    __m256i h[2];
  } r{acc};
  const __m256i xx = _mm256_set1_epi32(four), ones = _mm256_set1_epi16(1);
  for (int i = 0; i < 2; ++i) {
    if constexpr (bits < 8) {
      r.h[i] = _mm256_add_epi32(r.h[i], _mm256_madd_epi16(_mm256_maddubs_epi16(ww.h[i], xx), ones));
    } else {
      const __m256i low = _mm256_and_si256(ww.h[i], _mm256_set1_epi8(0x7f));
      const __m256i high = _mm256_andnot_si256(_mm256_set1_epi8(0x7f), ww.h[i]);
      const __m256i sum_low = _mm256_maddubs_epi16(low, xx);
      const __m256i sum_high = _mm256_maddubs_epi16(_mm256_srli_epi16(high, 1), xx);  // 64 or 0, half of it
      r.h[i] = _mm256_add_epi32(r.h[i], _mm256_madd_epi16(sum_low, ones));
      r.h[i] = _mm256_add_epi32(r.h[i], _mm256_madd_epi16(sum_high, _mm256_set1_epi16(2)));
    }
  }
  return r.v;
#elif defined(__SSE2__)
  union W {
    u8x64 v;
    __m128i h[4];
  } ww{w};
  union A {
    i32x16 v;
    __m128i h[4];
  } r{acc};
  const __m128i xx = _mm_set1_epi32(four);
  const __m128i even = _mm_srai_epi16(_mm_slli_epi16(xx, 8), 8), odd = _mm_srai_epi16(xx, 8);
  for (int i = 0; i < 4; ++i) {
    const __m128i we = _mm_and_si128(ww.h[i], _mm_set1_epi16(0xff)), wo = _mm_srli_epi16(ww.h[i], 8);
    r.h[i] = _mm_add_epi32(r.h[i], _mm_add_epi32(_mm_madd_epi16(we, even), _mm_madd_epi16(wo, odd)));
  }
  return r.v;
#else
  for (int lane = 0; lane < 16; ++lane)
    for (int i = 0; i < 4; ++i) acc[lane] += int32_t(w[4 * lane + i]) * x[i];
  return acc;
#endif
}

}  // namespace
