// Words, noise and masses of docs/noise.md: the same bits as ssd_kernels.philox, gumbel and elementary.
// Every line is one rounded IEEE operation; compile with -ffp-contract=off and without -ffast-math.
#pragma once
#include <cstdint>
#include <cstring>

#ifndef SSD_ISA
#error "define SSD_ISA, the name of the instruction set this file is compiled for"
#endif

namespace ssd {
namespace SSD_ISA {

constexpr int BLOCK = 64;  // tokens whose words are made together
constexpr int WORDS_PER_CALL = 4;
constexpr uint32_t SMALL_V_LIMIT = 1257966796;
constexpr float NOISE_MOST = 22.8739f;  // above the noise of word 0, the largest
constexpr int MASS_BITS = 40;
constexpr float MASSLESS = -28.5f;  // scores below have mass 0; the first that has is near -27.7

// The two halves of a request's seed and of a position.
struct NoiseKey {
  uint32_t seed_low, seed_high, position_low, position_high;
  NoiseKey(uint64_t seed, int64_t position)
      : seed_low(uint32_t(seed)),
        seed_high(uint32_t(seed >> 32)),
        position_low(uint32_t(position)),
        position_high(uint32_t(uint64_t(position) >> 32)) {}
};

inline int32_t bits_of(float x) {
  int32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

inline float float_of(int32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// Ten rounds of Philox4x32: the counter becomes the output.
inline void philox4x32(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t(c0) * 0xD2511F53u;
    const uint64_t product1 = uint64_t(c2) * 0xCD9E8D57u;
    c0 = uint32_t(product1 >> 32) ^ c1 ^ k0;
    c1 = uint32_t(product1);
    c2 = uint32_t(product0 >> 32) ^ c3 ^ k1;
    c3 = uint32_t(product0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// The words of the BLOCK tokens from `first`, which BLOCK divides.
inline void block_words(const NoiseKey& key, int64_t first, uint32_t* __restrict words) {
  const uint32_t call = uint32_t(first / WORDS_PER_CALL);
  for (uint32_t i = 0; i < BLOCK / WORDS_PER_CALL; ++i) {
    uint32_t c0 = call + i, c1 = key.position_low, c2 = key.position_high, c3 = 0;
    philox4x32(c0, c1, c2, c3, key.seed_low, key.seed_high);
    words[4 * i] = c0;
    words[4 * i + 1] = c1;
    words[4 * i + 2] = c2;
    words[4 * i + 3] = c3;
  }
}

// x = (1 + fraction) * 2^exponent
struct Parts {
  float fraction, exponent;
};

inline Parts split(float x) {
  const int32_t bits = bits_of(x);
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;
  return {float_of(bits - int32_t(uint32_t(exponent) << 23)) - 1.0f, float(exponent)};
}

inline float log_of_parts(Parts x) {
  const float f = x.fraction;
  const float square = f * f;
  float p = f * float(7.0376836292e-2);
  p = (p + float(-1.1514610310e-1)) * f;
  p = (p + float(1.1676998740e-1)) * f;
  p = (p + float(-1.2420140846e-1)) * f;
  p = (p + float(1.4249322787e-1)) * f;
  p = (p + float(-1.6668057665e-1)) * f;
  p = (p + float(2.0000714765e-1)) * f;
  p = (p + float(-2.4999993993e-1)) * f;
  p = p + float(3.3333331174e-1);
  float tail = f * square * p;
  tail = tail + x.exponent * float(-2.12194440e-4);
  tail = tail - square * 0.5f;
  tail = tail + f;
  return tail + x.exponent * float(0.693359375);
}

inline float unit(uint32_t word) { return (float(word) + 0.5f) * 0x1p-32f; }

// -log(-log(1 - v)) with v = (word + 1/2) / 2^32
inline float noise_of_word(uint32_t word) {
  const Parts parts = word < SMALL_V_LIMIT ? Parts{-unit(word), 0.0f} : split(unit(~word));
  return -log_of_parts(split(-log_of_parts(parts)));
}

// Never below noise_of_word, and at most 3.3 above it; tight where the noise is large.
// -log v exceeds the noise, and log2(1 + m) exceeds m, which the bits of a float hold; 1e-4 is for rounding.
inline float noise_bound(uint32_t word) {
  const float ln2 = 0.6931472f;
  const float half = float(int32_t(word >> 1));
  return (ln2 * (31 + 127) + 1e-4f) - float(bits_of(half)) * (ln2 * 0x1p-23f);
}

// 2^40 * e^score for a score in [MASSLESS, 0], not yet cut to a whole number.
inline float raw_mass(float score) {
  const float x = score * float(1.4426950408889634);
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number, ties to even
  const float shifted = x + magic;
  const float f = x - (shifted - magic);
  float power = f * float(1.5403530393e-4);
  power = (power + float(1.3333558146e-3)) * f;
  power = (power + float(9.6181291076e-3)) * f;
  power = (power + float(5.5504108665e-2)) * f;
  power = (power + float(2.4022650696e-1)) * f;
  power = (power + float(6.9314718056e-1)) * f;
  power = power + 1.0f;
  const int32_t whole = bits_of(shifted) - bits_of(magic);
  return power * float_of((whole + 127) << 23) * 0x1p40f;
}

inline uint64_t mass(float score) { return score < MASSLESS ? 0 : uint64_t(raw_mass(score)); }

// The masses of those of n <= BLOCK scores that are at least `floor`, which is at least MASSLESS.
inline uint64_t mass_at_least(const float* __restrict scores, int64_t n, float floor) {
  // a mass in two parts of 23 and 17 bits, since few vector units convert to 64 bits
  int32_t high = 0, low = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t counts = -int32_t(scores[i] >= floor);  // a mask: a branch would not vectorise
    const float value = raw_mass(float_of(bits_of(scores[i]) & counts));
    const int32_t upper = int32_t(value * 0x1p-17f);
    const int32_t lower = int32_t(value - float(upper) * 0x1p17f);
    high += upper & counts;
    low += lower & counts;
  }
  return (uint64_t(uint32_t(high)) << 17) + uint32_t(low);
}

}  // namespace SSD_ISA
}  // namespace ssd
