// What `check_lane.cpp` checks with: random numbers, a small decoder, its memory.
#pragma once
#include "library.cpp"

#include <cstdio>
#include <map>
#include <random>
#include <string>

namespace {

using Floats = std::vector<float>;

int failures = 0;

void check(bool holds, const std::string& what) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "%s: %s\n", ssd_isa(), what.c_str());
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Floats random_floats(int64_t size, uint32_t seed, float scale = 1.0f, float center = 0.0f) {
  std::mt19937 words(seed);
  Floats values(size);
  for (float& value : values) value = center + scale * (float(words() >> 8) * 0x1p-23f - 1.0f);
  return values;
}

const std::map<int, std::string> FORMATS = {{SSD_F32, "float32"}, {SSD_BF16, "bf16"}, {SSD_INT8, "int8"}, {SSD_INT4, "int4"}};

std::vector<uint16_t> as_bf16(const Floats& weight) {
  std::vector<uint16_t> words(weight.size());
  for (size_t i = 0; i < weight.size(); ++i) {
    uint32_t bits;
    memcpy(&bits, &weight[i], 4);
    words[i] = uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
  return words;
}

ssd_matrix* packed(int format, int64_t out, int64_t in, const Floats& weight) {
  return ssd_pack(format, out, in, format == SSD_BF16 ? (const void*)as_bf16(weight).data() : weight.data());
}

// A decoder with everything in it: shared heads of an odd width, norms, biases, a window, a tied head.
struct Toy {
  static constexpr int64_t vocab = 151, hidden = 52, layers = 2, heads = 6, kv_heads = 2, dim = 10, inner = 44, blocks = 16, block = 8;
  static constexpr int64_t mixed = heads * dim, qkv = (heads + 2 * kv_heads) * dim, length = 60;

  Floats embedding = random_floats(vocab * hidden, 10), norm = random_floats(hidden, 11, 0.2f, 1.0f), frequencies;
  std::vector<Floats> vectors;
  std::vector<ssd_matrix*> matrices;
  std::vector<ssd_layer> layer;
  ssd_decoder model{};

  explicit Toy(int format) {
    for (int64_t i = 0; i < dim / 2; ++i) frequencies.push_back(std::pow(10000.0f, -2.0f * i / dim));
    vectors.reserve(layers * 7);
    for (int64_t l = 0; l < layers; ++l) {
      const uint32_t seed = uint32_t(100 * (l + 1));
      layer.push_back({matrix(format, qkv, hidden, seed), matrix(format, hidden, mixed, seed + 1),
                       matrix(format, 2 * inner, hidden, seed + 2), matrix(format, hidden, inner, seed + 3),
                       vector(qkv, seed + 4, 0), vector(hidden, seed + 5, 0), vector(2 * inner, seed + 6, 0),
                       vector(hidden, seed + 7, 0), vector((heads + kv_heads) * dim, seed + 8, 1),
                       vector(hidden, seed + 9, 1), vector(hidden, seed + 10, 1), l == 0 ? 0 : 17});
    }
    model = {vocab, hidden, layers, heads, kv_heads, dim, inner, 1e-6f, 0.5623413f, 32, 0, embedding.data(),
             frequencies.data(), norm.data(), matrix(format, vocab, hidden, 12), layer.data()};
  }
  ~Toy() {
    for (ssd_matrix* w : matrices) ssd_free(w);
  }
  ssd_matrix* matrix(int format, int64_t out, int64_t in, uint32_t seed) {
    matrices.push_back(packed(format, out, in, random_floats(out * in, seed, 1.7f / std::sqrt(float(in)))));
    return matrices.back();
  }
  const float* vector(int64_t size, uint32_t seed, float center) {
    vectors.push_back(random_floats(size, seed, 0.2f, center));
    return vectors.back().data();
  }
};

// Keys and values of a toy, NaN wherever nothing was written, and a table of all blocks.
struct Store {
  std::vector<uint8_t> memory;
  ssd_kv kv;
  std::vector<int64_t> table;

  explicit Store(int format) {
    const int64_t item = format == SSD_KV_F32 ? 4 : format == SSD_KV_F16 ? 2 : 1;
    const int64_t entry = 2 * Toy::dim * item + (format >= SSD_KV_INT8 ? 8 : 0);
    const int64_t layer_bytes = (Toy::blocks + 1) * Toy::block * Toy::kv_heads * entry;
    memory.assign(Toy::layers * layer_bytes, 0xff);
    kv = {memory.data(), layer_bytes, Toy::block, format, 0};
    for (int64_t b = Toy::blocks - 1; b >= 0; --b) table.push_back(b);
  }
};

}  // namespace
