// Draws from the logits of a pass: rows of one sequence are drawn one after the other, as far as the verdict looks.
#pragma once
#include <memory>
#include <vector>

#include "api.h"
#include "pool.h"
#include "sample.h"

namespace ssd {
namespace SSD_ISA {

// One scratch per thread of a lane.
class Scratches {
 public:
  void grow(int threads) {
    while (int(each_.size()) < threads) each_.emplace_back(new DrawScratch);
  }
  DrawScratch& of(const Team& team) { return *each_[team.rank]; }

 private:
  std::vector<std::unique_ptr<DrawScratch>> each_;
};

inline int64_t draw_at(const float* logits, int64_t vocab, const ssd_pass& pass, int64_t row, DrawScratch& scratch) {
  if (pass.draws[row].count < 0) return SSD_SKIPPED;
  int64_t token;
  draw_row(logits + row * vocab, pass.drawn_vocab, pass.draws[row], scratch, &token, pass.candidates + row * pass.count,
           pass.scores + row * pass.count);
  return token;
}

// A chain ends with the first row that expects nothing. Behind a token that was not expected, rows are skipped.
inline void draw_chains(const float* logits, int64_t vocab, const ssd_pass& pass, Scratches& scratches, const Team& team) {
  int64_t chain = 0;
  bool alive = true;
  for (int64_t row = 0; row < pass.wanted; ++row) {
    const int64_t expected = pass.expected[row];
    if (chain % team.size == team.rank) {
      pass.drawn[row] = alive ? draw_at(logits, vocab, pass, row, scratches.of(team)) : int64_t{SSD_SKIPPED};
      alive = alive && pass.drawn[row] == expected;
    }
    if (expected < 0) {
      ++chain;
      alive = true;
    }
  }
}

}  // namespace SSD_ISA
}  // namespace ssd
