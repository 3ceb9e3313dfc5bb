// What tests call of sampling: each formula by itself, and the draw of one row. For one translation unit only.
#pragma once
#include "sample.h"

#pragma GCC visibility push(default)
extern "C" {

// counter [4] and key [2] -> output [4]
void ssd_test_philox(const uint32_t* counter, const uint32_t* key, uint32_t* output) {
  std::copy_n(counter, 4, output);
  ssd::SSD_ISA::philox4x32(output[0], output[1], output[2], output[3], key[0], key[1]);
}

// The words of tokens 0 to 64 * blocks - 1.
void ssd_test_words(uint64_t seed, int64_t position, int64_t blocks, uint32_t* words) {
  using namespace ssd::SSD_ISA;
  for (int64_t i = 0; i < blocks; ++i) block_words({seed, position}, i * BLOCK, words + i * BLOCK);
}

// The noise of each word, and what it is never above.
void ssd_test_noise(const uint32_t* words, int64_t count, float* noise, float* bounds) {
  for (int64_t i = 0; i < count; ++i) {
    noise[i] = ssd::SSD_ISA::noise_of_word(words[i]);
    bounds[i] = ssd::SSD_ISA::noise_bound(words[i]);
  }
}

// The mass of each score, and of all that are at least `floor`; scores are not positive.
uint64_t ssd_test_masses(const float* scores, int64_t count, float floor, uint64_t* masses) {
  using namespace ssd::SSD_ISA;
  uint64_t total = 0;
  for (int64_t i = 0; i < count; ++i) masses[i] = mass(scores[i]);
  for (int64_t i = 0; i < count; i += BLOCK)
    total += mass_at_least(scores + i, std::min<int64_t>(BLOCK, count - i), std::max(floor, MASSLESS));
  return total;
}

void ssd_test_draw(const float* logits, int64_t vocab, const ssd_draw* draw, int64_t* token, int64_t* candidates,
                   float* scores) {
  thread_local ssd::SSD_ISA::DrawScratch scratch;
  ssd::SSD_ISA::draw_row(logits, vocab, *draw, scratch, token, candidates, scores);
}

}  // extern "C"
#pragma GCC visibility pop
