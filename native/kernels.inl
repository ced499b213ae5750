// The kernels' one source, compiled once for each instruction set by the file that includes it and defines
// HEADRACE_KERNELS (the table's name), HEADRACE_ISA_NAME, HEADRACE_NUMERICS, and how much to hold in registers.

#include <cmath>

#include "kernels.h"
#include "simd.h"

namespace headrace {
namespace {

// Work is done for several rows or queries at a time, in the largest pieces there is a kernel for. What comes out for
// one of them does not depend on the piece it was in.
template <int n>
struct Piece {
  static constexpr int count = n;
};
template <int... sizes>
struct Pieces {};

template <int... sizes, class Work>
INLINE void in_pieces(int count, Pieces<sizes...>, const Work& work) {
  int at = 0;
  const auto take = [&](auto piece) {
    for (; count - at >= piece.count; at += piece.count) work(piece, at);
  };
  (take(Piece<sizes>{}), ...);
}

using MatrixRows = Pieces<HEADRACE_MATRIX_ROWS>;
using ScoreQueries = Pieces<HEADRACE_SCORE_QUERIES>;
using BlendQueries = Pieces<HEADRACE_BLEND_QUERIES>;
constexpr int kRowsInFlight = HEADRACE_ROWS_IN_FLIGHT;
constexpr int kScoreSums = HEADRACE_SCORE_SUMS;
constexpr int kValuesAhead = 4 * kBlock;  // tokens
constexpr size_t kAhead = 4096;  // bytes of weights fetched ahead; hardware alone leaves half the bandwidth unused

// ---- matrix products

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
  constexpr int step = rows < kRowsInFlight ? rows : kRowsInFlight;
  static_assert(rows % step == 0);
#pragma GCC unroll 16
  for (int r = 0; r < rows; r += step) {
    fvec product[step];
    const int8_t* values = x.values + r * kGroup;
    if constexpr (f.scales == Scales::super_halves) {
      ivec low[step], high[step];
#pragma GCC unroll 4
      for (int i = 0; i < step; ++i) {
        low[i] = isplat(-f.zero * x.low_sums[r + i]);
        high[i] = isplat(-f.zero * (x.sums[r + i] - x.low_sums[r + i]));
      }
      dot<f.bits, 4, step>(w, values, low);
      dot<f.bits, 4, step>(w + 4, values + 16, high);
      // All of these are integers below 2^24, so floats hold them exactly.
#pragma GCC unroll 4
      for (int i = 0; i < step; ++i)
        product[i] =
            __builtin_convertvector(low[i], fvec) * s.half[0] + __builtin_convertvector(high[i], fvec) * s.half[1];
    } else {
      ivec sum[step];
#pragma GCC unroll 4
      for (int i = 0; i < step; ++i) sum[i] = f.zero ? isplat(-f.zero * x.sums[r + i]) : ivec{};
      dot<f.bits, 8, step>(w, values, sum);
#pragma GCC unroll 4
      for (int i = 0; i < step; ++i) product[i] = __builtin_convertvector(sum[i], fvec);
    }
#pragma GCC unroll 4
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

// ---- rows

void rms_norm(const float* x, const float* weight, float eps, int n, float* out) {
  f32x16 squares{};
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const f32x16 v = load<f32x16>(x + i);
    squares = fma(v, v, squares);
  }
  float sum = reduce_add(squares);
  for (; i < n; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(sum / float(n) + eps);
  for (i = 0; i + 16 <= n; i += 16) store(out + i, load<f32x16>(x + i) * splat(scale) * load<f32x16>(weight + i));
  for (; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

void quantize(const float* x, int n, const Activations& a, int row, int group) {
  for (int done = 0; done < n; done += kGroup, ++group) {
    float padded[kGroup];
    const float* p = x + done;
    if (n - done < kGroup) {
      for (int i = 0; i < kGroup; ++i) padded[i] = done + i < n ? x[done + i] : 0.0f;
      p = padded;
    }
    const f32x16 low = load<f32x16>(p), high = load<f32x16>(p + 16);
    const size_t at = size_t(group) * a.capacity + row;
    if (a.floats) {
      store(a.floats + at * kGroup, low);
      store(a.floats + at * kGroup + 16, high);
    }
    const float largest = reduce_max(max(abs(low), abs(high)));
    const float scale = largest / 127.0f;
    const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
    const i32x16 q_low = round_to_int(low * splat(inverse)), q_high = round_to_int(high * splat(inverse));
    store(a.values + at * kGroup, __builtin_convertvector(q_low, i8x16));
    store(a.values + at * kGroup + 16, __builtin_convertvector(q_high, i8x16));
    const int32_t low_sum = reduce_add(q_low), sum = low_sum + reduce_add(q_high);
    a.scales[at] = scale;
    a.sums[at] = sum;
    a.low_sums[at] = low_sum;
    a.scaled_sums[at] = scale * float(sum);
  }
}

void swiglu(float* gate, const float* up, int n) {
  for (int i = 0; i < n; i += 16) {
    const f32x16 x = load<f32x16>(gate + i);
    // The bound keeps exp finite; beyond it the quotient is zero to the last bit that matters.
    const f32x16 negative = -x;
    const f32x16 e = exp(negative > 88.0f ? splat(88.0f) : negative);
    store(gate + i, x / (e + 1.0f) * load<f32x16>(up + i));
  }
}

void to_half(const float* x, int n, uint16_t* out) {
  int i = 0;
  for (; i + 16 <= n; i += 16) store_f16(out + i, load<f32x16>(x + i));
  if (i < n) {
    float padded[16] = {};
    uint16_t halves[16];
    for (int k = 0; k < n - i; ++k) padded[k] = x[i + k];
    store_f16(halves, load<f32x16>(padded));
    for (int k = 0; k < n - i; ++k) out[i + k] = halves[k];
  }
}

// ---- attention

// Scores of `queries` queries against some tokens of `blocks` neighbouring blocks: a lane is a token. `after` are the
// blocks that will be read next.
template <int queries, int blocks>
INLINE void score_blocks(const AttentionPart& part, int query, int block, int lane, const uint16_t* const* after) {
  fvec acc[queries * blocks];
#pragma GCC unroll 24
  for (int i = 0; i < queries * blocks; ++i) acc[i] = fvec{};
  const float* q = part.queries + query;
  for (int d = 0; d < part.head_dim; ++d, q += part.count) {
#pragma GCC unroll 4
    for (int b = 0; b < blocks; ++b) {
      if (d % 2 == 0 && lane == 0) __builtin_prefetch(after[b] + d * kBlock);
      const fvec k = load_f16(part.keys[block + b] + d * kBlock + lane);
#pragma GCC unroll 16
      for (int i = 0; i < queries; ++i) acc[b * queries + i] = fma(vsplat(q[i]), k, acc[b * queries + i]);
    }
  }
#pragma GCC unroll 4
  for (int b = 0; b < blocks; ++b)
#pragma GCC unroll 16
    for (int i = 0; i < queries; ++i)
      store(part.scores + size_t(query + i) * kPart + (block + b) * kBlock + lane, acc[b * queries + i]);
}

template <int queries>
INLINE void score(const AttentionPart& part, int query, int blocks) {
  constexpr int many = queries * 4 <= kScoreSums ? 4 : queries * 2 <= kScoreSums ? 2 : 1;
  for (int lane = 0; lane < kBlock; lane += kLanes) {
    int b = 0;
    for (; b + many <= blocks; b += many) {
      // After the last keys the first values are read.
      const bool last = b + 2 * many > blocks;
      score_blocks<queries, many>(part, query, b, lane, last ? part.values : part.keys + b + many);
    }
    for (; b < blocks; ++b) score_blocks<queries, 1>(part, query, b, lane, part.values + b);
  }
}

// out[query] = Σ_j weight[query][j] · value[j], tokens ascending: a lane is an element of the head.
template <int queries, int vectors>
INLINE void blend(const AttentionPart& part, int query, int element, int tokens) {
  fvec acc[queries * vectors];
#pragma GCC unroll 24
  for (int i = 0; i < queries * vectors; ++i) acc[i] = fvec{};
  const float* weights = part.scores + size_t(query) * kPart;
  for (int j = 0; j < tokens; ++j) {
    const uint16_t* v = part.values[j / kBlock] + (j % kBlock) * part.head_dim + element;
    if (j + kValuesAhead < tokens)
      __builtin_prefetch(part.values[(j + kValuesAhead) / kBlock] + (j % kBlock) * part.head_dim + element);
    fvec value[vectors];
#pragma GCC unroll 4
    for (int n = 0; n < vectors; ++n) value[n] = load_f16(v + kLanes * n);
#pragma GCC unroll 8
    for (int i = 0; i < queries; ++i) {
      const fvec weight = vsplat(weights[i * kPart + j]);
#pragma GCC unroll 4
      for (int n = 0; n < vectors; ++n) acc[i * vectors + n] = fma(weight, value[n], acc[i * vectors + n]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < queries; ++i)
#pragma GCC unroll 4
    for (int n = 0; n < vectors; ++n)
      store(part.out + size_t(query + i) * part.head_dim + element + kLanes * n, acc[i * vectors + n]);
}

template <int queries>
INLINE void blend_all(const AttentionPart& part, int query, int tokens) {
  int element = 0;
  for (; element + 4 * kLanes <= part.head_dim; element += 4 * kLanes) blend<queries, 4>(part, query, element, tokens);
  for (; element < part.head_dim; element += kLanes) blend<queries, 1>(part, query, element, tokens);
}

// Scores to weights exp(score − maximum), those of tokens a query does not see to zero.
INLINE void soften(const AttentionPart& part, int query, int tokens) {
  float* s = part.scores + size_t(query) * kPart;
  const int visible = part.visible[query];
  const i32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const f32x16 nothing = splat(-INFINITY);
  f32x16 largest = nothing;
  for (int j = 0; j < tokens; j += 16) {
    const f32x16 x = lane + j < visible ? load<f32x16>(s + j) : nothing;
    store(s + j, x);
    largest = max(x, largest);
  }
  const float maximum = reduce_max(largest);
  f32x16 sum{};
  for (int j = 0; j < tokens; j += 16) {
    const f32x16 w = exp(load<f32x16>(s + j) - splat(visible ? maximum : 0.0f));
    store(s + j, w);
    sum += w;
  }
  part.maximum[query] = maximum;
  part.sum[query] = reduce_add(sum);
}

void attend(const AttentionPart& part) {
  int tokens = 0;
  for (int i = 0; i < part.count; ++i) tokens = part.visible[i] > tokens ? part.visible[i] : tokens;
  const int blocks = (tokens + kBlock - 1) / kBlock;
  in_pieces(part.count, ScoreQueries{}, [&](auto piece, int query) { score<piece.count>(part, query, blocks); });
  for (int query = 0; query < part.count; ++query) soften(part, query, tokens);
  in_pieces(part.count, BlendQueries{}, [&](auto piece, int query) { blend_all<piece.count>(part, query, tokens); });
}

void merge(float maximum, float sum, const float* out, int head_dim, float* total_maximum, float* total_sum,
           float* total) {
  const float larger = maximum > *total_maximum ? maximum : *total_maximum;
  const f32x16 old_weight = exp(splat(*total_maximum) - splat(larger));
  const f32x16 new_weight = exp(splat(maximum) - splat(larger));
  *total_maximum = larger;
  *total_sum = fma(new_weight, splat(sum), old_weight * splat(*total_sum))[0];
  for (int d = 0; d < head_dim; d += 16)
    store(total + d, fma(new_weight, load<f32x16>(out + d), old_weight * load<f32x16>(total + d)));
}

// ---- sampling

void weights(const float* x, int n, float maximum, float temperature, float* w) {
  int i = 0;
  for (; i + 16 <= n; i += 16) store(w + i, exp((load<f32x16>(x + i) - splat(maximum)) / splat(temperature)));
  for (; i < n; ++i) w[i] = exp((splat(x[i]) - splat(maximum)) / splat(temperature))[0];
}

}  // namespace

const Kernels HEADRACE_KERNELS = {
    HEADRACE_ISA_NAME, HEADRACE_NUMERICS, multiply_tile, rms_norm, quantize, swiglu, to_half, attend, merge, weights};

}  // namespace headrace
