// What all ops of a step see: the flattened batch and the cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "sampler.h"

namespace headrace {

enum class Yield : uint8_t { token = 1, logits = 2, hidden = 3, score = 4 };

// The paged cache of one group of layers. A block holds, for each layer and key-value head, keys [head_dim][16] and,
// after all heads' keys, values [16][head_dim]: half floats, or bytes followed by scales,
// [head_dim/kKeyGroup][16] half floats of the keys and [16] floats of the values.
struct Cache {
  int layers = 0, kv_heads = 0, head_dim = 0, blocks = 0;
  bool int8 = false;
  Mapping memory;

  size_t elements() const { return size_t(head_dim) * kBlock; }
  size_t key_bytes() const {
    return int8 ? elements() + head_dim / kKeyGroup * kBlock * sizeof(uint16_t) : elements() * sizeof(uint16_t);
  }
  size_t value_bytes() const { return int8 ? elements() + kBlock * sizeof(float) : elements() * sizeof(uint16_t); }
  size_t layer_bytes() const { return size_t(kv_heads) * (key_bytes() + value_bytes()); }
  size_t block_bytes() const { return layers * layer_bytes(); }
  uint8_t* keys(int block, int layer, int head) const {
    return memory.data() + block * block_bytes() + layer * layer_bytes() + head * key_bytes();
  }
  uint8_t* values(int block, int layer, int head) const { return keys(block, layer, kv_heads) + head * value_bytes(); }
};

// Neighbouring rows of one sequence whose queries are computed together, and which parts of the context of.
struct AttentionTile {
  int sequence, row, rows;
  int part, parts;   // parts part … part+parts-1
  int scratch;       // where a split tile leaves its parts; -1: the tile has all parts and is not split
};

struct BlockCopy {
  int32_t source, target;
};

struct Step {
  std::vector<int32_t> tokens, positions, sequence_starts, block_table, yield_rows, top_counts, history_starts, history;
  std::vector<int32_t> row_sequence;
  std::vector<uint8_t> yield_kinds;
  std::vector<SamplingRecord> sampling;
  std::vector<int32_t> bias_starts, bias_ids;  // as history_starts and history; empty where no row has biases
  std::vector<float> bias_values;
  std::vector<int32_t> scored;     // of each yielding row, the token whose log-probability it asks; empty: none does
  std::vector<int32_t> mask_rows;  // of each yielding row, its mask's row or -1; empty: no row has a mask
  const uint32_t* masks = nullptr;  // known only when the step is collected: until then the sampler waits
  std::atomic<bool> masks_known{false};
  std::vector<BlockCopy> copies;
  int table_width = 0;

  std::vector<AttentionTile> tiles;   // units of attention work
  std::vector<AttentionTile> splits;  // tiles whose parts are computed apart, and must be merged
  int split_parts = 0;                // places in the scratch

  // Results.
  std::vector<int32_t> sampled;
  std::vector<TopLogprobs> logprobs;

  int rows() const { return static_cast<int>(tokens.size()); }
  int yields() const { return static_cast<int>(yield_rows.size()); }
  int sequences() const { return static_cast<int>(sequence_starts.size()) - 1; }
  const int32_t* blocks(int sequence) const { return block_table.data() + size_t(sequence) * table_width; }
};

}  // namespace headrace
