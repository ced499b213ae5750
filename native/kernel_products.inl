// Matrix products: tiles of packed weights times rows of activations.

namespace headrace {
namespace {

// Some outputs' eight chunks of a group, unpacked to bytes. `p` is where the first of these outputs has its first four
// values; the next four lie 64 bytes on.
template <int bits>
INLINE void unpack_group(const uint8_t* p, bvec w[8]) {
  if constexpr (bits == 8) {
    for (int c = 0; c < 8; ++c) w[c] = load<bvec>(p + 64 * c);
    return;
  }
  for (int c = 0; c < 4; ++c) {
    const bvec both = load<bvec>(p + 64 * c);
    w[c] = both & 0x0f;
    w[c + 4] = (bvec)((hvec)both >> 4) & 0x0f;
  }
  if constexpr (bits == 5) {
    const hvec plane = load<hvec>(p + 256);
    for (int c = 0; c < 8; ++c) w[c] |= (bvec)(c < 4 ? plane << (4 - c) : plane >> (c - 4)) & 0x10;
  }
  if constexpr (bits == 6) {
    for (int c = 0; c < 8; ++c) {
      const hvec plane = load<hvec>(p + 256 + 64 * (c / 4));
      const int s = 2 * (c % 4);
      w[c] |= (bvec)(s < 4 ? plane << (4 - s) : plane >> (s - 4)) & 0x30;
    }
  }
}

// The scales of one group: value = scale · q + minimum, or two integer scales for the halves of a Q6_K group.
struct GroupScales {
  fvec scale, minimum, half[2];
};

template <Type type>
INLINE GroupScales group_scales(const uint8_t* scales, int g, int lane) {
  constexpr Format f = format_of(type);
  GroupScales s{};
  if constexpr (f.scales == Scales::per_group) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(scales) + g * kTile * (f.minimum ? 2 : 1) + lane;
    s.scale = load_f16(p);
    if constexpr (f.minimum) s.minimum = load_f16(p + kTile);
  } else {
    const uint8_t* p = scales + g / 8 * super_scale_bytes(f);
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(p) + lane;
    p += 64 + lane;
    s.scale = load_f16(halves);
    if constexpr (f.scales == Scales::super_groups) {
      // Eleven bits times six: exact, and so is nothing lost by scaling the scale first.
      s.scale *= load_u8(p + g % 8 * kTile);
      s.minimum = -(load_f16(halves + kTile) * load_u8(p + (8 + g % 8) * kTile));
    } else {
      const int8_t* sub = reinterpret_cast<const int8_t*>(p) + g % 8 * 2 * kTile;
      s.half[0] = load_i8(sub);
      s.half[1] = load_i8(sub + kTile);
    }
  }
  return s;
}

// Where a group of some neighbouring rows lies.
struct GroupRows {
  const int8_t* values;
  const float *scales, *scaled_sums;
  const int32_t *sums, *low_sums;
};

// acc[r] += group of the tile · group of row r: integer sums, exact in any order, then one multiply-add with the two
// scales and one with the minimum.
template <Type type, int rows>
INLINE void add_group(const bvec w[8], const GroupScales& s, const GroupRows& x, fvec acc[rows]) {
  constexpr Format f = format_of(type);
  constexpr int step = rows % kRowsInFlight ? rows : kRowsInFlight;
#pragma GCC unroll 16
  for (int r = 0; r < rows; r += step) {
    fvec product[step];
    const int8_t* values = x.values + r * kGroup;
    if constexpr (f.scales == Scales::super_halves) {
      ivec low[step], high[step];
#pragma GCC unroll 8
      for (int i = 0; i < step; ++i) {
        low[i] = isplat(-f.zero * x.low_sums[r + i]);
        high[i] = isplat(-f.zero * (x.sums[r + i] - x.low_sums[r + i]));
      }
      dot<f.bits, 4, step>(w, values, low);
      dot<f.bits, 4, step>(w + 4, values + 16, high);
      // All of these are integers below 2^24, so floats hold them exactly.
#pragma GCC unroll 8
      for (int i = 0; i < step; ++i)
        product[i] =
            __builtin_convertvector(low[i], fvec) * s.half[0] + __builtin_convertvector(high[i], fvec) * s.half[1];
    } else {
      ivec sum[step];
#pragma GCC unroll 8
      for (int i = 0; i < step; ++i) sum[i] = f.zero ? isplat(-f.zero * x.sums[r + i]) : ivec{};
      dot<f.bits, 8, step>(w, values, sum);
#pragma GCC unroll 8
      for (int i = 0; i < step; ++i) product[i] = __builtin_convertvector(sum[i], fvec);
    }
#pragma GCC unroll 8
    for (int i = 0; i < step; ++i) {
      acc[r + i] = fma(product[i], s.scale * vsplat(x.scales[r + i]), acc[r + i]);
      if constexpr (f.minimum) acc[r + i] = fma(s.minimum, vsplat(x.scaled_sums[r + i]), acc[r + i]);
    }
  }
}

template <Type type, int rows>
INLINE void add_quantized(const Matrix& m, const uint8_t* data, int lane, const Activations& a, int row,
                          fvec acc[rows]) {
  constexpr Format f = format_of(type);
  const uint8_t* values = data + tile_scale_bytes(f, m.inputs) + 4 * lane;
  // The tile that follows this one in memory is mostly the next to be read.
  const size_t group_bytes = lane ? 0 : m.tile_bytes / m.groups;
  const uint8_t* ahead = data + kAhead;
  for (int g = 0; g < m.groups; ++g, ahead += group_bytes) {
    for (size_t i = 0; i < group_bytes; i += 64) __builtin_prefetch(ahead + i);
    bvec w[8];
    unpack_group<f.bits>(values + g * group_value_bytes(f), w);
    const size_t at = size_t(g) * a.capacity + row;
    add_group<type, rows>(w, group_scales<type>(data, g, lane),
                          {a.values + at * kGroup, a.scales + at, a.scaled_sums + at, a.sums + at, a.low_sums + at},
                          acc);
  }
}

template <Type type, int rows>
INLINE void add_floats(const Matrix& m, const uint8_t* data, int lane, const Activations& a, int row, fvec acc[rows]) {
  constexpr int size = format_of(type).block_bytes;
  for (int g = 0; g < m.groups; ++g) {
    const float* x = a.floats + (size_t(g) * a.capacity + row) * kGroup;
    const uint8_t* p = data + (size_t(g) * kGroup * kTile + lane) * size;
    for (int k = 0; k < kGroup; ++k, p += kTile * size) {
      fvec w;
      if constexpr (type == Type::F32) w = load<fvec>(p);
      if constexpr (type == Type::F16) w = load_f16(reinterpret_cast<const uint16_t*>(p));
      if constexpr (type == Type::BF16) w = load_bf16(reinterpret_cast<const uint16_t*>(p));
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) acc[r] = fma(vsplat(x[r * kGroup + k]), w, acc[r]);
    }
  }
}

template <Type type, int rows>
void multiply(const Matrix& m, int tile, const Activations& a, int row, const float* bias, bool accumulate, float* out,
              int stride) {
  const uint8_t* data = m.data + tile * m.tile_bytes;
  for (int lane = 0; lane < kTile; lane += kLanes) {
    fvec acc[rows];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) acc[r] = fvec{};
    if constexpr (format_of(type).bits > 0)
      add_quantized<type, rows>(m, data, lane, a, row, acc);
    else
      add_floats<type, rows>(m, data, lane, a, row, acc);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      float* to = out + size_t(r) * stride + lane;
      fvec y = acc[r];
      if (bias) y += load<fvec>(bias + lane);
      if (accumulate) y += load<fvec>(to);
      store(to, y);
    }
  }
}

template <Type type>
void multiply_rows(const Matrix& m, int tile, const Activations& a, int row, int rows, const float* bias,
                   bool accumulate, float* out, int stride) {
  in_pieces(rows, MatrixRows{}, [&](auto piece, int at) {
    multiply<type, piece.count>(m, tile, a, row + at, bias, accumulate, out + size_t(at) * stride, stride);
  });
}

void multiply_tile(const Matrix& m, int tile, const Activations& a, int row, int rows, const float* bias,
                   bool accumulate, float* out, int stride) {
  switch (m.type) {
    // clang-format off
#define HEADRACE_CASE(type) \
  case Type::type: return multiply_rows<Type::type>(m, tile, a, row, rows, bias, accumulate, out, stride);
    HEADRACE_CASE(F32) HEADRACE_CASE(F16) HEADRACE_CASE(BF16) HEADRACE_CASE(Q4_0) HEADRACE_CASE(Q4_1)
    HEADRACE_CASE(Q5_0) HEADRACE_CASE(Q5_1) HEADRACE_CASE(Q8_0) HEADRACE_CASE(Q4_K) HEADRACE_CASE(Q5_K)
    HEADRACE_CASE(Q6_K)
#undef HEADRACE_CASE
    // clang-format on
  }
}

}  // namespace
}  // namespace headrace
