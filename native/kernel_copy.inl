// A copy that sums what it copies, in one pass: how cache blocks go from one process to another.

namespace headrace {
namespace {

typedef uint64_t lanes64 __attribute__((vector_size(4 * HEADRACE_LANES)));

// In each lane the product of its halves.
INLINE lanes64 multiply_halves(lanes64 x) {
#if defined(HEADRACE_AVX512VNNI)
  return (lanes64)_mm512_mul_epu32((__m512i)x, _mm512_srli_epi64((__m512i)x, 32));
#elif defined(HEADRACE_AVX2)
  return (lanes64)_mm256_mul_epu32((__m256i)x, _mm256_srli_epi64((__m256i)x, 32));
#elif defined(__SSE2__)
  return (lanes64)_mm_mul_epu32((__m128i)x, _mm_srli_epi64((__m128i)x, 32));
#else
  return (x & 0xffffffffu) * (x >> 32);
#endif
}

// Each lane in the place of its neighbour.
INLINE lanes64 swap_neighbours(lanes64 x) {
#if defined(HEADRACE_AVX512VNNI)
  return (lanes64)_mm512_shuffle_epi32((__m512i)x, _MM_PERM_BADC);
#elif defined(HEADRACE_AVX2)
  return (lanes64)_mm256_shuffle_epi32((__m256i)x, 0x4e);
#elif defined(__SSE2__)
  return (lanes64)_mm_shuffle_epi32((__m128i)x, 0x4e);
#else
  return lanes64{x[1], x[0]};
#endif
}

// Past the caches, which spares reading what is overwritten; `to` is aligned to the vector.
INLINE void store_past_cache(uint8_t* to, lanes64 x) {
#if defined(HEADRACE_AVX512VNNI)
  _mm512_stream_si512((__m512i*)to, (__m512i)x);
#elif defined(HEADRACE_AVX2)
  _mm256_stream_si256((__m256i*)to, (__m256i)x);
#elif defined(__SSE2__)
  _mm_stream_si128((__m128i*)to, (__m128i)x);
#else
  store(to, x);
#endif
}

template <bool past_cache>
void copy_stripes(uint8_t* to, const uint8_t* from, size_t stripes, BlockSum* sum) {
  constexpr int width = sizeof(lanes64), parts = kStripe / width;
  lanes64 sums[parts], totals[parts];
  for (int i = 0; i < parts; ++i) {
    sums[i] = load<lanes64>((const uint8_t*)sum->sums + i * width);
    totals[i] = load<lanes64>((const uint8_t*)sum->totals + i * width);
  }
  for (size_t s = 0; s < stripes; ++s, from += kStripe, to += kStripe)
    for (int i = 0; i < parts; ++i) {
      const lanes64 x = load<lanes64>(from + i * width);
      if constexpr (past_cache)
        store_past_cache(to + i * width, x);
      else
        store(to + i * width, x);
      sums[i] += multiply_halves(x ^ kSumKey) + swap_neighbours(x);
      totals[i] += sums[i];
    }
  for (int i = 0; i < parts; ++i) {
    store((uint8_t*)sum->sums + i * width, sums[i]);
    store((uint8_t*)sum->totals + i * width, totals[i]);
  }
#if defined(__SSE2__)
  if (past_cache) _mm_sfence();  // such stores become visible in no order of their own
#endif
}

void copy_summed(uint8_t* to, const uint8_t* from, size_t stripes, bool past_cache, BlockSum* sum) {
  if (past_cache && uintptr_t(to) % sizeof(lanes64) == 0)
    copy_stripes<true>(to, from, stripes, sum);
  else
    copy_stripes<false>(to, from, stripes, sum);
}

}  // namespace
}  // namespace headrace
