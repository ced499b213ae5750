// Weight formats, as a file stores them and as the kernels want them.
//
// A packed matrix is cut into tiles of 16 outputs (file rows); one lane of a vector is one output. A tile holds its
// scales first, then its quantised values, both for groups of 32 inputs in file order:
//
//   values   [group][chunk][lane][4]: chunk c holds inputs 4c … 4c+3 of the group. Four-bit chunks share bytes: chunk c
//            lies in the low nibbles, chunk c+4 in the high ones. A fifth bit lies in a plane of 64 bytes a group, bit
//            c of byte [lane][i]; bits five and six in two planes, chunk c in bits 2(c%4) of plane c/4.
//   scales   as the file structures them: [group][16] half floats d (and m), or, for the K formats, for each 256 inputs
//            [16] d, [16] dmin as half floats, then the integer sub-scales as bytes, [8][16] scales and [8][16]
//            minimums, or [16][16] signed scales for Q6_K.
//
// Nothing is requantised: the bits a weight has in the file are the bits it has here. Float matrices lie as
// [input][16].
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

constexpr char kPackedLayout[] = "tiles16-groups32-1";  // a new name for whatever moves a bit

constexpr int kTile = 16;  // outputs in a tile
constexpr int kGroup = 32;  // inputs that share an activation scale
constexpr int kSuper = 256;  // inputs in a K format's super-block

// Numbers as in a GGUF file.
enum class Type : int {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  BF16 = 30,
};

enum class Scales { per_group, super_groups, super_halves, none };

struct Format {
  Type type;
  int block_values;  // values in a block of the file
  int block_bytes;  // bytes of such a block
  int bits;  // of a quantised value; 0 for floats
  int zero;  // the stored value that means zero, where that is not in a minimum
  bool minimum;  // value = scale · q + minimum
  Scales scales;
};

constexpr Format kFormats[] = {
    {Type::F32, 1, 4, 0, 0, false, Scales::none},
    {Type::F16, 1, 2, 0, 0, false, Scales::none},
    {Type::BF16, 1, 2, 0, 0, false, Scales::none},
    {Type::Q4_0, 32, 18, 4, 8, false, Scales::per_group},
    {Type::Q4_1, 32, 20, 4, 0, true, Scales::per_group},
    {Type::Q5_0, 32, 22, 5, 16, false, Scales::per_group},
    {Type::Q5_1, 32, 24, 5, 0, true, Scales::per_group},
    {Type::Q8_0, 32, 34, 8, 128, false, Scales::per_group},
    {Type::Q4_K, 256, 144, 4, 0, true, Scales::super_groups},
    {Type::Q5_K, 256, 176, 5, 0, true, Scales::super_groups},
    {Type::Q6_K, 256, 210, 6, 32, false, Scales::super_halves},
};

constexpr const Format& format_of(Type type) {
  for (const Format& format : kFormats)
    if (format.type == type) return format;
  return kFormats[0];  // types are checked where they enter
}

// Bytes of a group's quantised values in a tile.
constexpr size_t group_value_bytes(const Format& f) { return size_t(f.bits) * kGroup * kTile / 8; }

// Bytes of a super-block's scales in a tile.
constexpr size_t super_scale_bytes(const Format& f) {
  return f.scales == Scales::super_groups ? 2 * 32 + 2 * 8 * kTile : 2 * 32 + 16 * kTile;
}

constexpr size_t tile_scale_bytes(const Format& f, int inputs) {
  switch (f.scales) {
    case Scales::per_group: {
      const size_t bytes = size_t(inputs) / kGroup * kTile * 2 * (f.minimum ? 2 : 1);
      return (bytes + 63) / 64 * 64;
    }
    case Scales::super_groups:
    case Scales::super_halves: return size_t(inputs) / kSuper * super_scale_bytes(f);
    case Scales::none: break;
  }
  return 0;
}

// A matrix ready for the kernels. `inputs` is padded to whole groups, `outputs` to whole tiles, with zeros.
struct Matrix {
  Type type = Type::F32;
  int outputs = 0, inputs = 0;  // as in the file
  int tiles = 0, groups = 0;  // padded
  size_t tile_bytes = 0;
  const uint8_t* data = nullptr;  // [tiles][tile_bytes]

  static Matrix shaped(Type type, int outputs, int inputs) {
    Matrix m;
    m.type = type;
    m.outputs = outputs;
    m.inputs = inputs;
    m.tiles = (outputs + kTile - 1) / kTile;
    m.groups = (inputs + kGroup - 1) / kGroup;
    const Format& f = format_of(type);
    m.tile_bytes = f.bits ? tile_scale_bytes(f, inputs) + m.groups * group_value_bytes(f)
                          : size_t(m.groups) * kGroup * kTile * f.block_bytes;
    return m;
  }
  size_t bytes() const { return tiles * tile_bytes; }
};

// pack.cpp: lays tile `tile` of a matrix out; `source` is the whole tensor as in the file.
void pack_tile(const Matrix& matrix, const uint8_t* source, int tile, uint8_t* target);

// dequantize.cpp: one row of a tensor, `inputs` values, to float32.
void dequantize_row(Type type, const uint8_t* row, int inputs, float* out);

}  // namespace headrace
