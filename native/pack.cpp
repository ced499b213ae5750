// From a file's blocks to a kernel's tiles: the same bits in another order.
#include <cstring>

#include "formats.h"
#include "unpack.h"

namespace headrace {
namespace {

// One group of 32 values of 16 outputs, as bytes, to the layout that formats.h describes. Four values move at a time.
void pack_values(const Format& f, const uint32_t q[kTile][8], uint8_t* out) {
  auto* words = reinterpret_cast<uint32_t*>(out);
  if (f.bits == 8) {
    for (int c = 0; c < 8; ++c)
      for (int lane = 0; lane < kTile; ++lane) words[c * kTile + lane] = q[lane][c];
    return;
  }
  for (int c = 0; c < 4; ++c)
    for (int lane = 0; lane < kTile; ++lane)
      words[c * kTile + lane] = (q[lane][c] & 0x0f0f0f0fu) | (q[lane][c + 4] & 0x0f0f0f0fu) << 4;
  uint32_t* planes = words + 4 * kTile;
  if (f.bits == 5)
    for (int lane = 0; lane < kTile; ++lane) {
      uint32_t plane = 0;
      for (int c = 0; c < 8; ++c) plane |= (q[lane][c] >> 4 & 0x01010101u) << c;
      planes[lane] = plane;
    }
  if (f.bits == 6)
    for (int lane = 0; lane < kTile; ++lane)
      for (int p = 0; p < 2; ++p) {
        uint32_t plane = 0;
        for (int c = 0; c < 4; ++c) plane |= (q[lane][4 * p + c] >> 4 & 0x03030303u) << 2 * c;
        planes[p * kTile + lane] = plane;
      }
}

void pack_quantized(const Matrix& m, const Format& f, const uint8_t* source, int tile, uint8_t* target) {
  const size_t row_bytes = size_t(m.inputs) / f.block_values * f.block_bytes;
  const int groups_per_block = f.block_values / kGroup;
  uint8_t* scales = target;
  uint8_t* values = target + tile_scale_bytes(f, m.inputs);
  std::memset(scales, 0, values - scales);
  for (int g = 0; g < m.groups; ++g) {
    uint32_t q[kTile][8] = {};
    for (int lane = 0; lane < kTile; ++lane) {
      const int output = tile * kTile + lane;
      if (output >= m.outputs) continue;  // zero scales make the padding zero
      const uint8_t* block = source + output * row_bytes + size_t(g / groups_per_block) * f.block_bytes;
      uint8_t bytes[kGroup];
      unpack_values(f.type, block, g % groups_per_block, bytes);
      std::memcpy(q[lane], bytes, sizeof bytes);
      if (f.scales == Scales::per_group) {
        uint16_t* at = reinterpret_cast<uint16_t*>(scales) + size_t(g) * kTile * (f.minimum ? 2 : 1) + lane;
        std::memcpy(at, block, 2);
        if (f.minimum) std::memcpy(at + kTile, block + 2, 2);
        continue;
      }
      uint8_t* super = scales + size_t(g / 8) * super_scale_bytes(f);
      uint16_t* halves = reinterpret_cast<uint16_t*>(super) + lane;
      uint8_t* sub = super + 64 + lane;
      if (f.scales == Scales::super_groups) {
        std::memcpy(halves, block, 2);
        std::memcpy(halves + kTile, block + 2, 2);
        const SubScale s = sub_scale(block + 4, g % 8);
        sub[g % 8 * kTile] = s.scale;
        sub[(8 + g % 8) * kTile] = s.minimum;
      } else {
        std::memcpy(halves, block + 208, 2);
        sub[g % 8 * 2 * kTile] = block[192 + g % 8 * 2];
        sub[(g % 8 * 2 + 1) * kTile] = block[192 + g % 8 * 2 + 1];
      }
    }
    pack_values(f, q, values + g * group_value_bytes(f));
  }
}

void pack_floats(const Matrix& m, const Format& f, const uint8_t* source, int tile, uint8_t* target) {
  const size_t size = f.block_bytes, row_bytes = size * m.inputs;
  std::memset(target, 0, m.tile_bytes);
  for (int lane = 0; lane < kTile && tile * kTile + lane < m.outputs; ++lane) {
    const uint8_t* row = source + (tile * kTile + lane) * row_bytes;
    for (int k = 0; k < m.inputs; ++k) std::memcpy(target + (size_t(k) * kTile + lane) * size, row + k * size, size);
  }
}

}  // namespace

void pack_tile(const Matrix& matrix, const uint8_t* source, int tile, uint8_t* target) {
  const Format& f = format_of(matrix.type);
  if (f.bits)
    pack_quantized(matrix, f, source, tile, target);
  else
    pack_floats(matrix, f, source, tile, target);
}

}  // namespace headrace
