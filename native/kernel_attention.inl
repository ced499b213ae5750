// One part of attention for queries that share keys and values, and the merging of parts.

namespace headrace {
namespace {

// Keys and values as the cache keeps them: half floats, or bytes with scales that lie behind a block's elements.
INLINE fvec load_cached(const uint16_t* p) { return load_f16(p); }
INLINE fvec load_cached(const int8_t* p) { return load_i8(p); }

template <class Element>
constexpr bool kScaled = sizeof(Element) == 1;

template <class Element>
INLINE const Element* elements(const uint8_t* block) {
  return reinterpret_cast<const Element*>(block);
}

template <class Element>
INLINE const float* value_scales(const uint8_t* block, int head_dim) {
  return reinterpret_cast<const float*>(block + size_t(head_dim) * kBlock * sizeof(Element));
}

template <class Element>
INLINE const uint16_t* key_scales(const uint8_t* block, int head_dim) {
  return reinterpret_cast<const uint16_t*>(block + size_t(head_dim) * kBlock * sizeof(Element));
}

constexpr int kLine = 64;  // bytes

// Scores of `queries` queries against some tokens of `blocks` neighbouring blocks: a lane is a token. `after` are the
// blocks that will be read next.
template <class Element, int queries, int blocks>
INLINE void score_blocks(const AttentionPart& part, int query, int block, int lane, const uint8_t* const* after) {
  fvec acc[queries * blocks];
#pragma GCC unroll 24
  for (int i = 0; i < queries * blocks; ++i) acc[i] = fvec{};
  const float* q = part.queries + query;
  for (int first = 0; first < part.head_dim; first += kKeyGroup) {
    fvec scale[blocks];
    if constexpr (kScaled<Element>)
      for (int b = 0; b < blocks; ++b)
        scale[b] =
            load_f16(key_scales<Element>(part.keys[block + b], part.head_dim) + first / kKeyGroup * kBlock + lane);
    for (int d = first; d < first + kKeyGroup; ++d, q += part.count) {
#pragma GCC unroll 4
      for (int b = 0; b < blocks; ++b) {
        constexpr int bytes = kBlock * sizeof(Element);
        if (d % (kLine / bytes) == 0 && lane == 0) __builtin_prefetch(after[b] + d * bytes);
        fvec k = load_cached(elements<Element>(part.keys[block + b]) + d * kBlock + lane);
        if constexpr (kScaled<Element>) k *= scale[b];
#pragma GCC unroll 16
        for (int i = 0; i < queries; ++i) acc[b * queries + i] = fma(vsplat(q[i]), k, acc[b * queries + i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int b = 0; b < blocks; ++b)
#pragma GCC unroll 16
    for (int i = 0; i < queries; ++i)
      store(part.scores + size_t(query + i) * kPart + (block + b) * kBlock + lane, acc[b * queries + i]);
}

template <class Element, int queries>
INLINE void score(const AttentionPart& part, int query, int blocks) {
  constexpr int many = queries * 4 <= kScoreSums ? 4 : queries * 2 <= kScoreSums ? 2 : 1;
  for (int lane = 0; lane < kBlock; lane += kLanes) {
    int b = 0;
    for (; b + many <= blocks; b += many) {
      // After the last keys the first values are read.
      const bool last = b + 2 * many > blocks;
      score_blocks<Element, queries, many>(part, query, b, lane, last ? part.values : part.keys + b + many);
    }
    for (; b < blocks; ++b) score_blocks<Element, queries, 1>(part, query, b, lane, part.values + b);
  }
}

// out[query] = Σ_j weight[query][j] · value[j], tokens ascending: a lane is an element of the head.
template <class Element, int queries, int vectors>
INLINE void blend(const AttentionPart& part, int query, int element, int tokens) {
  fvec acc[queries * vectors];
#pragma GCC unroll 24
  for (int i = 0; i < queries * vectors; ++i) acc[i] = fvec{};
  const float* weights = part.scores + size_t(query) * kPart;
  for (int j = 0; j < tokens; ++j) {
    const int at = (j % kBlock) * part.head_dim + element;
    const Element* v = elements<Element>(part.values[j / kBlock]) + at;
    if (j + kValuesAhead < tokens) {
      const Element* later = elements<Element>(part.values[(j + kValuesAhead) / kBlock]) + at;
      for (int n = 0; n < vectors * kLanes; n += kLine / sizeof(Element)) __builtin_prefetch(later + n);
    }
    fvec value[vectors];
#pragma GCC unroll 4
    for (int n = 0; n < vectors; ++n) value[n] = load_cached(v + kLanes * n);
#pragma GCC unroll 8
    for (int i = 0; i < queries; ++i) {
      const fvec weight = vsplat(weights[i * kPart + j]);
#pragma GCC unroll 4
      for (int n = 0; n < vectors; ++n) acc[i * vectors + n] = fma(weight, value[n], acc[i * vectors + n]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < queries; ++i)
#pragma GCC unroll 4
    for (int n = 0; n < vectors; ++n)
      store(part.out + size_t(query + i) * part.head_dim + element + kLanes * n, acc[i * vectors + n]);
}

template <class Element, int queries>
INLINE void blend_all(const AttentionPart& part, int query, int tokens) {
  int element = 0;
  for (; element + 4 * kLanes <= part.head_dim; element += 4 * kLanes)
    blend<Element, queries, 4>(part, query, element, tokens);
  for (; element < part.head_dim; element += kLanes) blend<Element, queries, 1>(part, query, element, tokens);
}

// Scores to weights exp(score − maximum), those of tokens a query does not see to zero; then, times the scales of the
// values they belong to.
template <class Element>
INLINE void soften(const AttentionPart& part, int query, int tokens) {
  float* s = part.scores + size_t(query) * kPart;
  const int visible = part.visible[query];
  const i32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const f32x16 nothing = splat(-INFINITY);
  f32x16 largest = nothing;
  for (int j = 0; j < tokens; j += 16) {
    const f32x16 x = lane + j < visible ? load<f32x16>(s + j) : nothing;
    store(s + j, x);
    largest = max(x, largest);
  }
  const float maximum = reduce_max(largest);
  f32x16 sum{};
  for (int j = 0; j < tokens; j += 16) {
    const f32x16 w = exp(load<f32x16>(s + j) - splat(visible ? maximum : 0.0f));
    sum += w;
    if constexpr (kScaled<Element>)
      store(s + j, w * load<f32x16>(value_scales<Element>(part.values[j / kBlock], part.head_dim)));
    else
      store(s + j, w);
  }
  part.maximum[query] = maximum;
  part.sum[query] = reduce_add(sum);
}

template <class Element>
INLINE void attend_cached(const AttentionPart& part) {
  int tokens = 0;
  for (int i = 0; i < part.count; ++i) tokens = part.visible[i] > tokens ? part.visible[i] : tokens;
  const int blocks = (tokens + kBlock - 1) / kBlock;
  in_pieces(part.count, ScoreQueries{},
            [&](auto piece, int query) { score<Element, piece.count>(part, query, blocks); });
  for (int query = 0; query < part.count; ++query) soften<Element>(part, query, tokens);
  in_pieces(part.count, BlendQueries{},
            [&](auto piece, int query) { blend_all<Element, piece.count>(part, query, tokens); });
}

void attend(const AttentionPart& part) {
  if (part.int8)
    attend_cached<int8_t>(part);
  else
    attend_cached<uint16_t>(part);
}

void merge(float maximum, float sum, const float* out, int head_dim, float* total_maximum, float* total_sum,
           float* total) {
  const float larger = maximum > *total_maximum ? maximum : *total_maximum;
  const f32x16 old_weight = exp(splat(*total_maximum) - splat(larger));
  const f32x16 new_weight = exp(splat(maximum) - splat(larger));
  *total_maximum = larger;
  *total_sum = fma(new_weight, splat(sum), old_weight * splat(*total_sum))[0];
  for (int d = 0; d < head_dim; d += 16)
    store(total + d, fma(new_weight, load<f32x16>(out + d), old_weight * load<f32x16>(total + d)));
}

}  // namespace
}  // namespace headrace
