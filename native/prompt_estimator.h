// The chances that models answer a prompt well, by what routing/train.py has learnt; routing/estimator.py says how.
#pragma once

#include <span>
#include <vector>

#include "kernels.h"
#include "prompt_cues.h"

namespace headrace {

class PromptEstimator {
 public:
  using Floats = std::vector<float>;

  // Shapes as in routing/estimator.py, with M models, N prompts and A anchors.
  struct Learnt {
    Floats centre, scale;      // (kCues)
    Floats support, duals;     // (N, kCues), (N, M)
    Floats rarities, weights;  // (2, kBuckets), (2, kBuckets, M)
    Floats means, links;       // (M), (M, 2)
    std::vector<int32_t> anchors;
    Floats inverse, prior;  // (A, A), (M)
    float width;            // of the kernel
    float furthest;         // standard deviations beyond which a cue tells no more
  };

  // Throws std::invalid_argument for shapes that do not fit. The kernels are the best that this processor has.
  explicit PromptEstimator(Learnt learnt);

  // `good` and `spread`: (M). One call at a time.
  void estimate(std::span<const uint8_t> text, std::span<double> good, std::span<double> spread);
  size_t models() const { return learnt_.means.size(); }

 private:
  void add_bag(const Bag& bag, size_t kind);
  void measure_nearness(const std::array<double, kCues>& cues);

  const Kernels& kernels_;
  Learnt learnt_;
  size_t rows_ = 0;  // N
  Floats points_;    // the support's rows as `nearness` takes them
  Floats near_;      // to each of them, and to what fills the last tile
  Floats anchors_;  // the same, to the anchors
  std::vector<double> values_, terms_;
  Bag words_, letters_;
};

}  // namespace headrace
