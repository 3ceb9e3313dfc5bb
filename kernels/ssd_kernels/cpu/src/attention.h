// Causal attention of one token over paged KV, for heads that share keys and values.
// A head's sums run over its own positions in order, whatever stands beside it in the pass.
#pragma once
#include "elementwise.h"
#include "kv.h"

namespace ssd {
namespace SSD_ISA {

constexpr int MOST_HEADS = 4;
constexpr int CHUNK = W == 8 ? 2 : 4;  // vectors of the output that are summed together
constexpr int64_t AHEAD = 12;          // tokens between asking for an entry and reading it

// The positions `first … last` of one sequence, for one key/value head of one layer.
struct Span {
  const Pages& pages;
  const int64_t* table;
  int64_t head, first, last;

  // Calls each(entry, index) for every position, index 0 at `first`. The `bytes` bytes of an entry from
  // `offset` on are asked for in time: entries of one head lie too far apart for the processor to guess.
  template <class Each>
  void walk(int64_t offset, int64_t bytes, Each each) const {
    Cursor ahead(*this), now(*this);
    for (int64_t i = 0; i < AHEAD; ++i) ahead.fetch(offset, bytes);
    for (int64_t index = 0; index <= last - first; ++index) {
      ahead.fetch(offset, bytes);
      each(now.entry, index);
      now.next();
    }
  }

 private:
  // A place between `first` and `last`; divisions only where blocks meet.
  struct Cursor {
    explicit Cursor(const Span& span) : span(span), position(span.first) { seat(); }

    void seat() {
      if (position > span.last) return;
      entry = span.pages.at(span.table, position, span.head);
      left = span.pages.block_size - position % span.pages.block_size;
    }

    void next() {
      ++position;
      entry += span.pages.entry;
      if (--left == 0) seat();
    }

    void fetch(int64_t offset, int64_t bytes) {
      if (position > span.last) return;
      for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(entry + offset + at);
      next();
    }

    const Span& span;
    int64_t position, left = 0;
    const uint8_t* entry = nullptr;
  };
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

inline float scaled(int format, float value, const uint8_t* scale) {
  return kv_has_scales(format) ? value * *(const float*)scale : value;
}

// scores[g][i] = query g · key i. Queries are padded with zeros to whole vectors, `padded` floats each.
template <int FORMAT, int G>
void score_any(const Span& span, const float* queries, int64_t padded, float* const* scores) {
  const int64_t dim = span.pages.dim;
  span.walk(0, span.pages.asked(), [&](const uint8_t* entry, int64_t index) {
    F sums[G];
    for (int g = 0; g < G; ++g) sums[g] = zero();
    for (int64_t at = 0; at < dim; at += W) {
      const F key = piece<FORMAT>(entry, at, dim);
      for (int g = 0; g < G; ++g) sums[g] = fma(load(queries + g * padded + at), key, sums[g]);
    }
    for (int g = 0; g < G; ++g) scores[g][index] = scaled(FORMAT, sum_lanes(sums[g]), entry + 2 * dim);
  });
}

// The same for keys of N whole vectors.
template <int FORMAT, int G, int N>
void score_whole(const Span& span, const float* queries, float* const* scores) {
  F query[G][N];
  for (int g = 0; g < G; ++g)
    for (int n = 0; n < N; ++n) query[g][n] = load(queries + (g * N + n) * W);
  span.walk(0, span.pages.asked(), [&](const uint8_t* entry, int64_t index) {
    F sums[G];
    for (int g = 0; g < G; ++g) sums[g] = zero();
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      const F key = read_vector<FORMAT>(entry, n * W);
      for (int g = 0; g < G; ++g) sums[g] = fma(query[g][n], key, sums[g]);
    }
    for (int g = 0; g < G; ++g) scores[g][index] = scaled(FORMAT, sum_lanes(sums[g]), entry + 2 * N * W);
  });
}

template <int FORMAT, int G>
void score(const Span& span, const float* queries, int64_t padded, float* const* scores) {
  switch (span.pages.dim) {
    case 4 * W: return score_whole<FORMAT, G, 4>(span, queries, scores);
    case 8 * W: return score_whole<FORMAT, G, 8>(span, queries, scores);
    case 16 * W: return score_whole<FORMAT, G, 16>(span, queries, scores);
    default: return score_any<FORMAT, G>(span, queries, padded, scores);
  }
}

// Scores become e^(score - max); their sum.
inline float weigh(float* scores, int64_t count) {
  const float best = largest(scores, count);
  for (int64_t i = 0; i < count; ++i) scores[i] = exponential(scores[i] - best);
  F sums = zero();
  int64_t i = 0;
  for (; i + W <= count; i += W) sums = add(sums, load(scores + i));
  float total = sum_lanes(sums);
  for (; i < count; ++i) total += scores[i];
  return total;
}

// Items `from … from + CHUNK · W` of every value, weighed and summed; those past the end are zero.
template <int FORMAT, int G, bool WHOLE>
void mix_chunk(const Span& span, float* const* weights, int64_t from, F (&sums)[G][CHUNK]) {
  const int64_t dim = span.pages.dim, item = span.pages.item;
  for (int g = 0; g < G; ++g)
    for (int c = 0; c < CHUNK; ++c) sums[g][c] = zero();
  span.walk((dim + from) * item, CHUNK * W * item, [&](const uint8_t* entry, int64_t index) {
    F weight[G];
    for (int g = 0; g < G; ++g) weight[g] = set1(scaled(FORMAT, weights[g][index], entry + 2 * dim + 4));
#pragma GCC unroll 4
    for (int c = 0; c < CHUNK; ++c) {
      const int64_t at = from + c * W;
      if (!WHOLE && at >= dim) break;
      const uint8_t* values = entry + dim * item;
      const F value = WHOLE ? read_vector<FORMAT>(values, at) : piece<FORMAT>(values, at, dim);
      for (int g = 0; g < G; ++g) sums[g][c] = fma(weight[g], value, sums[g][c]);
    }
  });
}

// outputs[g] = Σ weights[g][i] · value i / totals[g].
template <int FORMAT, int G>
void mix(const Span& span, float* const* weights, const float* totals, float* const* outputs) {
  const int64_t dim = span.pages.dim;
  for (int64_t from = 0; from < dim; from += CHUNK * W) {
    F sums[G][CHUNK];
    if (from + CHUNK * W <= dim) mix_chunk<FORMAT, G, true>(span, weights, from, sums);
    else mix_chunk<FORMAT, G, false>(span, weights, from, sums);
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
