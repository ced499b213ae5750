// A plan: a model's weights, buffers and fused ops, and the steps that run through them.
//
// It is built once, op by op, by backends/cpu. After that a step is start() and finish(), and nothing is allocated that
// an earlier step of the same size has already needed.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops.h"
#include "thread_pool.h"

namespace headrace {

class Model : private ThreadPool::Work {
 public:
  Model(const std::string& isa, int threads, int max_rows);

  const Kernels& kernels() const { return kernels_; }
  int threads() const { return pool_.threads(); }

  // Compute on leased cores only; the lease must outlive the model.
  void lease_cores(CoreLease* lease) { pool_.lease_cores(lease); }

  // Weights. Matrices lie packed in memory, aligned to a cache line, that outlives the model.
  void use_weights(std::span<const uint8_t> packed) { weights_ = packed; }
  int add_matrix(Type type, int outputs, int inputs, size_t offset);
  int add_vector(std::span<const float> values);

  // Places for values: float matrices, and rows quantised for products.
  int add_buffer(int width);
  int add_activations(int width, bool with_floats);

  // `table` is the tensor as in the file, and must outlive the model.
  void embed(Type type, int vocab, int width, const uint8_t* table, int out);
  void norm(int x, int weight, float eps, int width, int out);
  // Products of one input: for each (matrix, bias or -1, buffer, add to what is there).
  struct Product {
    int matrix, bias, out;
    bool accumulate;
  };
  void linear(int in, const std::vector<Product>& products);
  void swiglu(int in, int gate, int up, int out);
  struct Rope {
    int dims;
    float base, position_scale;
    bool halves;
    int factors;  // vector or -1
  };
  void attention(int query, int key, int value, AttentionShape shape, int layer, const Rope& rope, float scale,
                 int key_factors, int out);
  // The last ops: normalised yielding rows, then logits.
  void head(int x, int weight, float eps, int width, int matrix, int vocab);

  void allocate_cache(int layers, int kv_heads, int head_dim, bool int8, int blocks);
  Cache& cache() { return cache_; }
  int vocab() const { return vocab_; }
  int width() const { return hidden_.width; }

  // Fill in step() and call start(). Throws std::invalid_argument for a plan that does not fit the model.
  Step& step() { return step_; }
  void start();
  // `masks` are rows of bits as the step's `mask_rows` number them; null where it has none.
  void finish(const uint32_t* masks);
  const float* logits(int yield) const { return logits_.row(yield); }
  const float* hidden(int yield) const { return hidden_.row(yield); }

 private:
  void run(int phase, int item) override;
  void check() const;
  void grow_rope_table(int positions);
  void grow_yields(int yields);
  Activations make_activations(int width, int capacity, bool with_floats, Mapping& memory) const;

  const Kernels& kernels_;
  ThreadPool pool_;
  int max_rows_;
  std::span<const uint8_t> weights_;
  std::vector<Matrix> matrices_;
  std::deque<std::vector<float>> vectors_;
  std::deque<Buffer> buffers_;
  std::deque<Activations> activations_;
  std::deque<Mapping> activation_memory_;
  std::vector<std::unique_ptr<Op>> ops_;
  Cache cache_;
  AttentionShape shape_{};
  AttentionScratch scratch_;
  Rope rope_{};
  std::vector<float> rope_table_;
  Buffer logits_, hidden_;
  Activations head_in_;
  Mapping head_memory_;
  bool head_floats_ = false;
  int vocab_ = 0, yield_capacity_ = 0;
  Step step_;
};

}  // namespace headrace
