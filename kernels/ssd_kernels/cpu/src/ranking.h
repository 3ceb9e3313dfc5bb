// The scores of one row of logits, and the best of them.
#pragma once
#include <algorithm>
#include <cstdint>

#include "noise.h"

namespace ssd {
namespace SSD_ISA {

constexpr float BANNED = -1e30f;
constexpr float NO_SCORE = -__builtin_inff();

// A token with its score, with or without noise.
struct Entry {
  float score;
  int64_t token;
};

// The order of docs/noise.md: higher score, then lower id.
struct Better {
  bool operator()(const Entry& a, const Entry& b) const {
    return a.score > b.score || (a.score == b.score && a.token < b.token);
  }
};
constexpr Better better;

// The best entries of those offered: a heap with the worst of them on top.
class Ranking {
 public:
  Ranking(Entry* entries, int64_t capacity) : entries_(entries), capacity_(capacity) {}

  bool full() const { return size_ == capacity_; }
  float threshold() const { return full() ? entries_[0].score : NO_SCORE; }

  // Whether none of the tokens from `first` on gets in with a score of at most `most`.
  bool closed_to(float most, int64_t first) const { return full() && !better({most, first}, entries_[0]); }

  void offer(Entry entry) {
    if (closed_to(entry.score, entry.token)) return;
    if (full()) std::pop_heap(entries_, entries_ + size_--, better);
    entries_[size_++] = entry;
    std::push_heap(entries_, entries_ + size_, better);
  }

  // Ends the ranking: its entries, best first.
  const Entry* sorted() {
    std::sort_heap(entries_, entries_ + size_, better);
    return entries_;
  }
  int64_t size() const { return size_; }

 private:
  Entry* entries_;
  int64_t capacity_, size_ = 0;
};

// The scores (z - max z) / T of a row, padded with -inf to whole blocks, and each block's best.
struct Row {
  float* scores;
  float* block_best;
  int64_t vocab, blocks;
  int64_t best_block;
};

// Finds each block's largest logit; false when the row is unusable.
inline bool scan_row(const float* logits, Row& row, float& most) {
  int32_t top = INT32_MIN, magnitude = 0;
  for (int64_t block = 0; block < row.blocks; ++block) {
    const float* z = logits + block * BLOCK;
    const int64_t n = std::min<int64_t>(BLOCK, row.vocab - block * BLOCK);
    // as integers, whose maximum has no order and needs no rule for NaN
    int32_t largest = INT32_MIN;
    for (int64_t i = 0; i < n; ++i) {
      const int32_t bits = bits_of(z[i]);
      const int32_t absolute = bits & INT32_MAX, ordered = bits < 0 ? bits ^ INT32_MAX : bits;
      magnitude = magnitude > absolute ? magnitude : absolute;
      largest = largest > ordered ? largest : ordered;
    }
    if (largest > top) row.best_block = block;
    top = top > largest ? top : largest;
    row.block_best[block] = float_of(largest < 0 ? largest ^ INT32_MAX : largest);
  }
  const int32_t infinity = 0x7f800000;
  most = float_of(top < 0 ? top ^ INT32_MAX : top);
  return magnitude <= infinity && top < infinity && most > NO_SCORE;
}

inline int64_t first_largest(const float* logits, const Row& row, float most) {
  int64_t token = row.best_block * BLOCK;
  while (logits[token] != most) ++token;
  return token;
}

inline float scaled(float logit, float most, float temperature) {
  const float score = (logit - most) / temperature;
  return score > BANNED ? score : BANNED;
}

inline void scale_row(const float* __restrict logits, const Row& row, float most, float temperature) {
  float* __restrict scores = row.scores;
  for (int64_t i = 0; i < row.vocab; ++i) scores[i] = scaled(logits[i], most, temperature);
  for (int64_t i = row.vocab; i < row.blocks * BLOCK; ++i) scores[i] = NO_SCORE;
  for (int64_t i = 0; i < row.blocks; ++i) row.block_best[i] = scaled(row.block_best[i], most, temperature);
}

// Offers every token by its score alone.
inline void rank_plain(const Row& row, Ranking& ranking) {
  for (int64_t block = 0; block < row.blocks; ++block) {
    const int64_t first = block * BLOCK, end = std::min(first + BLOCK, row.vocab);
    if (ranking.closed_to(row.block_best[block], first)) continue;
    for (int64_t token = first; token < end; ++token) ranking.offer({row.scores[token], token});
  }
}

}  // namespace SSD_ISA
}  // namespace ssd
