// The kernels that exist once for each instruction set, behind one table of functions.
//
// They agree with each other on this: a result for one row is computed by the same operations in the same order
// whatever other rows there are. Lanes are outputs in a matrix product, tokens in a key product, head elements in a
// value product; groups, inputs and tokens are added in ascending order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "formats.h"

namespace headrace {

constexpr int kBlock = 16;   // tokens in a cache block
constexpr int kKeyGroup = 4;  // elements of a key that share a scale in an int8 cache
constexpr int kPart = 256;   // tokens in an attention part, cut at absolute multiples
constexpr int kPointTile = 64;  // points that are measured side by side
constexpr int kMaxQueries = 16;  // query vectors that one attention call takes

// The rows of a step as a matrix product reads them: group by group, the rows of a group side by side, so that a
// kernel reaches any of its rows at a constant distance. A value is round(x / scale) with scale = max|x| / 127 over
// its 32 values.
struct Activations {
  int capacity = 0;         // rows between one group and the next
  int8_t* values = nullptr;      // [group][row][32]
  float* scales = nullptr;       // [group][row]
  float* scaled_sums = nullptr;  // [group][row] scale · Σ values
  int32_t* sums = nullptr;       // [group][row] Σ values
  int32_t* low_sums = nullptr;   // [group][row] Σ of the first 16 values
  float* floats = nullptr;       // [group][row][32] unquantised, for float weights; null where none follow
};

// A part of attention for several queries that share keys and values: running maximum, sum, and weighted values.
struct AttentionPart {
  const uint8_t* const*
      keys;  // for each block of the part: [head_dim][16] elements; if int8, [head_dim/kKeyGroup][16] half scales
  const uint8_t* const* values;  // for each block: [16][head_dim] elements; if int8, [16] scales
  bool int8;  // elements are bytes; else half floats
  const float* queries;  // [head_dim][count]
  int count;  // queries
  int head_dim;
  const int* visible;  // [count] tokens of this part that a query sees, 0 … 256
  float* scores;  // scratch [count][256]
  float* maximum;  // [count] out
  float* sum;  // [count] out
  float* out;  // [count][head_dim] out, not divided by the sum
};

constexpr int kStripe = 64;  // bytes
constexpr uint64_t kSumKey = 0x243f6a8885a308d3;  // pi's digits: so that a zero does not hide the other half

// The sum of a block's bytes, stripe by stripe: in each lane the products of the halves of its 64-bit words plus its
// neighbour's words, and the totals of that sum after each stripe, which tell the stripes' order. Exact, so the same by
// every instruction set.
struct BlockSum {
  uint64_t sums[kStripe / 8] = {}, totals[kStripe / 8] = {};
};

struct Kernels {
  const char* isa;
  const char* numerics;  // sets of equal name agree bit for bit

  // out[row · stride + lane] (+)= tile · row (+ bias[lane]) for `rows` rows from `row` on; rows <= 16.
  void (*multiply_tile)(const Matrix& m, int tile, const Activations& a, int row, int rows, const float* bias,
                        bool accumulate, float* out, int stride);
  // out = x / sqrt(mean(x²) + eps) · weight
  void (*rms_norm)(const float* x, const float* weight, float eps, int n, float* out);
  // Row `row` of `a`, groups from `group` on: n values of x, the rest of the last group zero.
  void (*quantize)(const float* x, int n, const Activations& a, int row, int group);
  // gate[i] = gate[i] · sigmoid(gate[i]) · up[i]; n a multiple of 16
  void (*swiglu)(float* gate, const float* up, int n);
  // Rounds n values, a multiple of 16, to half precision.
  void (*to_half)(const float* x, int n, uint16_t* out);
  // Rounds n values, a multiple of 16, to multiples of max|x| / 127, which is returned.
  float (*to_int8)(const float* x, int n, int8_t* out);
  // As to_int8, but with a half float as the scale of every kKeyGroup elements.
  void (*keys_to_int8)(const float* x, int n, int8_t* out, uint16_t* scales);
  void (*attend)(const AttentionPart& part);
  // (maximum, sum, out) of a part folded into a running total of one query.
  void (*merge)(float maximum, float sum, const float* out, int head_dim, float* total_maximum, float* total_sum,
                float* total);
  // w[i] = exp((x[i] − maximum) / temperature)
  void (*weights)(const float* x, int n, float maximum, float temperature, float* w);
  // near[i] = exp(-width · |at − point i|²) for `tiles` tiles of points, [tile][dimension][kPointTile].
  void (*nearness)(const float* at, const float* points, int dimensions, int tiles, float width, float* near);
  // Copies whole stripes and adds them to a sum. `past_cache`: for a place that is not read soon.
  void (*copy_summed)(uint8_t* to, const uint8_t* from, size_t stripes, bool past_cache, BlockSum* sum);
};

// isa.cpp: what this processor can run, best first; never empty.
struct Isas {
  const Kernels* const* begin_;
  int count;
};
Isas available_isas();
// Throws std::invalid_argument where this processor has no such instruction set.
const Kernels& find_kernels(const std::string& isa);

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2;
extern const Kernels kAvx512Vnni;
#endif

}  // namespace headrace
