// Causal attention of one token over paged KV, for heads that share keys and values.
// A head's sums run over its own positions in order, whatever stands beside it in the pass.
#pragma once
#include <algorithm>
#include <cmath>

#include "elementwise.h"
#include "kv.h"

namespace ssd {
namespace SSD_ISA {

constexpr int MOST_HEADS = 4;
constexpr int CHUNK = W == 8 ? 2 : 4;  // vectors of the output that are summed together
constexpr int64_t TILE = 64;           // positions that are scored, weighed and summed together

// The positions `first … last` of one sequence, for one key/value head of one layer.
struct Span {
  const Pages& pages;
  const int64_t* table;
  int64_t head, first, last;
};

// Where the entries of some positions lie, and, so that they can be asked for in time, of those that follow.
struct Tile {
  int64_t count = 0;
  const uint8_t* entries[TILE];

  // The positions from `from` on, up to the next multiple of TILE or the end of the span.
  void seat(const Span& span, int64_t from) {
    const Pages& pages = span.pages;
    count = std::max<int64_t>(0, std::min(round_up(from + 1, TILE), span.last + 1) - from);
    for (int64_t i = 0; i < count;) {
      const uint8_t* entry = pages.at(span.table, from + i, span.head);
      const int64_t end = std::min(count, i + pages.block_size - (from + i) % pages.block_size);
      for (; i < end; ++i, entry += pages.entry) entries[i] = entry;
    }
  }

  // A part of entry `index`, if it is there: those of one head lie in stretches too short for the processor to guess.
  void fetch_entry(int64_t index, int64_t from, int64_t bytes) const {
    if (index < count) fetch(entries[index] + from, bytes);
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

inline float scaled(int format, float value, const uint8_t* scale) {
  return kv_has_scales(format) ? value * *(const float*)scale : value;
}

// One tile's part in the attention of G heads: its scores, then its weights, `TILE` apart.
template <int G>
using Scores = float[G][TILE];

// scores[g][i] = query g · key i. Queries are padded with zeros to whole vectors, `padded` floats each.
template <int FORMAT, int G>
void score_any(const Tile& tile, const Tile& next, int64_t dim, const float* queries, int64_t padded, Scores<G>& scores) {
  for (int64_t index = 0; index < tile.count; ++index) {
    const uint8_t* keys = tile.entries[index];
    next.fetch_entry(index, 0, dim * kv_item_bytes(FORMAT));
    F sums[G];
    for (int g = 0; g < G; ++g) sums[g] = zero();
    for (int64_t at = 0; at < dim; at += W) {
      const F key = piece<FORMAT>(keys, at, dim);
      for (int g = 0; g < G; ++g) sums[g] = fma(load(queries + g * padded + at), key, sums[g]);
    }
    for (int g = 0; g < G; ++g) scores[g][index] = scaled(FORMAT, sum_lanes(sums[g]), keys + 2 * dim);
  }
}

// The same for keys of N whole vectors.
template <int FORMAT, int G, int N>
void score_whole(const Tile& tile, const Tile& next, const float* queries, Scores<G>& scores) {
  F query[G][N];
  for (int g = 0; g < G; ++g)
    for (int n = 0; n < N; ++n) query[g][n] = load(queries + (g * N + n) * W);
  for (int64_t index = 0; index < tile.count; ++index) {
    const uint8_t* keys = tile.entries[index];
    next.fetch_entry(index, 0, N * W * kv_item_bytes(FORMAT));
    F sums[G];
    for (int g = 0; g < G; ++g) sums[g] = zero();
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      const F key = read_vector<FORMAT>(keys, n * W);
      for (int g = 0; g < G; ++g) sums[g] = fma(query[g][n], key, sums[g]);
    }
    for (int g = 0; g < G; ++g) scores[g][index] = scaled(FORMAT, sum_lanes(sums[g]), keys + 2 * N * W);
  }
}

template <int FORMAT, int G>
void score(const Tile& tile, const Tile& next, int64_t dim, const float* queries, int64_t padded, Scores<G>& scores) {
  switch (dim) {
    case 4 * W: return score_whole<FORMAT, G, 4>(tile, next, queries, scores);
    case 8 * W: return score_whole<FORMAT, G, 8>(tile, next, queries, scores);
    case 16 * W: return score_whole<FORMAT, G, 16>(tile, next, queries, scores);
    default: return score_any<FORMAT, G>(tile, next, dim, queries, padded, scores);
  }
}

// What the tiles so far come to: the largest score, the sum of weights, and the weighed values, unscaled.
struct Softmax {
  float best = -INFINITY, total = 0;
  float* values;  // [padded]
};

// A tile's scores become weights; what came before is brought to the same scale.
// Milakov, Gimelshein, "Online normalizer calculation for softmax" (2018).
inline void weigh(float* scores, int64_t count, int64_t padded, Softmax& softmax) {
  const float highest = largest(scores, count);
  if (highest > softmax.best) {
    const float shrink = exponential(softmax.best - highest);
    softmax.best = highest;
    softmax.total *= shrink;
    for (int64_t i = 0; i < padded; ++i) softmax.values[i] *= shrink;
  }
  const float best = softmax.best;  // a copy, which no written score can be: so the loop becomes vectors
  for (int64_t i = 0; i < count; ++i) scores[i] = exponential(scores[i] - best);
  F sums = zero();
  int64_t i = 0;
  for (; i + W <= count; i += W) sums = add(sums, load(scores + i));
  softmax.total += sum_lanes(sums);
  for (; i < count; ++i) softmax.total += scores[i];
}

// Adds items `from … from + CHUNK · W` of a tile's values, weighed; those past the end are zero.
template <int FORMAT, int G, bool WHOLE>
void mix_chunk(const Tile& tile, const Tile& next, int64_t dim, const Scores<G>& weights, int64_t from, Softmax* softmax) {
  constexpr int64_t item = kv_item_bytes(FORMAT);
  F sums[G][CHUNK];
  for (int g = 0; g < G; ++g)
    for (int c = 0; c < CHUNK; ++c) sums[g][c] = load(softmax[g].values + from + c * W);
  for (int64_t index = 0; index < tile.count; ++index) {
    const uint8_t* values = tile.entries[index] + dim * item;
    next.fetch_entry(index, (dim + from) * item, CHUNK * W * item);
    F weight[G];
    for (int g = 0; g < G; ++g) weight[g] = set1(scaled(FORMAT, weights[g][index], values + dim + 4));
#pragma GCC unroll 4
    for (int c = 0; c < CHUNK; ++c) {
      const int64_t at = from + c * W;
      if (!WHOLE && at >= dim) break;
      const F value = WHOLE ? read_vector<FORMAT>(values, at) : piece<FORMAT>(values, at, dim);
      for (int g = 0; g < G; ++g) sums[g][c] = fma(weight[g], value, sums[g][c]);
    }
  }
  for (int g = 0; g < G; ++g)
    for (int c = 0; c < CHUNK; ++c) store(softmax[g].values + from + c * W, sums[g][c]);
}

template <int FORMAT, int G>
void mix(const Tile& tile, const Tile& next, int64_t dim, const Scores<G>& weights, Softmax* softmax) {
  for (int64_t from = 0; from < dim; from += CHUNK * W) {
    if (from + CHUNK * W <= dim) mix_chunk<FORMAT, G, true>(tile, next, dim, weights, from, softmax);
    else mix_chunk<FORMAT, G, false>(tile, next, dim, weights, from, softmax);
  }
}

// Tiles begin at multiples of TILE, so that a token's sums do not depend on where its window or its row begins.
template <int FORMAT, int G>
void attend_heads(const Span& span, const float* queries, float* scratch, float* output) {
  const Pages& pages = span.pages;
  const int64_t padded = round_up(pages.dim, W), room = round_up(pages.dim, CHUNK * W);
  Softmax softmax[G];
  for (int g = 0; g < G; ++g) softmax[g].values = scratch + g * room;
  memset(scratch, 0, G * room * sizeof(float));
  Scores<G> scores;
  Tile tiles[2];
  Tile *tile = &tiles[0], *next = &tiles[1];
  tile->seat(span, span.first);
  for (int64_t i = 0; i < tile->count; ++i) tile->fetch_entry(i, 0, pages.entry);
  for (int64_t from = span.first; tile->count; std::swap(tile, next)) {
    from += tile->count;
    next->seat(span, from);
    score<FORMAT, G>(*tile, *next, pages.dim, queries, padded, scores);
    for (int g = 0; g < G; ++g) weigh(scores[g], tile->count, room, softmax[g]);
    mix<FORMAT, G>(*tile, *next, pages.dim, scores, softmax);
  }
  for (int g = 0; g < G; ++g)
    for (int64_t i = 0; i < pages.dim; ++i) output[g * pages.dim + i] = softmax[g].values[i] / softmax[g].total;
}

template <int FORMAT>
void attend_some(int heads, const Span& span, const float* queries, float* scratch, float* output) {
  switch (heads) {
    case 1: return attend_heads<FORMAT, 1>(span, queries, scratch, output);
    case 2: return attend_heads<FORMAT, 2>(span, queries, scratch, output);
    case 3: return attend_heads<FORMAT, 3>(span, queries, scratch, output);
    default: return attend_heads<FORMAT, 4>(span, queries, scratch, output);
  }
}

// `heads` (at most MOST_HEADS) query heads of one token, one after the other in `query`, into `output`.
inline void attend(int heads, const Span& span, const float* query, float* scratch, float* output) {
  const int64_t dim = span.pages.dim, padded = round_up(dim, W);
  for (int g = 0; g < heads; ++g)
    for (int64_t i = 0; i < padded; ++i) scratch[g * padded + i] = i < dim ? query[g * dim + i] : 0.0f;
  float* rest = scratch + heads * padded;
  switch (span.pages.format) {
    case SSD_KV_F32: return attend_some<SSD_KV_F32>(heads, span, scratch, rest, output);
    case SSD_KV_F16: return attend_some<SSD_KV_F16>(heads, span, scratch, rest, output);
    case SSD_KV_INT8: return attend_some<SSD_KV_INT8>(heads, span, scratch, rest, output);
    default: return attend_some<SSD_KV_FP8>(heads, span, scratch, rest, output);
  }
}

// Floats of scratch that `attend` needs.
inline int64_t attention_scratch(int64_t dim) { return 2 * MOST_HEADS * round_up(dim, CHUNK * W); }

}  // namespace SSD_ISA
}  // namespace ssd
