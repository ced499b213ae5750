#include "prompt_estimator.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace headrace {
namespace {

constexpr int kLanes = 8;

// In lanes, so that a compiler may use vectors without reordering a sum.
float dot(const float* a, const float* b, size_t size) {
  float sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= size; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  float total = 0;
  for (float sum : sums) total += sum;
  for (; i < size; ++i) total += a[i] * b[i];
  return total;
}

}  // namespace

PromptEstimator::PromptEstimator(Learnt learnt) : kernels_(*available_isas().begin_[0]), learnt_(std::move(learnt)) {
  const size_t models = learnt_.means.size(), rows = learnt_.support.size() / kCues, anchors = learnt_.anchors.size();
  const bool fits = learnt_.centre.size() == kCues && learnt_.scale.size() == kCues &&
                    learnt_.support.size() == rows * kCues && learnt_.duals.size() == rows * models &&
                    learnt_.rarities.size() == 2 * kBuckets && learnt_.weights.size() == 2 * kBuckets * models &&
                    learnt_.links.size() == 2 * models && learnt_.inverse.size() == anchors * anchors &&
                    learnt_.prior.size() == models;
  const auto within = [rows](int32_t row) { return row >= 0 && size_t(row) < rows; };
  if (!fits || !std::all_of(learnt_.anchors.begin(), learnt_.anchors.end(), within))
    throw std::invalid_argument("the estimator's arrays do not fit each other");
  rows_ = rows;
  anchors_.resize(anchors);
  values_.resize(models);
  const size_t tiles = (rows + kPointTile - 1) / kPointTile;
  near_.resize(tiles * kPointTile);
  points_.resize(tiles * kPointTile * kCues);
  for (size_t row = 0; row < rows; ++row)
    for (size_t cue = 0; cue < kCues; ++cue)
      points_[(row / kPointTile * kCues + cue) * kPointTile + row % kPointTile] = learnt_.support[row * kCues + cue];
  Floats().swap(learnt_.support);
}

void PromptEstimator::estimate(std::span<const uint8_t> text, std::span<double> good, std::span<double> spread) {
  const size_t models = values_.size();
  words_.clear();
  letters_.clear();
  measure_nearness(read_prompt(text, words_, letters_));
  std::copy(learnt_.means.begin(), learnt_.means.end(), values_.begin());
  for (size_t row = 0; row < rows_; ++row)
    for (size_t m = 0; m < models; ++m) values_[m] += double(near_[row]) * learnt_.duals[row * models + m];
  add_bag(words_, 0);
  add_bag(letters_, 1);
  for (size_t i = 0; i < anchors_.size(); ++i) anchors_[i] = near_[learnt_.anchors[i]];
  double known = 0;
  for (size_t i = 0; i < anchors_.size(); ++i)
    known += double(dot(&learnt_.inverse[i * anchors_.size()], anchors_.data(), anchors_.size())) * anchors_[i];
  const double unknown = std::max(0.0, 1.0 - known);
  for (size_t m = 0; m < models; ++m) {
    good[m] = 1 / (1 + std::exp(-(learnt_.links[2 * m] + learnt_.links[2 * m + 1] * values_[m])));
    spread[m] = std::sqrt(learnt_.prior[m] * unknown);
  }
}

void PromptEstimator::measure_nearness(const std::array<double, kCues>& cues) {
  float at[kCues];
  for (int i = 0; i < kCues; ++i) {
    const double deviations = (cues[i] - learnt_.centre[i]) / learnt_.scale[i];
    at[i] = float(std::clamp(deviations, -double(learnt_.furthest), double(learnt_.furthest)));
  }
  const int tiles = int(near_.size() / kPointTile);
  kernels_.nearness(at, points_.data(), kCues, tiles, learnt_.width / kCues, near_.data());
}

// Of each bucket one plus the logarithm of its count, times its rarity; the squares of all sum to one.
void PromptEstimator::add_bag(const Bag& bag, size_t kind) {
  const size_t models = values_.size();
  const float* rarities = &learnt_.rarities[kind * kBuckets];
  const float* weights = &learnt_.weights[kind * kBuckets * models];
  double squares = 0;
  terms_.clear();
  for (uint32_t bucket : bag.filled()) {
    terms_.push_back((1 + std::log(double(bag.count(bucket)))) * rarities[bucket]);
    squares += terms_.back() * terms_.back();
  }
  const double length = squares > 0 ? std::sqrt(squares) : 1.0;
  for (size_t i = 0; i < terms_.size(); ++i)
    for (size_t m = 0; m < models; ++m) values_[m] += terms_[i] / length * weights[bag.filled()[i] * models + m];
}

}  // namespace headrace
