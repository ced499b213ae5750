#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace headrace {
namespace {

void penalize(float* logits, int vocab, const SamplingRecord& r, std::span<const int32_t> history) {
  thread_local std::vector<int32_t> counts;  // of output tokens; -1: in the prompt alone
  counts.assign(vocab, 0);
  for (int32_t entry : history) {
    const int32_t token = entry >= 0 ? entry : -1 - entry;
    if (token >= vocab) continue;
    if (entry < 0)
      counts[token] = std::max(counts[token], 0) + 1;
    else if (counts[token] == 0)
      counts[token] = -1;
  }
  for (int token = 0; token < vocab; ++token) {
    const int32_t count = counts[token];
    if (count == 0) continue;
    float x = logits[token];
    x = x > 0 ? x / r.repetition_penalty : x * r.repetition_penalty;
    if (count > 0) {
      x -= r.presence_penalty;
      x -= r.frequency_penalty * float(count);
    }
    logits[token] = x;
  }
}

void forbid(float* logits, int vocab, const uint32_t* mask) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (int first = 0; first < vocab; first += 32) {
    const uint32_t allowed = mask[first / 32];
    if (allowed == ~0u) continue;
    const int end = std::min(vocab, first + 32);
    for (int i = first; i < end; ++i) logits[i] = allowed >> (i - first) & 1 ? logits[i] : kNever;
  }
}

int32_t largest(const float* x, int n) {
  int32_t best = 0;
  for (int32_t i = 1; i < n; ++i)
    if (x[i] > x[best]) best = i;
  return best;
}

// The ids that truncation keeps, ascending.
std::vector<int32_t> truncate(const float* logits, const float* weights, int vocab, const SamplingRecord& r) {
  std::vector<int32_t> kept;
  for (int32_t i = 0; i < vocab; ++i)
    if (weights[i] > 0.0f) kept.push_back(i);
  const auto likelier = [&](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  if (r.top_k > 0 && size_t(r.top_k) < kept.size()) {
    std::nth_element(kept.begin(), kept.begin() + r.top_k, kept.end(), likelier);
    kept.resize(r.top_k);
    std::sort(kept.begin(), kept.end());
  }
  if (r.min_p > 0) std::erase_if(kept, [&](int32_t i) { return weights[i] < r.min_p; });
  if (r.top_p < 1) {
    double total = 0, reached = 0;
    for (int32_t i : kept) total += weights[i];
    // A heap yields the likeliest one by one; mostly a few are enough.
    const auto less = [&](int32_t a, int32_t b) { return likelier(b, a); };
    std::make_heap(kept.begin(), kept.end(), less);
    auto end = kept.end();
    do {
      std::pop_heap(kept.begin(), end, less);
      reached += weights[*--end];
    } while (reached < double(r.top_p) * total && end != kept.begin());
    kept.erase(kept.begin(), end);
    std::sort(kept.begin(), kept.end());
  }
  return kept;
}

}  // namespace

double uniform(const SamplingRecord& record) {
  uint32_t c[4] = {record.position, record.choice_index, record.prompt_index, 0};
  uint32_t key[2] = {static_cast<uint32_t>(record.seed), static_cast<uint32_t>(record.seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(0xD2511F53u) * c[0], b = uint64_t(0xCD9E8D57u) * c[2];
    const uint32_t next[4] = {uint32_t(b >> 32) ^ c[1] ^ key[0], uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ key[1],
                              uint32_t(a)};
    std::copy(next, next + 4, c);
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return double((uint64_t(c[0]) << 32 | c[1]) >> 11) * 0x1p-53;
}

int32_t sample(const Kernels& kernels, float* logits, int vocab, const SamplingRecord& record, const Biases& biases,
               std::span<const int32_t> history, const uint32_t* mask) {
  for (size_t i = 0; i < biases.ids.size(); ++i) logits[biases.ids[i]] += biases.values[i];
  if (!history.empty()) penalize(logits, vocab, record, history);
  if (mask) forbid(logits, vocab, mask);
  const int32_t best = largest(logits, vocab);
  if (record.temperature <= 0) return best;

  thread_local std::vector<float> weights;
  weights.resize(vocab);
  kernels.weights(logits, vocab, logits[best], record.temperature, weights.data());
  const double u = uniform(record);
  const auto draw = [&](auto first, auto last) {
    double total = 0, reached = 0;
    for (auto it = first; it != last; ++it) total += weights[*it];
    int32_t chosen = best;
    for (auto it = first; it != last; ++it) {
      reached += weights[*it];
      chosen = *it;
      if (reached > u * total) break;
    }
    return chosen;
  };
  if (record.top_k <= 0 && record.top_p >= 1 && record.min_p <= 0) {
    thread_local std::vector<int32_t> all;
    if (int(all.size()) != vocab) {
      all.resize(vocab);
      std::iota(all.begin(), all.end(), 0);
    }
    return draw(all.begin(), all.end());
  }
  const std::vector<int32_t> kept = truncate(logits, weights.data(), vocab, record);
  return draw(kept.begin(), kept.end());
}

TopLogprobs top_logprobs(const Kernels& kernels, const float* logits, int vocab, int32_t chosen, int n) {
  std::vector<float> weights(vocab);
  const float maximum = logits[largest(logits, vocab)];
  kernels.weights(logits, vocab, maximum, 1.0f, weights.data());
  const double log_total = std::log(std::accumulate(weights.begin(), weights.end(), 0.0));
  const auto logprob = [&](int32_t i) { return float(double(logits[i]) - double(maximum) - log_total); };
  TopLogprobs top;
  top.chosen = logprob(chosen);
  top.ids.resize(vocab);
  std::iota(top.ids.begin(), top.ids.end(), 0);
  n = std::min(n, vocab);
  std::partial_sort(top.ids.begin(), top.ids.begin() + n, top.ids.end(),
                    [&](int32_t a, int32_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); });
  top.ids.resize(n);
  for (int32_t id : top.ids) top.logprobs.push_back(logprob(id));
  return top;
}

}  // namespace headrace
