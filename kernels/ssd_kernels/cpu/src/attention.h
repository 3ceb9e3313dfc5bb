// Causal attention of one token over paged KV, for heads that share keys and values.
// A head's sums run over its own positions in order, whatever stands beside it in the pass.
#pragma once
#include "elementwise.h"
#include "kv.h"

namespace ssd {
namespace SSD_ISA {

constexpr int MOST_HEADS = 4;
constexpr int CHUNK = W == 8 ? 2 : 4;  // vectors of the output that are summed together

// The positions `first … last` of one sequence, for one key/value head of one layer.
struct Span {
  const Pages& pages;
  const int64_t* table;
  int64_t head, first, last;

  // Calls each(entry, index) for every position, index 0 at `first`.
  template <class Each>
  void walk(Each each) const {
    int64_t position = first;
    while (position <= last) {
      const int64_t end = (position / pages.block_size + 1) * pages.block_size - 1;
      const uint8_t* entry = pages.at(table, position, head);
      for (const int64_t stop = end < last ? end : last; position <= stop; ++position, entry += pages.stride())
        each(entry, position - first);
    }
  }
};

template <int FORMAT>
inline F tail_vector(const uint8_t* from, int64_t at, int64_t dim) {
  float items[W] = {};
  read_items(FORMAT, from + at * kv_item_bytes(FORMAT), dim - at, items);
  return load(items);
}

template <int FORMAT>
inline F piece(const uint8_t* from, int64_t at, int64_t dim) {
  return at + W <= dim ? read_vector<FORMAT>(from, at) : tail_vector<FORMAT>(from, at, dim);
}

// scores[g][i] = query g · key i. Queries are padded with zeros to whole vectors, `padded` floats each.
template <int FORMAT, int G>
void score(const Span& span, const float* queries, int64_t padded, float* const* scores) {
  const int64_t dim = span.pages.dim;
  span.walk([&](const uint8_t* entry, int64_t index) {
    F sums[G];
    for (int g = 0; g < G; ++g) sums[g] = zero();
    for (int64_t at = 0; at < dim; at += W) {
      const F key = piece<FORMAT>(entry, at, dim);
      for (int g = 0; g < G; ++g) sums[g] = fma(load(queries + g * padded + at), key, sums[g]);
    }
    const float scale = FORMAT >= SSD_KV_INT8 ? *(const float*)(entry + 2 * dim) : 1.0f;
    for (int g = 0; g < G; ++g) scores[g][index] = FORMAT >= SSD_KV_INT8 ? sum_lanes(sums[g]) * scale : sum_lanes(sums[g]);
  });
}

// Scores become e^(score - max); their sum.
inline float weigh(float* scores, int64_t count) {
  float best = scores[0];
  for (int64_t i = 1; i < count; ++i) best = scores[i] > best ? scores[i] : best;
  for (int64_t i = 0; i < count; ++i) scores[i] = exponential(scores[i] - best);
  F sums = zero();
  int64_t i = 0;
  for (; i + W <= count; i += W) sums = add(sums, load(scores + i));
  float total = sum_lanes(sums);
  for (; i < count; ++i) total += scores[i];
  return total;
}

// outputs[g] = Σ weights[g][i] · value i / totals[g].
template <int FORMAT, int G>
void mix(const Span& span, float* const* weights, const float* totals, float* const* outputs) {
  const int64_t dim = span.pages.dim, offset = dim * span.pages.item;
  for (int64_t from = 0; from < dim; from += CHUNK * W) {
    const int64_t vectors = dim - from < CHUNK * W ? (dim - from + W - 1) / W : CHUNK;
    F sums[G][CHUNK];
    for (int g = 0; g < G; ++g)
      for (int c = 0; c < CHUNK; ++c) sums[g][c] = zero();
    span.walk([&](const uint8_t* entry, int64_t index) {
      const float scale = FORMAT >= SSD_KV_INT8 ? *(const float*)(entry + 2 * dim + 4) : 1.0f;
      F weight[G];
      for (int g = 0; g < G; ++g) weight[g] = set1(FORMAT >= SSD_KV_INT8 ? weights[g][index] * scale : weights[g][index]);
      for (int c = 0; c < CHUNK; ++c) {
        if (c >= vectors) break;
        const F value = piece<FORMAT>(entry + offset, from + c * W, dim);
        for (int g = 0; g < G; ++g) sums[g][c] = fma(weight[g], value, sums[g][c]);
      }
    });
    for (int g = 0; g < G; ++g) {
      float values[CHUNK * W];
      for (int c = 0; c < CHUNK; ++c) store(values + c * W, sums[g][c]);
      for (int64_t i = from; i < dim && i < from + CHUNK * W; ++i) outputs[g][i] = values[i - from] / totals[g];
    }
  }
}

template <int FORMAT, int G>
void attend_heads(const Span& span, const float* queries, int64_t padded, float* scratch, float* const* outputs) {
  const int64_t count = span.last - span.first + 1;
  float* scores[G];
  float totals[G];
  for (int g = 0; g < G; ++g) scores[g] = scratch + g * round_up(count, W);
  score<FORMAT, G>(span, queries, padded, scores);
  for (int g = 0; g < G; ++g) totals[g] = weigh(scores[g], count);
  mix<FORMAT, G>(span, scores, totals, outputs);
}

template <int FORMAT>
void attend_some(int heads, const Span& span, const float* queries, int64_t padded, float* scratch, float* const* outputs) {
  switch (heads) {
    case 1: return attend_heads<FORMAT, 1>(span, queries, padded, scratch, outputs);
    case 2: return attend_heads<FORMAT, 2>(span, queries, padded, scratch, outputs);
    case 3: return attend_heads<FORMAT, 3>(span, queries, padded, scratch, outputs);
    default: return attend_heads<FORMAT, 4>(span, queries, padded, scratch, outputs);
  }
}

// `heads` (at most MOST_HEADS) query heads of one token, one after the other in `query`, into `output`.
inline void attend(int heads, const Span& span, const float* query, float* scratch, float* output) {
  const int64_t dim = span.pages.dim, padded = round_up(dim, W);
  float* outputs[MOST_HEADS];
  for (int g = 0; g < heads; ++g) {
    outputs[g] = output + g * dim;
    for (int64_t i = 0; i < padded; ++i) scratch[g * padded + i] = i < dim ? query[g * dim + i] : 0.0f;
  }
  float* rest = scratch + heads * padded;
  switch (span.pages.format) {
    case SSD_KV_F32: return attend_some<SSD_KV_F32>(heads, span, scratch, padded, rest, outputs);
    case SSD_KV_F16: return attend_some<SSD_KV_F16>(heads, span, scratch, padded, rest, outputs);
    case SSD_KV_INT8: return attend_some<SSD_KV_INT8>(heads, span, scratch, padded, rest, outputs);
    default: return attend_some<SSD_KV_FP8>(heads, span, scratch, padded, rest, outputs);
  }
}

// Floats of scratch that `attend` needs for `positions` positions.
inline int64_t attention_scratch(int64_t positions, int64_t dim) {
  return MOST_HEADS * (round_up(positions, W) + round_up(dim, W));
}

}  // namespace SSD_ISA
}  // namespace ssd
