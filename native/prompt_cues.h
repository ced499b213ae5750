// What is read from a prompt's text to estimate how difficult it is: the same that routing/cues.py and routing/grams.py
// read when an estimator is trained, of one prompt, in some ten microseconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headrace {

constexpr int kCues = 56;
constexpr int kBuckets = 1 << 14;

// A count for each bucket that a prompt fills; kept between prompts, so that none has to make it anew.
class Bag {
 public:
  Bag() : counts_(kBuckets) {}
  void add(uint32_t bucket) {
    if (!counts_[bucket]++) filled_.push_back(bucket);
  }
  void clear() {
    for (uint32_t bucket : filled_) counts_[bucket] = 0;
    filled_.clear();
  }
  std::span<const uint32_t> filled() const { return filled_; }
  int count(uint32_t bucket) const { return counts_[bucket]; }

 private:
  std::vector<int> counts_;
  std::vector<uint32_t> filled_;
};

// `text`: UTF-8, both ends of a long prompt. Adds to both bags.
std::array<double, kCues> read_prompt(std::span<const uint8_t> text, Bag& words, Bag& letters);

}  // namespace headrace
