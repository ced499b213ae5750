// Paged attention: rows are cut into tiles, contexts into parts at absolute multiples of 256 tokens. A part has its own
// maximum and sum, and parts are merged in ascending order, whether one thread computes them all or several some.
#include <algorithm>
#include <cmath>

#include "ops.h"

namespace headrace {
namespace {

int parts_until(int position) { return position / kPart + 1; }

// Fold of a query's parts, and its quantised result.
struct Total {
  float maximum = -INFINITY, sum = 0;
  float* values;
};

void emit(const Kernels& kernels, Total& total, int head_dim, const Activations& out, int row, int head) {
  for (int d = 0; d < head_dim; ++d) total.values[d] /= total.sum;
  kernels.quantize(total.values, head_dim, out, row, head * head_dim / kGroup);
}

}  // namespace

void plan_attention(Step& step, const AttentionShape& shape, int threads) {
  step.tiles.clear();
  step.splits.clear();
  step.split_parts = 0;
  for (int s = 0; s < step.sequences(); ++s)
    for (int r = step.sequence_starts[s]; r < step.sequence_starts[s + 1]; r += shape.tile_rows()) {
      const int rows = std::min(shape.tile_rows(), step.sequence_starts[s + 1] - r);
      step.tiles.push_back({s, r, rows, 0, parts_until(step.positions[r + rows - 1]), -1});
    }
  if (int(step.tiles.size()) * shape.kv_heads >= 4 * threads) return;
  std::vector<AttentionTile> units;
  for (AttentionTile& tile : step.tiles) {
    if (tile.parts == 1) {
      units.push_back(tile);
      continue;
    }
    tile.scratch = step.split_parts;
    step.splits.push_back(tile);
    for (int part = 0; part < tile.parts; ++part)
      units.push_back({tile.sequence, tile.row, tile.rows, part, 1, tile.scratch + part});
    step.split_parts += tile.parts;
  }
  step.tiles = std::move(units);
}

int AttentionOp::items(const Step& step) const { return static_cast<int>(step.tiles.size()) * shape.kv_heads; }

void AttentionOp::run(Step& step, int item) const {
  const AttentionTile& tile = step.tiles[item / shape.kv_heads];
  const int kv_head = item % shape.kv_heads, group = shape.group(), head_dim = shape.head_dim;
  const int32_t* blocks = step.blocks(tile.sequence);
  thread_local std::vector<float> queries, scores, part_values, total_values;
  queries.resize(kMaxQueries * head_dim);
  scores.resize(kMaxQueries * kPart);
  part_values.resize(kMaxQueries * head_dim);
  total_values.resize(kMaxQueries * head_dim);

  // A group of more than kMaxQueries heads takes several calls.
  for (int first = 0; first < group; first += kMaxQueries) {
    const int heads = std::min(kMaxQueries, group - first), count = heads * tile.rows;
    for (int i = 0; i < count; ++i) {
      const float* q = query.row(tile.row + i / heads) + (kv_head * group + first + i % heads) * head_dim;
      for (int d = 0; d < head_dim; ++d) queries[d * count + i] = q[d];
    }
    Total totals[kMaxQueries];
    for (int i = 0; i < count; ++i) {
      totals[i].values = total_values.data() + i * head_dim;
      std::fill_n(totals[i].values, head_dim, 0.0f);
    }
    for (int part = tile.part; part < tile.part + tile.parts; ++part) {
      const uint8_t *keys[kPart / kBlock] = {}, *values[kPart / kBlock] = {};
      int visible[kMaxQueries];
      float maximum[kMaxQueries], sum[kMaxQueries];
      for (int i = 0; i < count; ++i)
        visible[i] = std::clamp(step.positions[tile.row + i / heads] + 1 - part * kPart, 0, kPart);
      const int longest = visible[count - 1];  // of the last row
      for (int b = 0; b * kBlock < longest; ++b) {
        const int block = blocks[part * (kPart / kBlock) + b];
        keys[b] = cache.keys(block, layer, kv_head);
        values[b] = cache.values(block, layer, kv_head);
      }
      kernels.attend({keys, values, cache.int8, queries.data(), count, head_dim, visible, scores.data(), maximum, sum,
                      part_values.data()});
      for (int i = 0; i < count; ++i) {
        const float* out_values = part_values.data() + i * head_dim;
        const int head = kv_head * group + first + i % heads;
        if (tile.scratch >= 0) {
          const size_t at = (size_t(tile.scratch) * kMaxQueries + i / heads) * shape.heads + head;
          scratch.totals[2 * at] = maximum[i];
          scratch.totals[2 * at + 1] = sum[i];
          std::copy_n(out_values, head_dim, scratch.values.data() + at * head_dim);
        } else if (visible[i]) {
          kernels.merge(maximum[i], sum[i], out_values, head_dim, &totals[i].maximum, &totals[i].sum, totals[i].values);
        }
      }
    }
    if (tile.scratch < 0)
      for (int i = 0; i < count; ++i)
        emit(kernels, totals[i], head_dim, out, tile.row + i / heads, kv_head * group + first + i % heads);
  }
}

int MergeOp::items(const Step& step) const { return static_cast<int>(step.splits.size()) * shape.heads; }

void MergeOp::run(Step& step, int item) const {
  const AttentionTile& tile = step.splits[item / shape.heads];
  const int head = item % shape.heads;
  thread_local std::vector<float> values;
  for (int r = 0; r < tile.rows; ++r) {
    values.assign(shape.head_dim, 0.0f);
    Total total{.values = values.data()};
    for (int part = 0; part < parts_until(step.positions[tile.row + r]); ++part) {
      const size_t at = (size_t(tile.scratch + part) * kMaxQueries + r) * shape.heads + head;
      kernels.merge(scratch.totals[2 * at], scratch.totals[2 * at + 1], scratch.values.data() + at * shape.head_dim,
                    shape.head_dim, &total.maximum, &total.sum, total.values);
    }
    emit(kernels, total, shape.head_dim, out, tile.row + r, head);
  }
}

}  // namespace headrace
