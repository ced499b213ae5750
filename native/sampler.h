// The choice of a token from a row of logits. backends/reference_sampler.py is its plain definition.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels.h"

namespace headrace {

// As SAMPLING_DTYPE in backends/sampling.py.
struct SamplingRecord {
  uint64_t seed;
  uint32_t prompt_index, choice_index, position;
  int32_t top_k;
  float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
};
static_assert(sizeof(SamplingRecord) == 48);

struct TopLogprobs {
  float chosen = 0;
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
};

// Uniform in [0, 1) from Philox4x32-10 (Salmon et al., 2011) keyed by the seed, counting (position, choice, prompt).
double uniform(const SamplingRecord& record);

// Addends to the logits of distinct tokens, in 0 … vocab-1.
struct Biases {
  std::span<const int32_t> ids;
  const float* values;
};

// A token id. `history` holds prompt tokens as their ids and output tokens as -1 - id; `mask` a bit for each token that
// is allowed, or is null. `logits` is overwritten.
int32_t sample(const Kernels& kernels, float* logits, int vocab, const SamplingRecord& record, const Biases& biases,
               std::span<const int32_t> history, const uint32_t* mask);

// Of the chosen token and of the n most likely, under the unmodified distribution.
TopLogprobs top_logprobs(const Kernels& kernels, const float* logits, int vocab, int32_t chosen, int n);

}  // namespace headrace
