// The ops of a plan, fused from a graph: each says how many items a step gives it, and computes any one of them.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels.h"
#include "step.h"

namespace headrace {

// A float matrix of one row per token (or per yielding row).
struct Buffer {
  int width = 0;  // padded to whole tiles
  Mapping memory;
  float* row(int r) const { return memory.as<float>() + size_t(r) * width; }
};

struct Op {
  virtual ~Op() = default;
  virtual int items(const Step& step) const = 0;
  virtual void run(Step& step, int item) const = 0;
};

// Copies shared blocks that a sequence is about to write into.
struct CopyOp : Op {
  const Cache& cache;
  explicit CopyOp(const Cache& cache) : cache(cache) {}
  int items(const Step& step) const override;
  void run(Step& step, int item) const override;
};

struct EmbedOp : Op {
  Type type;
  int width;
  const uint8_t* table;
  size_t row_bytes;
  Buffer& out;
  EmbedOp(Type type, int width, const uint8_t* table, Buffer& out);
  int items(const Step& step) const override;
  void run(Step& step, int item) const override;
};

// Normalises rows and quantises them for the products that follow; of all rows, or only of those that yield.
struct NormOp : Op {
  const Kernels& kernels;
  const Buffer& x;
  const float* weight;
  float eps;
  int width;
  const Activations& out;
  Buffer* yielded;  // where the normalised yielding rows are kept; null: all rows are computed, none kept
  NormOp(const Kernels& k, const Buffer& x, const float* weight, float eps, int width, const Activations& out,
         Buffer* yielded)
      : kernels(k), x(x), weight(weight), eps(eps), width(width), out(out), yielded(yielded) {}
  int items(const Step& step) const override;
  void run(Step& step, int item) const override;
};

// How the tiles of some matrices and the rows of a step are cut into items.
struct Cut {
  int tiles_per_item, row_chunks, rows_per_item;
  Cut(int tiles, int rows, int threads);
};

// Products of several matrices with the same rows.
struct LinearOp : Op {
  struct Part {
    Matrix matrix;
    const float* bias;
    bool accumulate;
    Buffer* out;
  };
  const Kernels& kernels;
  const Activations& in;
  std::vector<Part> parts;
  bool of_yields;  // of the yielding rows: the logits, which a step of hidden states does without
  int threads, tiles = 0;
  LinearOp(const Kernels& k, const Activations& in, std::vector<Part> parts, bool of_yields, int threads);
  int items(const Step& step) const override;
  void run(Step& step, int item) const override;
};

// The gated half of a feed-forward network: two products, the activation, and the rows quantised for the third.
struct SwigluOp : Op {
  const Kernels& kernels;
  const Activations& in;
  Matrix gate, up;
  const Activations& out;
  int threads;
  SwigluOp(const Kernels& k, const Activations& in, Matrix gate, Matrix up, const Activations& out, int threads)
      : kernels(k), in(in), gate(gate), up(up), out(out), threads(threads) {}
  int items(const Step& step) const override;
  void run(Step& step, int item) const override;
};

struct AttentionShape {
  int heads, kv_heads, head_dim;
  int group() const { return heads / kv_heads; }
  // Rows whose queries fit into one kernel call.
  int tile_rows() const { return group() >= kMaxQueries ? 1 : kMaxQueries / group(); }
};

// Rotary embedding of queries and keys; keys and values to the cache; queries scaled for the scores. Where `factors`
// are given, [kv_head][head_dim] powers of two, keys are divided and queries multiplied by them: exactly the same
// products, but no element of a key so much larger than the others that it takes their bits when the key is rounded.
struct RopeStoreOp : Op {
  const Kernels& kernels;
  AttentionShape shape;
  Buffer &query, &key, &value;
  const Cache& cache;
  int layer, dims;
  bool halves;
  float scale;
  const float* factors;
  const std::vector<float>& table;  // [position][dims/2] of cosine, sine
  RopeStoreOp(const Kernels& k, AttentionShape shape, Buffer& query, Buffer& key, Buffer& value, const Cache& cache,
              int layer, int dims, bool halves, float scale, const float* factors, const std::vector<float>& table)
      : kernels(k),
        shape(shape),
        query(query),
        key(key),
        value(value),
        cache(cache),
        layer(layer),
        dims(dims),
        halves(halves),
        scale(scale),
        factors(factors),
        table(table) {}
  int items(const Step& step) const override;
  void run(Step& step, int item) const override;

 private:
  void rotate(float* heads, int count, const float* angles) const;
  void store(const float* key, const float* value, uint8_t* keys, uint8_t* values, int slot) const;
};

// Room for the parts of split tiles: for each part and head maximum and sum, and the weighted values.
struct AttentionScratch {
  std::vector<float> totals, values;
};

struct AttentionOp : Op {
  const Kernels& kernels;
  AttentionShape shape;
  const Buffer& query;
  const Cache& cache;
  int layer;
  const Activations& out;
  AttentionScratch& scratch;
  AttentionOp(const Kernels& k, AttentionShape shape, const Buffer& query, const Cache& cache, int layer,
              const Activations& out, AttentionScratch& scratch)
      : kernels(k), shape(shape), query(query), cache(cache), layer(layer), out(out), scratch(scratch) {}
  int items(const Step& step) const override;
  void run(Step& step, int item) const override;
};

// Merges the parts of split tiles, in ascending order.
struct MergeOp : Op {
  const Kernels& kernels;
  AttentionShape shape;
  const Activations& out;
  const AttentionScratch& scratch;
  MergeOp(const Kernels& k, AttentionShape shape, const Activations& out, const AttentionScratch& scratch)
      : kernels(k), shape(shape), out(out), scratch(scratch) {}
  int items(const Step& step) const override;
  void run(Step& step, int item) const override;
};

// attention.cpp: cuts a step's rows into tiles, and these into parts where there is too little work to share.
void plan_attention(Step& step, const AttentionShape& shape, int threads);

struct SampleOp : Op {
  const Kernels& kernels;
  const Buffer& logits;
  int vocab;
  SampleOp(const Kernels& k, const Buffer& logits, int vocab) : kernels(k), logits(logits), vocab(vocab) {}
  int items(const Step& step) const override;
  void run(Step& step, int item) const override;
};

}  // namespace headrace
