// Single rows of a tensor to float32, for the embedding.
#include <bit>
#include <cstring>

#include "formats.h"
#include "unpack.h"

namespace headrace {
namespace {

float half_to_float(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  const uint32_t sign = uint32_t(h & 0x8000) << 16, magnitude = uint32_t(h & 0x7fff) << 13;
  const uint32_t special = (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f) | special | sign);
}

void dequantize_group(const Format& f, const uint8_t* block, int g, float* out) {
  uint8_t q[kGroup];
  unpack_values(f.type, block, g, q);
  if (f.scales == Scales::super_halves) {
    const float d = half_to_float(block + 208);
    for (int i = 0; i < kGroup; ++i) {
      const float scale = d * float(static_cast<int8_t>(block[192 + 2 * g + i / 16]));
      out[i] = scale * float(q[i] - f.zero);
    }
    return;
  }
  float scale = half_to_float(block), minimum = f.minimum ? half_to_float(block + 2) : 0.0f;
  if (f.scales == Scales::super_groups) {
    const SubScale s = sub_scale(block + 4, g);
    scale *= float(s.scale);
    minimum = -(minimum * float(s.minimum));
  }
  for (int i = 0; i < kGroup; ++i) out[i] = scale * float(q[i] - f.zero) + minimum;
}

}  // namespace

void dequantize_row(Type type, const uint8_t* row, int inputs, float* out) {
  const Format& f = format_of(type);
  if (f.bits) {
    for (int k = 0; k < inputs; k += f.block_values, row += f.block_bytes)
      for (int g = 0; g < f.block_values / kGroup; ++g) dequantize_group(f, row, g, out + k + g * kGroup);
    return;
  }
  for (int k = 0; k < inputs; ++k, row += f.block_bytes) {
    if (type == Type::F32) {
      std::memcpy(out + k, row, 4);
    } else if (type == Type::F16) {
      out[k] = half_to_float(row);
    } else {
      uint16_t bits;
      std::memcpy(&bits, row, 2);
      out[k] = std::bit_cast<float>(uint32_t(bits) << 16);
    }
  }
}

}  // namespace headrace
