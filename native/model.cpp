#include "model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace headrace {
namespace {

int padded(int n, int unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

Model::Model(const std::string& isa, int threads, int max_rows)
    : kernels_(find_kernels(isa)), pool_(std::max(threads, 1)), max_rows_(max_rows) {
  ops_.push_back(std::make_unique<CopyOp>(cache_));
}

int Model::add_matrix(Type type, int outputs, int inputs, size_t offset) {
  Matrix m = Matrix::shaped(type, outputs, inputs);
  if (offset % 64 || offset > weights_.size() || m.bytes() > weights_.size() - offset)
    throw std::out_of_range("offset: the matrix does not lie within the packed weights");
  m.data = weights_.data() + offset;
  matrices_.push_back(m);
  return static_cast<int>(matrices_.size()) - 1;
}

int Model::add_vector(std::span<const float> values) {
  vectors_.emplace_back(values.begin(), values.end());
  vectors_.back().resize(padded(static_cast<int>(values.size()), kTile), 0.0f);  // read in whole tiles
  return static_cast<int>(vectors_.size()) - 1;
}

int Model::add_buffer(int width) {
  width = padded(width, kTile);
  buffers_.push_back({width, Mapping(size_t(width) * max_rows_ * sizeof(float))});
  return static_cast<int>(buffers_.size()) - 1;
}

Activations Model::make_activations(int width, int capacity, bool with_floats, Mapping& memory) const {
  const size_t cells = size_t(padded(width, kGroup)) / kGroup * capacity;
  const size_t cell_bytes = kGroup + 4 * sizeof(float) + (with_floats ? kGroup * sizeof(float) : 0);
  memory = Mapping(cells * cell_bytes + 64);
  uint8_t* p = memory.data();
  const auto take = [&](size_t bytes) {
    uint8_t* taken = p;
    p += cells * bytes;
    return taken;
  };
  Activations a;
  a.capacity = capacity;
  if (with_floats) a.floats = reinterpret_cast<float*>(take(kGroup * sizeof(float)));
  a.values = reinterpret_cast<int8_t*>(take(kGroup));
  a.scales = reinterpret_cast<float*>(take(sizeof(float)));
  a.scaled_sums = reinterpret_cast<float*>(take(sizeof(float)));
  a.sums = reinterpret_cast<int32_t*>(take(sizeof(int32_t)));
  a.low_sums = reinterpret_cast<int32_t*>(take(sizeof(int32_t)));
  return a;
}

int Model::add_activations(int width, bool with_floats) {
  activation_memory_.emplace_back();
  activations_.push_back(make_activations(width, max_rows_, with_floats, activation_memory_.back()));
  return static_cast<int>(activations_.size()) - 1;
}

void Model::embed(Type type, int vocab, int width, const uint8_t* table, int out) {
  vocab_ = vocab;
  ops_.push_back(std::make_unique<EmbedOp>(type, width, table, buffers_.at(out)));
}

void Model::norm(int x, int weight, float eps, int width, int out) {
  ops_.push_back(std::make_unique<NormOp>(kernels_, buffers_.at(x), vectors_.at(weight).data(), eps, width,
                                          activations_.at(out), nullptr));
}

void Model::linear(int in, const std::vector<Product>& products) {
  std::vector<LinearOp::Part> parts;
  for (const Product& p : products)
    parts.push_back(
        {matrices_.at(p.matrix), p.bias < 0 ? nullptr : vectors_.at(p.bias).data(), p.accumulate, &buffers_.at(p.out)});
  ops_.push_back(std::make_unique<LinearOp>(kernels_, activations_.at(in), std::move(parts), false, threads()));
}

void Model::swiglu(int in, int gate, int up, int out) {
  ops_.push_back(std::make_unique<SwigluOp>(kernels_, activations_.at(in), matrices_.at(gate), matrices_.at(up),
                                            activations_.at(out), threads()));
}

void Model::attention(int query, int key, int value, AttentionShape shape, int layer, const Rope& rope, float scale,
                      int key_factors, int out) {
  shape_ = shape;
  rope_ = rope;
  ops_.push_back(std::make_unique<RopeStoreOp>(
      kernels_, shape, buffers_.at(query), buffers_.at(key), buffers_.at(value), cache_, layer, rope.dims, rope.halves,
      scale, key_factors < 0 ? nullptr : vectors_.at(key_factors).data(), rope_table_));
  ops_.push_back(std::make_unique<AttentionOp>(kernels_, shape, buffers_.at(query), cache_, layer, activations_.at(out),
                                               scratch_));
  ops_.push_back(std::make_unique<MergeOp>(kernels_, shape, activations_.at(out), scratch_));
}

void Model::head(int x, int weight, float eps, int width, int matrix, int vocab) {
  const Matrix& m = matrices_.at(matrix);
  hidden_.width = padded(width, kTile);
  logits_.width = m.tiles * kTile;
  head_floats_ = format_of(m.type).bits == 0;
  ops_.push_back(
      std::make_unique<NormOp>(kernels_, buffers_.at(x), vectors_.at(weight).data(), eps, width, head_in_, &hidden_));
  std::vector<LinearOp::Part> parts{{m, nullptr, false, &logits_}};
  ops_.push_back(std::make_unique<LinearOp>(kernels_, head_in_, std::move(parts), true, threads()));
  ops_.push_back(std::make_unique<SampleOp>(kernels_, logits_, vocab));
}

void Model::allocate_cache(int layers, int kv_heads, int head_dim, bool int8, int blocks) {
  cache_.layers = layers;
  cache_.kv_heads = kv_heads;
  cache_.head_dim = head_dim;
  cache_.int8 = int8;
  cache_.blocks = blocks;
  cache_.memory = Mapping(cache_.block_bytes() * blocks);
}

void Model::grow_rope_table(int positions) {
  const int pairs = rope_.dims / 2, have = pairs ? static_cast<int>(rope_table_.size()) / rope_.dims : positions;
  if (positions <= have) return;
  positions = padded(positions, 1024);
  rope_table_.resize(size_t(positions) * rope_.dims);
  for (int i = 0; i < pairs; ++i) {
    double frequency = std::pow(double(rope_.base), -2.0 * i / rope_.dims) * rope_.position_scale;
    if (rope_.factors >= 0) frequency /= vectors_[rope_.factors][i];
    for (int p = have; p < positions; ++p) {
      rope_table_[size_t(p) * rope_.dims + 2 * i] = static_cast<float>(std::cos(p * frequency));
      rope_table_[size_t(p) * rope_.dims + 2 * i + 1] = static_cast<float>(std::sin(p * frequency));
    }
  }
}

void Model::grow_yields(int yields) {
  if (yields <= yield_capacity_) return;
  yield_capacity_ = padded(yields, 16);
  logits_.memory = Mapping(size_t(logits_.width) * yield_capacity_ * sizeof(float));
  hidden_.memory = Mapping(size_t(hidden_.width) * yield_capacity_ * sizeof(float));
  head_in_ = make_activations(hidden_.width, yield_capacity_, head_floats_, head_memory_);
}

void Model::check() const {
  const Step& s = step_;
  const auto require = [](bool good, const char* what) {
    if (!good) throw std::invalid_argument(what);
  };
  const int rows = s.rows(), sequences = s.sequences();
  require(rows > 0 && rows <= max_rows_, "tokens: the number of rows is out of range");
  require(int(s.positions.size()) == rows, "positions: one for each row is needed");
  require(sequences > 0 && s.sequence_starts.front() == 0 && s.sequence_starts.back() == rows,
          "sequence_starts: must begin at 0 and end at the number of rows");
  for (int32_t token : s.tokens) require(token >= 0 && token < vocab_, "tokens: an id is out of range");
  for (int i = 0; i < sequences; ++i) {
    const int first = s.sequence_starts[i], last = s.sequence_starts[i + 1];
    require(first < last && last <= rows, "sequence_starts: must ascend");
    require(s.positions[first] >= 0, "positions: must not be negative");
    for (int r = first + 1; r < last; ++r)
      require(s.positions[r] == s.positions[r - 1] + 1, "positions: must ascend by one within a sequence");
    const int blocks = s.positions[last - 1] / kBlock + 1;
    require(blocks <= s.table_width, "block_tables: too narrow for a position");
    for (int b = 0; b < blocks; ++b)
      require(s.blocks(i)[b] >= 0 && s.blocks(i)[b] < cache_.blocks, "block_tables: a block is out of range");
  }
  for (int32_t r : s.yield_rows) require(r >= 0 && r < rows, "yield_rows: a row is out of range");
  for (const BlockCopy& c : s.copies)
    require(std::min(c.source, c.target) >= 0 && std::max(c.source, c.target) < cache_.blocks,
            "copies: a block is out of range");
}

void Model::start() {
  check();
  Step& s = step_;
  s.row_sequence.resize(s.rows());
  for (int i = 0; i < s.sequences(); ++i)
    std::fill(s.row_sequence.begin() + s.sequence_starts[i], s.row_sequence.begin() + s.sequence_starts[i + 1], i);
  grow_rope_table(*std::max_element(s.positions.begin(), s.positions.end()) + 1);
  grow_yields(s.yields());
  s.sampled.assign(s.yields(), -1);
  s.logprobs.assign(s.yields(), {});
  s.masks_known.store(false, std::memory_order_relaxed);
  plan_attention(s, shape_, threads());
  const size_t places = size_t(s.split_parts) * kMaxQueries * shape_.heads;
  if (scratch_.totals.size() < 2 * places) {
    scratch_.totals.resize(2 * places);
    scratch_.values.resize(places * shape_.head_dim);
  }
  std::vector<int> items;
  for (const auto& op : ops_) items.push_back(op->items(s));
  pool_.start(*this, items);
}

void Model::run(int phase, int item) { ops_[phase]->run(step_, item); }

void Model::finish(const uint32_t* masks) {
  step_.masks = masks;
  step_.masks_known.store(true, std::memory_order_release);
  step_.masks_known.notify_all();
  pool_.finish();
}

}  // namespace headrace
