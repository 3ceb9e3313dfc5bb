// The native counterpart of ssd_runtime.sampling.draw: the same tokens, candidates and scores for one row.
//
// Only the work differs. Words are made in blocks, a bound of the noise needs no logarithm, and noise is worked
// out where the bound can still win. The nucleus of top-p is never built: a token belongs to it exactly when
// the mass before it is less than what is wanted, so the best candidates are asked one after the other.
#pragma once
#include <algorithm>
#include <cstdint>

#include "draw_types.h"
#include "pool.h"
#include "ranking.h"

namespace ssd {
namespace SSD_ISA {

constexpr double SMALLEST_TEMPERATURE = 1e-30;
constexpr int64_t NUCLEUS_TRIES = 8;  // candidates ranked at once for top-p

// What draws reuse from row to row; one per thread.
struct DrawScratch {
  Room<float> scores, block_best;
  Room<Entry> candidates, tries;

  // Room for rows of `vocab` logits and `count` candidates; false when memory is short.
  bool reserve(int64_t vocab, int64_t count) {
    const int64_t blocks = (vocab + BLOCK - 1) / BLOCK;
    return scores.reserve(blocks * BLOCK) && block_best.reserve(blocks) && candidates.reserve(count) &&
           tries.reserve(NUCLEUS_TRIES);
  }
};

// Which tokens truncation leaves: those before `end` whose mass is at least `least`.
struct Kept {
  Entry end{NO_SCORE, 0};
  float floor = BANNED;  // no lower score is kept
  uint64_t least = 0;

  bool has(const Entry& entry) const {
    return better(entry, end) && (least == 0 || mass(entry.score) >= least);
  }
  void cut(const Entry& at) {
    end = at;
    floor = std::max(floor, at.score);
  }
};

inline void rank_block(const Row& row, int64_t block, const NoiseKey& key, const Kept& kept, Ranking& ranking) {
  const int64_t first = block * BLOCK;
  const float best = row.block_best[block];
  if (best < kept.floor || ranking.closed_to(best + NOISE_MOST, first)) return;
  const float* __restrict scores = row.scores + first;
  uint32_t words[BLOCK];
  float bounds[BLOCK];
  block_words(key, first, words);
  const float threshold = ranking.threshold(), floor = kept.floor;
  int32_t contenders = 0;
  for (int i = 0; i < BLOCK; ++i) {
    bounds[i] = scores[i] + noise_bound(words[i]);
    contenders |= int32_t(bounds[i] >= threshold) & int32_t(scores[i] >= floor);
  }
  if (contenders == 0) return;
  for (int i = 0; i < BLOCK; ++i) {
    if (bounds[i] < ranking.threshold() || scores[i] < floor || !kept.has({scores[i], first + i})) continue;
    ranking.offer({scores[i] + noise_of_word(words[i]), first + i});
  }
}

// Offers what is kept by score + noise; the most likely block first, which rules out most others.
inline void rank_perturbed(const Row& row, const NoiseKey& key, const Kept& kept, Ranking& ranking) {
  rank_block(row, row.best_block, key, kept, ranking);
  for (int64_t block = 0; block < row.blocks; ++block) {
    if (block != row.best_block) rank_block(row, block, key, kept, ranking);
  }
}

// The masses of those tokens in [begin, end) whose score is at least `floor`.
inline uint64_t mass_in(const Row& row, int64_t begin, int64_t end, float floor) {
  const float least = floor > MASSLESS ? floor : MASSLESS;
  uint64_t total = 0;
  for (int64_t next; begin < end; begin = next) {
    const int64_t block = begin / BLOCK;
    next = std::min((block + 1) * BLOCK, end);
    if (row.block_best[block] >= least) total += mass_at_least(row.scores + begin, next - begin, least);
  }
  return total;
}

// The next larger score, or more than any for 0: scores are not positive.
inline float next_above(float score) { return score < 0 ? float_of(bits_of(score) - 1) : 1.0f; }

// The mass of all tokens before `entry`.
inline uint64_t mass_before(const Row& row, const Entry& entry) {
  if (entry.score == NO_SCORE) return mass_in(row, 0, row.vocab, NO_SCORE);
  const int64_t end = std::min(entry.token, row.vocab);
  return mass_in(row, 0, end, entry.score) + mass_in(row, end, row.vocab, next_above(entry.score));
}

inline int64_t count_at_least(const Row& row, float floor) {
  int64_t count = 0;
  for (int64_t block = 0; block < row.blocks; ++block) {
    if (row.block_best[block] < floor) continue;
    const float* scores = row.scores + block * BLOCK;
    int32_t here = 0;
    for (int i = 0; i < BLOCK; ++i) here += int32_t(scores[i] >= floor);
    count += here;
  }
  return count;
}

// The end of the first `count` < vocab tokens: a search for the last one's score, then among its equals.
inline Entry top_k_end(const Row& row, int64_t count) {
  // a score that is not positive falls as the bits of its magnitude rise
  int32_t high = 0, low = bits_of(-BANNED);
  while (high < low) {
    const int32_t middle = high + (low - high) / 2;
    const int64_t found = count_at_least(row, -float_of(middle));
    if (found == count) return {-float_of(middle), row.vocab};
    if (found > count) low = middle;
    else high = middle + 1;
  }
  const float last = -float_of(low);
  int64_t wanted = count - count_at_least(row, next_above(last)), token = -1;
  while (wanted > 0) wanted -= row.scores[++token] == last;
  return {last, token + 1};
}

// ceil(fraction * whole), exact, for 0 < fraction <= 1 and whole < 2^63; at least 1.
inline uint64_t portion(double fraction, uint64_t whole) {
  __extension__ typedef unsigned __int128 Wide;
  if (!(fraction > 0)) return 1;
  if (fraction >= 1) return whole;
  uint64_t bits;
  memcpy(&bits, &fraction, 8);
  const int exponent = int(bits >> 52);
  const uint64_t digits = (bits & ((uint64_t(1) << 52) - 1)) | (exponent ? uint64_t(1) << 52 : 0);
  const int shift = 1075 - (exponent ? exponent : 1);
  if (shift >= 120) return 1;
  const Wide product = Wide(digits) * whole + ((Wide(1) << shift) - 1);
  return std::max<uint64_t>(1, uint64_t(product >> shift));
}

// A score below which no mass reaches `least` >= 1.
inline float floor_of_mass(uint64_t least) {
  float reaches = 0.0f, lacks = -30.0f;
  for (int i = 0; i < 30; ++i) {
    const float middle = (reaches + lacks) * 0.5f;
    (mass(middle) >= least ? reaches : lacks) = middle;
  }
  return lacks - 1e-4f;  // rounding may let a mass rise as its score falls, but not so far
}

// What top-k and min-p leave; top-p is asked token by token.
inline Kept kept_of(const Row& row, const ssd_draw& draw) {
  Kept kept;
  if (0 < draw.top_k && draw.top_k < row.vocab) kept.cut(top_k_end(row, draw.top_k));
  if (draw.min_p > 0) {
    kept.least = portion(draw.min_p, uint64_t(1) << MASS_BITS);
    kept.floor = std::max(kept.floor, floor_of_mass(kept.least));
  }
  return kept;
}

// The draw of one row under its truncation; `ranked` holds candidates ranked without it, or none.
inline int64_t draw_kept(const Row& row, const ssd_draw& draw, const NoiseKey& key, const Entry* ranked,
                         int64_t count, DrawScratch& scratch) {
  Kept kept = kept_of(row, draw);
  const bool nucleus = draw.top_p < 1;
  const uint64_t wanted = nucleus ? portion(draw.top_p, mass_before(row, kept.end)) : 0;
  for (;;) {
    for (int64_t i = 0; i < count; ++i) {
      const Entry entry{row.scores[ranked[i].token], ranked[i].token};
      if (!kept.has(entry)) continue;
      if (!nucleus || mass_before(row, entry) < wanted) return entry.token;
      kept.cut(entry);
    }
    Ranking ranking(scratch.tries.get(), nucleus ? NUCLEUS_TRIES : 1);
    rank_perturbed(row, key, kept, ranking);
    ranked = ranking.sorted();
    count = ranking.size();
    if (count == 0) return -1;  // only parameters that are not numbers leave nothing
  }
}

// Draws the token of one row of `logits` [vocab] and ranks `draw.count` candidates without truncation, best
// first, with their perturbed scores. An unusable row has token and candidates -1 and scores -inf, and so has a
// row that `scratch` has no memory for; a small vocabulary's missing candidates too. `candidates` and `scores`
// may be NULL where count is 0.
inline void draw_row(const float* logits, int64_t vocab, const ssd_draw& draw, DrawScratch& scratch,
                     int64_t* token, int64_t* candidates, float* scores) {
  std::fill_n(candidates, draw.count, -1);
  std::fill_n(scores, draw.count, NO_SCORE);
  *token = -1;
  const int64_t count = std::max<int64_t>(0, std::min(draw.count, vocab));
  if (!scratch.reserve(vocab, count)) return;
  Row row{scratch.scores.get(), scratch.block_best.get(), vocab, (vocab + BLOCK - 1) / BLOCK, 0};
  float most;
  if (!scan_row(logits, row, most)) return;
  const bool greedy = draw.temperature == 0;
  if (greedy) *token = first_largest(logits, row, most);
  if (greedy && count == 0) return;
  scale_row(logits, row, most, greedy ? 1.0f : float(std::max(draw.temperature, SMALLEST_TEMPERATURE)));
  const NoiseKey key(draw.seed, draw.position);
  Ranking ranking(scratch.candidates.get(), count);
  if (greedy) rank_plain(row, ranking);
  else if (count > 0) rank_perturbed(row, key, Kept{}, ranking);
  const Entry* ranked = ranking.sorted();
  for (int64_t i = 0; i < count; ++i) candidates[i] = ranked[i].token, scores[i] = ranked[i].score;
  if (!greedy) *token = draw_kept(row, draw, key, ranked, count, scratch);
}

}  // namespace SSD_ISA
}  // namespace ssd
