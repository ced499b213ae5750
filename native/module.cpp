// The Python module headrace._native: thin, typed, and without a loop over layers or tokens.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "model.h"
#include "prompt_estimator.h"
#include "ring.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace headrace;

template <class T, int dims>
using Array = nb::ndarray<const T, nb::ndim<dims>, nb::c_contig, nb::device::cpu>;
using Bytes = Array<uint8_t, 1>;
template <class T>
using NumpyArray = nb::ndarray<nb::numpy, T>;

Type checked_type(int number) {
  for (const Format& format : kFormats)
    if (int(format.type) == number) return format.type;
  throw std::invalid_argument("unknown tensor type " + std::to_string(number));
}

void check_shape(Type type, int rows, int columns) {
  if (rows < 1 || columns < 1 || columns % format_of(type).block_values)
    throw std::invalid_argument("a row is not a whole number of blocks");
}

void check_tensor(Type type, int rows, int columns, size_t bytes) {
  const Format& f = format_of(type);
  check_shape(type, rows, columns);
  if (bytes != size_t(rows) * (columns / f.block_values) * f.block_bytes)
    throw std::invalid_argument("the data is not as long as the shape says");
}

template <class T>
void assign(std::vector<T>& to, const Array<T, 1>& from) {
  to.assign(from.data(), from.data() + from.size());
}

// A NumPy array that owns its memory.
template <class T>
NumpyArray<T> new_array(std::vector<T>&& values, std::initializer_list<size_t> shape) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return NumpyArray<T>(kept->data(), shape, owner);
}

// Lays rows `first` … `last`-1 of a tensor, whole tiles of them, out where they belong in the packed matrix.
void pack_rows(int number, int outputs, int inputs, const Bytes& data, int first, int last,
               const nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& packed) {
  const Type type = checked_type(number);
  check_tensor(type, outputs, inputs, data.size());
  const Matrix matrix = Matrix::shaped(type, outputs, inputs);
  if (first < 0 || first % kTile || first > last || last > outputs || packed.size() < matrix.bytes())
    throw std::out_of_range("rows: must be whole tiles within the matrix");
  nb::gil_scoped_release unlocked;
  for (int tile = first / kTile; tile * kTile < last; ++tile)
    pack_tile(matrix, data.data(), tile, packed.data() + tile * matrix.tile_bytes);
}

// Starts, ids and values of biases.
using BiasArrays = std::tuple<Array<int32_t, 1>, Array<int32_t, 1>, Array<float, 1>>;

void check_starts(const std::vector<int32_t>& starts, size_t size, const char* what) {
  for (size_t i = 0; i + 1 < starts.size(); ++i)
    if (starts[i] < 0 || starts[i] > starts[i + 1] || size_t(starts[i + 1]) > size) throw std::invalid_argument(what);
}

void set_biases(Step& s, const std::optional<BiasArrays>& biases, int vocab) {
  s.bias_starts.clear();
  if (!biases) return;
  const auto& [starts, ids, values] = *biases;
  assign(s.bias_starts, starts);
  assign(s.bias_ids, ids);
  assign(s.bias_values, values);
  if (s.bias_starts.size() != s.yield_rows.size() + 1 || s.bias_values.size() != s.bias_ids.size())
    throw std::invalid_argument("biases: starts for each yielding row, and a value for each id are needed");
  check_starts(s.bias_starts, s.bias_ids.size(), "biases: starts must ascend within the ids");
  for (int32_t id : s.bias_ids)
    if (id < 0 || id >= vocab) throw std::invalid_argument("biases: an id is out of range");
}

void start_step(Model& model, const Array<int32_t, 1>& tokens, const Array<int32_t, 1>& positions,
                const Array<int32_t, 1>& sequence_starts, const Array<int32_t, 2>& block_table,
                const Array<int32_t, 1>& yield_rows, const Array<uint8_t, 1>& yield_kinds, const Bytes& sampling,
                const Array<int32_t, 1>& top_logprobs, const Array<int32_t, 1>& history_starts,
                const Array<int32_t, 1>& history, const std::vector<std::pair<int, int>>& copies,
                const std::optional<BiasArrays>& biases, const std::optional<Array<int32_t, 1>>& scored,
                const std::optional<Array<int32_t, 1>>& mask_rows) {
  Step& s = model.step();
  const size_t yields = yield_rows.size();
  if (yield_kinds.size() != yields || sampling.size() != yields * sizeof(SamplingRecord) ||
      top_logprobs.size() != yields || history_starts.size() != yields + 1)
    throw std::invalid_argument("yield_rows: what belongs to a yielding row must be given once for each");
  if (sequence_starts.size() != block_table.shape(0) + 1)
    throw std::invalid_argument("block_tables: one row for each sequence is needed");
  assign(s.tokens, tokens);
  assign(s.positions, positions);
  assign(s.sequence_starts, sequence_starts);
  assign(s.yield_rows, yield_rows);
  assign(s.yield_kinds, yield_kinds);
  assign(s.top_counts, top_logprobs);
  assign(s.history_starts, history_starts);
  assign(s.history, history);
  check_starts(s.history_starts, s.history.size(), "history_starts: must ascend within the history");
  s.block_table.assign(block_table.data(), block_table.data() + block_table.size());
  s.table_width = static_cast<int>(block_table.shape(1));
  s.sampling.resize(yields);
  if (yields) std::memcpy(s.sampling.data(), sampling.data(), sampling.size());
  s.copies.clear();
  for (const auto& [source, target] : copies) s.copies.push_back({source, target});
  set_biases(s, biases, model.vocab());
  s.scored.clear();
  if (scored) assign(s.scored, *scored);
  for (size_t y = 0; y < yields; ++y)
    if (Yield(s.yield_kinds[y]) == Yield::score &&
        (s.scored.size() != yields || s.scored[y] < 0 || s.scored[y] >= model.vocab()))
      throw std::invalid_argument("scored: a token is needed for each row that is scored");
  s.mask_rows.clear();
  if (mask_rows) assign(s.mask_rows, *mask_rows);
  if (mask_rows && mask_rows->size() != yields)
    throw std::invalid_argument("token_masks: one row for each yielding row is needed");
  model.start();
}

// The step is over before an error is thrown: its threads must not go on waiting for masks.
void finish_step(Model& model, const std::optional<Array<uint32_t, 2>>& masks) {
  const std::vector<int32_t>& rows = model.step().mask_rows;
  const int needed = rows.empty() ? 0 : *std::max_element(rows.begin(), rows.end()) + 1;
  const size_t words = (size_t(model.vocab()) + 31) / 32;
  const bool fits = !needed || (masks && masks->shape(0) >= size_t(needed) && masks->shape(1) == words);
  const std::vector<uint32_t> all(fits ? 0 : needed * words, ~0u);
  {
    nb::gil_scoped_release unlocked;
    model.finish(!fits ? all.data() : masks ? masks->data() : nullptr);
  }
  if (!fits) throw std::invalid_argument("token_masks: expected a row of bits for each mask");
}

// Rows of logits or hidden states that yield `kind`.
NumpyArray<float> yielded(Model& model, Yield kind) {
  const Step& s = model.step();
  const size_t width = kind == Yield::logits ? model.vocab() : model.width();
  std::vector<float> rows;
  size_t count = 0;
  for (int y = 0; y < s.yields(); ++y)
    if (Yield(s.yield_kinds[y]) == kind) {
      const float* row = kind == Yield::logits ? model.logits(y) : model.hidden(y);
      rows.insert(rows.end(), row, row + width);
      ++count;
    }
  return new_array(std::move(rows), {count, width});
}

using Logprobs = std::tuple<float, NumpyArray<int32_t>, NumpyArray<float>>;

Logprobs logprobs_of(Model& model, int yield) {
  TopLogprobs top = model.step().logprobs.at(yield);
  const size_t n = top.ids.size();
  return {top.chosen, new_array(std::move(top.ids), {n}), new_array(std::move(top.logprobs), {n})};
}

void bind_lease(nb::module_& module) {
  nb::class_<CoreLease>(module, "CoreLease")
      .def(nb::init<const std::string&, std::vector<int>, int>(), "file"_a, "cores"_a, "count"_a)
      .def("begin",
           [](CoreLease& lease) {
             nb::gil_scoped_release unlocked;
             lease.begin(0);
           })
      .def("end", [](CoreLease& lease) { lease.end(false); });
}

template <class T>
void start_ring(Ring& ring, const std::vector<nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>>& blocks) {
  std::vector<Ring::Block> all;
  for (const auto& block : blocks) all.push_back({const_cast<uint8_t*>(block.data()), block.size()});
  ring.start(std::move(all), std::is_const_v<T>);
}

void bind_ring(nb::module_& module) {
  module.attr("RING_CONTROL_BYTES") = Ring::kControlBytes;
  nb::class_<Ring>(module, "Ring")
      .def(
          "__init__",
          [](Ring* ring, const std::string& isa,
             const nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& memory, int wake) {
            if (memory.size() <= Ring::kControlBytes || memory.size() % kStripe)
              throw std::invalid_argument("memory: too small for a ring, or no whole number of stripes");
            new (ring) Ring(find_kernels(isa), memory.data(), memory.size() - Ring::kControlBytes, wake);
          },
          "isa"_a, "memory"_a, "wake"_a, nb::keep_alive<1, 3>())
      .def("send", &start_ring<const uint8_t>, "blocks"_a)
      .def("receive", &start_ring<uint8_t>, "blocks"_a)
      .def("advance", &Ring::advance, nb::call_guard<nb::gil_scoped_release>())
      .def("checksums", &Ring::checksums);
}

void bind_estimator(nb::module_& module) {
  module.attr("CUES") = kCues;
  nb::class_<PromptEstimator>(module, "PromptEstimator")
      .def(
          "__init__",
          [](PromptEstimator* estimator, const Array<float, 1>& centre, const Array<float, 1>& scale,
             const Array<float, 2>& support, const Array<float, 2>& duals, const Array<float, 2>& rarities,
             const Array<float, 3>& weights, const Array<float, 1>& means, const Array<float, 2>& links,
             const Array<int32_t, 1>& anchors, const Array<float, 2>& inverse, const Array<float, 1>& prior,
             float width, float furthest) {
            auto all = [](const auto& array) { return std::vector(array.data(), array.data() + array.size()); };
            new (estimator)
                PromptEstimator({all(centre), all(scale), all(support), all(duals), all(rarities), all(weights),
                                 all(means), all(links), all(anchors), all(inverse), all(prior), width, furthest});
          },
          "centre"_a, "scale"_a, "support"_a, "duals"_a, "rarities"_a, "weights"_a, "means"_a, "links"_a, "anchors"_a,
          "inverse"_a, "prior"_a, "width"_a, "furthest"_a)
      .def(
          "estimate",
          [](PromptEstimator& estimator, const nb::bytes& text) {
            std::vector<double> good(estimator.models()), spread(estimator.models());
            estimator.estimate({static_cast<const uint8_t*>(text.data()), text.size()}, good, spread);
            const size_t n = good.size();
            return std::pair(new_array(std::move(good), {n}), new_array(std::move(spread), {n}));
          },
          "text"_a);
}

void bind_building(nb::class_<Model>& model) {
  model.def(nb::init<const std::string&, int, int>(), "isa"_a, "threads"_a, "max_rows"_a)
      .def("lease_cores", &Model::lease_cores, "lease"_a, nb::keep_alive<1, 2>())
      .def(
          "use_weights", [](Model& m, const Bytes& packed) { m.use_weights({packed.data(), packed.size()}); },
          "packed"_a, nb::keep_alive<1, 2>())
      .def(
          "add_matrix",
          [](Model& m, int number, int outputs, int inputs, size_t offset) {
            const Type type = checked_type(number);
            check_shape(type, outputs, inputs);
            return m.add_matrix(type, outputs, inputs, offset);
          },
          "type"_a, "outputs"_a, "inputs"_a, "offset"_a)
      .def(
          "add_vector",
          [](Model& m, const Array<float, 1>& values) { return m.add_vector({values.data(), values.size()}); },
          "values"_a)
      .def("add_buffer", &Model::add_buffer, "width"_a)
      .def("add_activations", &Model::add_activations, "width"_a, "with_floats"_a)
      .def(
          "embed",
          [](Model& m, int number, int vocab, int width, const Bytes& data, int out) {
            const Type type = checked_type(number);
            check_tensor(type, vocab, width, data.size());
            m.embed(type, vocab, width, data.data(), out);
          },
          "type"_a, "vocab"_a, "width"_a, "data"_a, "out"_a, nb::keep_alive<1, 5>())
      .def("norm", &Model::norm, "x"_a, "weight"_a, "eps"_a, "width"_a, "out"_a)
      .def(
          "linear",
          [](Model& m, int in, const std::vector<std::tuple<int, int, int, bool>>& products) {
            std::vector<Model::Product> all;
            for (const auto& [matrix, bias, out, accumulate] : products) all.push_back({matrix, bias, out, accumulate});
            m.linear(in, all);
          },
          "x"_a, "products"_a)
      .def("swiglu", &Model::swiglu, "x"_a, "gate"_a, "up"_a, "out"_a)
      .def(
          "attention",
          [](Model& m, int query, int key, int value, int heads, int kv_heads, int head_dim, int layer, int dims,
             float base, float position_scale, bool halves, int factors, float scale, int key_factors, int out) {
            m.attention(query, key, value, {heads, kv_heads, head_dim}, layer,
                        {dims, base, position_scale, halves, factors}, scale, key_factors, out);
          },
          "query"_a, "key"_a, "value"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "layer"_a, "dims"_a, "base"_a,
          "position_scale"_a, "halves"_a, "factors"_a, "scale"_a, "key_factors"_a, "out"_a)
      .def("head", &Model::head, "x"_a, "weight"_a, "eps"_a, "width"_a, "matrix"_a, "vocab"_a)
      .def("allocate_cache", &Model::allocate_cache, "layers"_a, "kv_heads"_a, "head_dim"_a, "int8"_a, "blocks"_a);
}

void bind_running(nb::class_<Model>& model) {
  model
      .def("start", &start_step, "tokens"_a, "positions"_a, "sequence_starts"_a, "block_table"_a, "yield_rows"_a,
           "yield_kinds"_a, "sampling"_a, "top_logprobs"_a, "history_starts"_a, "history"_a, "copies"_a,
           "biases"_a = nb::none(), "scored"_a = nb::none(), "mask_rows"_a = nb::none())
      .def("finish", &finish_step, "masks"_a = nb::none())
      .def("sampled",
           [](Model& m) {
             std::vector<int32_t> tokens = m.step().sampled;
             const size_t n = tokens.size();
             return new_array(std::move(tokens), {n});
           })
      .def("logits", [](Model& m) { return yielded(m, Yield::logits); })
      .def("hidden", [](Model& m) { return yielded(m, Yield::hidden); })
      .def("logprobs", &logprobs_of)
      .def(
          "cache_memory",
          [](Model& m) {
            const Cache& c = m.cache();
            return NumpyArray<uint8_t>(c.memory.data(), {size_t(c.blocks), c.block_bytes()}, nb::find(m));
          },
          "The blocks themselves, writable: [blocks, bytes of a block]. Keeps the model alive.");
}

}  // namespace

NB_MODULE(_native, module) {
  nb::set_leak_warnings(false);  // a process may end while a thread of its still has a connection, and so a ring
  module.doc() = "The compiled core of Headrace: plans, kernels, sampler.";
  module.attr("SAMPLING_RECORD_BYTES") = sizeof(SamplingRecord);
  module.attr("PACKED_LAYOUT") = kPackedLayout;
  module.attr("TILE_ROWS") = kTile;
  module.def(
      "available_isas",
      [] {
        std::vector<std::pair<std::string, std::string>> names;
        const Isas isas = available_isas();
        for (int i = 0; i < isas.count; ++i) names.emplace_back(isas.begin_[i]->isa, isas.begin_[i]->numerics);
        return names;
      },
      "(instruction set, kernel class) this processor can run, best first.");
  module.def(
      "packed_bytes",
      [](int number, int outputs, int inputs) {
        return (Matrix::shaped(checked_type(number), outputs, inputs).bytes() + 63) / 64 * 64;
      },
      "type"_a, "outputs"_a, "inputs"_a);
  module.def(
      "dequantize_row",
      [](int number, int inputs, const Bytes& data) {
        const Type type = checked_type(number);
        check_tensor(type, 1, inputs, data.size());
        std::vector<float> out(inputs);
        dequantize_row(type, data.data(), inputs, out.data());
        return new_array(std::move(out), {size_t(inputs)});
      },
      "type"_a, "inputs"_a, "data"_a);
  module.def("pack_rows", &pack_rows, "type"_a, "outputs"_a, "inputs"_a, "data"_a, "first"_a, "last"_a, "packed"_a);
  bind_lease(module);
  bind_ring(module);
  bind_estimator(module);
  nb::class_<Model> model(module, "Model");
  bind_building(model);
  bind_running(model);
}
