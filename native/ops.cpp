#include "ops.h"

#include <algorithm>
#include <cstring>

namespace headrace {
namespace {

constexpr int kRowChunk = 128;      // rows of activations that stay in the second-level cache
constexpr int kItemsPerThread = 8;  // enough that threads end together
constexpr int kRowsPerItem = 8;     // of the cheap ops on rows

int row_items(int rows) { return (rows + kRowsPerItem - 1) / kRowsPerItem; }

}  // namespace

int CopyOp::items(const Step& step) const { return step.copies.empty() ? 0 : 1; }

void CopyOp::run(Step& step, int) const {
  uint8_t* memory = cache.memory.data();
  // In order: a block may be copied from and then, evicted, be copied to.
  for (const auto [source, target] : step.copies)
    std::memcpy(memory + target * cache.block_bytes(), memory + source * cache.block_bytes(), cache.block_bytes());
}

EmbedOp::EmbedOp(Type type, int width, const uint8_t* table, Buffer& out)
    : type(type), width(width), table(table), out(out) {
  const Format& f = format_of(type);
  row_bytes = size_t(width) / f.block_values * f.block_bytes;
}

int EmbedOp::items(const Step& step) const { return row_items(step.rows()); }

void EmbedOp::run(Step& step, int item) const {
  const int end = std::min(step.rows(), (item + 1) * kRowsPerItem);
  for (int r = item * kRowsPerItem; r < end; ++r)
    dequantize_row(type, table + step.tokens[r] * row_bytes, width, out.row(r));
}

int NormOp::items(const Step& step) const { return row_items(yielded ? step.yields() : step.rows()); }

void NormOp::run(Step& step, int item) const {
  thread_local std::vector<float> scratch;
  scratch.resize(width);
  const int end = std::min(yielded ? step.yields() : step.rows(), (item + 1) * kRowsPerItem);
  for (int r = item * kRowsPerItem; r < end; ++r) {
    float* normed = yielded ? yielded->row(r) : scratch.data();
    kernels.rms_norm(x.row(yielded ? step.yield_rows[r] : r), weight, eps, width, normed);
    kernels.quantize(normed, width, out, r, 0);
  }
}

Cut::Cut(int tiles, int rows, int threads) {
  rows_per_item = std::min(rows, kRowChunk);
  row_chunks = (rows + kRowChunk - 1) / kRowChunk;
  tiles_per_item = std::clamp(tiles * row_chunks / (threads * kItemsPerThread), 1, 16);
}

LinearOp::LinearOp(const Kernels& k, const Activations& in, std::vector<Part> parts, bool of_yields, int threads)
    : kernels(k), in(in), parts(std::move(parts)), of_yields(of_yields), threads(threads) {
  for (const Part& part : this->parts) tiles += part.matrix.tiles;
}

int LinearOp::items(const Step& step) const {
  const auto hidden = [](uint8_t kind) { return Yield(kind) == Yield::hidden; };
  if (of_yields && std::all_of(step.yield_kinds.begin(), step.yield_kinds.end(), hidden)) return 0;
  const int rows = of_yields ? step.yields() : step.rows();
  const Cut cut(tiles, rows, threads);
  return (tiles + cut.tiles_per_item - 1) / cut.tiles_per_item * cut.row_chunks;
}

void LinearOp::run(Step& step, int item) const {
  const int rows = of_yields ? step.yields() : step.rows();
  const Cut cut(tiles, rows, threads);
  const int columns = (tiles + cut.tiles_per_item - 1) / cut.tiles_per_item;
  const int first_row = item / columns * cut.rows_per_item, last_row = std::min(rows, first_row + cut.rows_per_item);
  int tile = item % columns * cut.tiles_per_item;
  const int last_tile = std::min(tiles, tile + cut.tiles_per_item);
  size_t p = 0;
  int before = 0;  // tiles of the parts before p
  for (; tile < last_tile; ++tile) {
    while (tile >= before + parts[p].matrix.tiles) before += parts[p++].matrix.tiles;
    const Part& part = parts[p];
    const int own = tile - before;
    const float* bias = part.bias ? part.bias + own * kTile : nullptr;
    for (int r = first_row; r < last_row; r += 16)
      kernels.multiply_tile(part.matrix, own, in, r, std::min(16, last_row - r), bias, part.accumulate,
                            part.out->row(r) + own * kTile, part.out->width);
  }
}

int SwigluOp::items(const Step& step) const {
  const int groups = (gate.tiles + 1) / 2;
  const Cut cut(groups, step.rows(), threads);
  return (groups + cut.tiles_per_item - 1) / cut.tiles_per_item * cut.row_chunks;
}

void SwigluOp::run(Step& step, int item) const {
  const int rows = step.rows(), groups = (gate.tiles + 1) / 2;
  const Cut cut(groups, rows, threads);
  const int columns = (groups + cut.tiles_per_item - 1) / cut.tiles_per_item;
  const int first_row = item / columns * cut.rows_per_item, last_row = std::min(rows, first_row + cut.rows_per_item);
  const int first = item % columns * cut.tiles_per_item, last = std::min(groups, first + cut.tiles_per_item);
  for (int g = first; g < last; ++g)
    for (int r = first_row; r < last_row; r += 16) {
      const int count = std::min(16, last_row - r);
      alignas(64) float gates[16 * kGroup] = {}, ups[16 * kGroup] = {};
      for (int t = 2 * g; t < std::min(gate.tiles, 2 * g + 2); ++t) {
        kernels.multiply_tile(gate, t, in, r, count, nullptr, false, gates + t % 2 * kTile, kGroup);
        kernels.multiply_tile(up, t, in, r, count, nullptr, false, ups + t % 2 * kTile, kGroup);
      }
      kernels.swiglu(gates, ups, count * kGroup);
      for (int i = 0; i < count; ++i) kernels.quantize(gates + i * kGroup, kGroup, out, r + i, g);
    }
}

int RopeStoreOp::items(const Step& step) const { return row_items(step.rows()); }

void RopeStoreOp::rotate(float* heads, int count, const float* angles) const {
  const int pairs = dims / 2;
  for (int h = 0; h < count; ++h, heads += shape.head_dim)
    for (int i = 0; i < pairs; ++i) {
      float& a = heads[halves ? i : 2 * i];
      float& b = heads[halves ? i + pairs : 2 * i + 1];
      const float cosine = angles[2 * i], sine = angles[2 * i + 1], x = a, y = b;
      a = x * cosine - y * sine;
      b = x * sine + y * cosine;
    }
}

void RopeStoreOp::store(const float* key, const float* value, uint8_t* keys, uint8_t* values, int slot) const {
  const int head_dim = shape.head_dim;
  thread_local std::vector<uint16_t> rounded;  // of one key, before it is spread over the lanes of its slot
  rounded.resize(head_dim);
  if (cache.int8) {
    auto* bytes = reinterpret_cast<int8_t*>(rounded.data());
    auto* key_scales = reinterpret_cast<uint16_t*>(keys + cache.elements());
    auto* value_scales = reinterpret_cast<float*>(values + cache.elements());
    thread_local std::vector<uint16_t> scales;
    scales.resize(head_dim / kKeyGroup);
    kernels.keys_to_int8(key, head_dim, bytes, scales.data());
    for (int g = 0; g < head_dim / kKeyGroup; ++g) key_scales[g * kBlock + slot] = scales[g];
    for (int d = 0; d < head_dim; ++d) keys[d * kBlock + slot] = bytes[d];
    value_scales[slot] = kernels.to_int8(value, head_dim, reinterpret_cast<int8_t*>(values) + slot * head_dim);
  } else {
    auto* halves = reinterpret_cast<uint16_t*>(keys);
    kernels.to_half(key, head_dim, rounded.data());
    for (int d = 0; d < head_dim; ++d) halves[d * kBlock + slot] = rounded[d];
    kernels.to_half(value, head_dim, reinterpret_cast<uint16_t*>(values) + slot * head_dim);
  }
}

void RopeStoreOp::run(Step& step, int item) const {
  const int head_dim = shape.head_dim;
  const int end = std::min(step.rows(), (item + 1) * kRowsPerItem);
  for (int r = item * kRowsPerItem; r < end; ++r) {
    const int position = step.positions[r], slot = position % kBlock;
    const int block = step.blocks(step.row_sequence[r])[position / kBlock];
    const float* angles = table.data() + size_t(position) * dims;
    float* q = query.row(r);
    rotate(q, shape.heads, angles);
    for (int i = 0; i < shape.heads * head_dim; ++i) q[i] *= scale;
    rotate(key.row(r), shape.kv_heads, angles);
    if (factors) {
      for (int h = 0; h < shape.heads; ++h)
        for (int d = 0; d < head_dim; ++d) q[h * head_dim + d] *= factors[h / shape.group() * head_dim + d];
      for (int i = 0; i < shape.kv_heads * head_dim; ++i) key.row(r)[i] /= factors[i];
    }
    for (int h = 0; h < shape.kv_heads; ++h)
      store(key.row(r) + h * head_dim, value.row(r) + h * head_dim, cache.keys(block, layer, h),
            cache.values(block, layer, h), slot);
  }
}

int SampleOp::items(const Step& step) const { return step.yields(); }

void SampleOp::run(Step& step, int item) const {
  const Yield kind = Yield(step.yield_kinds[item]);
  float* row = logits.row(item);
  const int wanted = step.top_counts[item];
  if (kind == Yield::score) step.logprobs[item] = top_logprobs(kernels, row, vocab, step.scored[item], wanted);
  if (kind != Yield::token) return;
  const std::span<const int32_t> history(step.history.data() + step.history_starts[item],
                                         step.history.data() + step.history_starts[item + 1]);
  Biases biases{};
  if (!step.bias_starts.empty()) {
    const int first = step.bias_starts[item], last = step.bias_starts[item + 1];
    biases = {{step.bias_ids.data() + first, step.bias_ids.data() + last}, step.bias_values.data() + first};
  }
  const uint32_t* mask = nullptr;
  if (!step.mask_rows.empty() && step.mask_rows[item] >= 0) {
    step.masks_known.wait(false, std::memory_order_acquire);
    mask = step.masks + step.mask_rows[item] * ((size_t(vocab) + 31) / 32);
  }
  thread_local std::vector<float> unmodified;
  if (wanted >= 0) unmodified.assign(row, row + vocab);  // sampling overwrites the row
  step.sampled[item] = sample(kernels, row, vocab, step.sampling[item], biases, history, mask);
  if (wanted >= 0) step.logprobs[item] = top_logprobs(kernels, unmodified.data(), vocab, step.sampled[item], wanted);
}

}  // namespace headrace
