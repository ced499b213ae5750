// How a file's quantised blocks store their values. Layouts as defined by the GGUF format's reference
// implementation; all integers little-endian.
#pragma once

#include <cstdint>
#include <cstring>

#include "formats.h"

namespace headrace {

struct SubScale {
  uint8_t scale, minimum;  // six bits each
};

// Sub-block j of eight, from the twelve packed bytes of a Q4_K or Q5_K block.
inline SubScale sub_scale(const uint8_t* p, int j) {
  if (j < 4) return {uint8_t(p[j] & 63), uint8_t(p[j + 4] & 63)};
  return {uint8_t((p[j + 4] & 15) | (p[j - 4] >> 6) << 4), uint8_t((p[j + 4] >> 4) | (p[j] >> 6) << 4)};
}

// The 32 values of group g of a block, as unsigned integers (a format's `zero` not yet taken off).
inline void unpack_values(Type type, const uint8_t* block, int g, uint8_t out[32]) {
  switch (type) {
    case Type::Q4_0:
    case Type::Q4_1: {
      const uint8_t* p = block + (type == Type::Q4_0 ? 2 : 4);
      for (int i = 0; i < 16; ++i) out[i] = p[i] & 15, out[i + 16] = p[i] >> 4;
      break;
    }
    case Type::Q5_0:
    case Type::Q5_1: {
      const uint8_t* p = block + (type == Type::Q5_0 ? 2 : 4);
      uint32_t high;
      std::memcpy(&high, p, 4);
      p += 4;
      for (int i = 0; i < 16; ++i) {
        out[i] = (p[i] & 15) | (high >> i & 1) << 4;
        out[i + 16] = p[i] >> 4 | (high >> (i + 16) & 1) << 4;
      }
      break;
    }
    case Type::Q8_0:
      for (int i = 0; i < 32; ++i) out[i] = block[2 + i] ^ 0x80;
      break;
    case Type::Q4_K:
    case Type::Q5_K: {
      const uint8_t* p = block + (type == Type::Q4_K ? 16 : 48) + g / 2 * 32;
      for (int i = 0; i < 32; ++i) out[i] = g % 2 ? p[i] >> 4 : p[i] & 15;
      if (type == Type::Q5_K)
        for (int i = 0; i < 32; ++i) out[i] |= (block[16 + i] >> g & 1) << 4;
      break;
    }
    case Type::Q6_K: {
      const int half = g / 4, quarter = g % 4;  // of 128 values, of 32
      const uint8_t* low = block + half * 64 + quarter % 2 * 32;
      const uint8_t* high = block + 128 + half * 32;
      for (int i = 0; i < 32; ++i)
        out[i] = (quarter / 2 ? low[i] >> 4 : low[i] & 15) | (high[i] >> 2 * quarter & 3) << 4;
      break;
    }
    default: break;  // floats have no groups
  }
}

}  // namespace headrace
