// The native library on another processor, without Python: `make neon` runs this under an emulator.
//
//     check_lane write FILE     what this build computes, for another build to compare with
//     check_lane compare FILE   all checks, and the same numbers within their tolerance
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

// Numbers that one build writes and another compares, in the order in which they are computed.
class Reference {
 public:
  Reference(const char* path, bool writes) : writes_(writes), file_(fopen(path, writes ? "wb" : "rb")) {}
  ~Reference() { fclose(file_); }
  bool is_open() const { return file_ != nullptr; }

  void agree(const std::string& what, const Floats& values, float tolerance) {
    if (writes_) {
      fwrite(values.data(), sizeof(float), values.size(), file_);
      return;
    }
    Floats expected(values.size());
    check(fread(expected.data(), sizeof(float), expected.size(), file_) == expected.size(), what + ": file too short");
    float worst = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const float error = std::fabs(values[i] - expected[i]);
      worst = error <= worst ? worst : error;  // takes a NaN too
    }
    check(worst <= tolerance, what + ": off by " + std::to_string(worst));
  }

 private:
  const bool writes_;
  FILE* file_;
};

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

// The inputs that products use: for codes rounded to int8 in groups of 32.
Floats as_multiplied(const Floats& x, int64_t in, bool coded) {
  Floats used = x;
  for (size_t at = 0; coded && at < x.size(); at += in)
    for (int64_t first = 0; first < in; first += 32) {
      const int64_t last = std::min(in, first + 32);
      float largest = 0;
      for (int64_t i = first; i < last; ++i) largest = std::max(largest, std::fabs(x[at + i]));
      for (int64_t i = first; i < last; ++i)
        used[at + i] = std::nearbyint(x[at + i] * (127.0f / largest)) * (largest / 127.0f);
    }
  return used;
}

void check_product(int format, int64_t out, int64_t in) {
  const int64_t rows = 33;
  const std::string what = "product in " + FORMATS.at(format) + " of " + std::to_string(out) + " times " + std::to_string(in);
  ssd_matrix* w = packed(format, out, in, random_floats(out * in, 1));
  const Floats x = random_floats(rows * in, 2, 3.0f), used = as_multiplied(x, in, format >= SSD_INT8);
  Floats stored(out * in), y(rows * out);
  ssd_unpack(w, stored.data());
  ssd_product(w, x.data(), rows, y.data(), 1);
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t o = 0; o < out; ++o) {
      double sum = 0, magnitudes = 0;
      for (int64_t k = 0; k < in; ++k) {
        sum += double(used[m * in + k]) * stored[o * in + k];
        magnitudes += std::fabs(used[m * in + k]);  // no weight is larger than 1
      }
      check(std::fabs(y[m * out + o] - sum) <= 4e-6 * magnitudes, what + ": wrong");
    }
  for (int64_t count = 1; count <= 20; ++count) {
    Floats part(count * out);
    const int64_t first = (7 * count) % (rows - count + 1);
    ssd_product(w, &x[first * in], count, part.data(), count % 8 ? 1 : 3);
    check(!memcmp(part.data(), &y[first * out], part.size() * sizeof(float)), what + ": rows touch each other");
  }
  ssd_free(w);
}

void check_noise(Reference& reference) {
  const std::vector<std::pair<uint32_t, uint32_t>> documented = {
      {0x00000000, 0x41B6FDA9}, {0x00000001, 0x41AE33B3}, {0x4AFB0CCB, 0x3F87A2F1}, {0x4AFB0CCC, 0x3F87A2F1},
      {0x80000000, 0x3EBBA795}, {0xFFFFFFFE, 0xC0452B66}, {0xFFFFFFFF, 0xC04851D5}, {0x9BA84CEC, 0x3D862B6C},
      {0xAABFA147, 0xBDC26626}, {0x7E39BAFD, 0x3EC5ED46}, {0x585B1322, 0x3F5C0E72}, {0xFE21AE4B, 0xBFCBF20C}};
  for (const auto& [word, bits] : documented) {
    float noise, bound;
    uint32_t got;
    ssd_test_noise(&word, 1, &noise, &bound);
    memcpy(&got, &noise, 4);
    check(got == bits, "noise of a documented word");
  }
  std::vector<uint32_t> words(64 * 1000);
  ssd_test_words(20260501, 12345678901, 1000, words.data());
  Floats noise(words.size()), bounds(words.size());
  ssd_test_noise(words.data(), int64_t(words.size()), noise.data(), bounds.data());
  reference.agree("noise of 64 000 tokens", noise, 0.0f);
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

// Logits of all tokens of one sequence, fed `chunk` at a time; the last token's draws too.
Floats fed(const Toy& toy, int kv_format, int64_t chunk, int threads, std::vector<int64_t>* drawn = nullptr) {
  const int64_t item = kv_format == SSD_KV_F32 ? 4 : kv_format == SSD_KV_F16 ? 2 : 1;
  const int64_t entry = 2 * toy.dim * item + (kv_format >= SSD_KV_INT8 ? 8 : 0);
  const int64_t layer_bytes = (toy.blocks + 1) * toy.block * toy.kv_heads * entry;
  std::vector<uint8_t> memory(toy.layers * layer_bytes, 0xff);  // NaN in every format
  const ssd_kv kv{memory.data(), layer_bytes, toy.block, kv_format, 0};
  std::vector<int64_t> table;
  for (int64_t b = toy.blocks - 1; b >= 0; --b) table.push_back(b);
  Floats logits(toy.length * toy.vocab);
  for (int64_t start = 0; start < toy.length; start += chunk) {
    const int64_t count = std::min(chunk, toy.length - start);
    std::vector<int64_t> ids, positions, wanted, zeros(count, 0), none(count, -1), tokens(count);
    std::vector<ssd_draw> draws;
    for (int64_t t = 0; t < count; ++t) {
      ids.push_back((start + t) * 13 % toy.vocab);
      positions.push_back(start + t);
      wanted.push_back(t);
      draws.push_back({uint64_t(99 + t), start + t + 1, t % 3 ? 0.9 : 0.0, 0.9, 0.0, 0, 0});
    }
    ssd_pass pass{};
    pass.tokens = pass.wanted = count;
    pass.token_ids = ids.data(), pass.positions = positions.data(), pass.table_at = zeros.data();
    pass.tables = table.data(), pass.wanted_tokens = wanted.data(), pass.logits = &logits[start * toy.vocab];
    pass.draws = draws.data(), pass.expected = none.data(), pass.drawn_vocab = toy.vocab, pass.drawn = tokens.data();
    pass.threads = threads;
    check(ssd_forward(&toy.model, &kv, &pass) == 0, "a pass failed");
    if (drawn) drawn->insert(drawn->end(), tokens.begin(), tokens.end());
  }
  return logits;
}

void check_pass(int format, int kv_format, Reference& reference) {
  const std::string what = "pass in " + FORMATS.at(format) + ", KV format " + std::to_string(kv_format);
  const Toy toy(format);
  std::vector<int64_t> drawn;
  const Floats whole = fed(toy, kv_format, toy.length, 1, &drawn);
  for (int64_t chunk : {1, 3, 7, 59})
    check(same_bits(fed(toy, kv_format, chunk, 1), whole), what + ": chunks matter");
  for (int threads : {2, 3}) check(same_bits(fed(toy, kv_format, 23, threads), whole), what + ": threads matter");
  // codes of inputs or keys on a border may fall to either side
  const bool coded = format >= SSD_INT8 || kv_format != SSD_KV_F32;
  reference.agree(what, whole, coded ? 0.1f : 1e-4f);
  if (!coded) reference.agree(what + ", draws", Floats(drawn.begin(), drawn.end()), 0.0f);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return fprintf(stderr, "check_lane write|compare FILE\n"), 2;
  Reference reference(arguments[2], std::string(arguments[1]) == "write");
  if (!reference.is_open()) return perror(arguments[2]), 2;
  check_noise(reference);
  for (const auto& [format, name] : FORMATS) {
    for (int64_t out : {1, 11, 12, 13, 50})
      for (int64_t in : {1, 31, 64, 97}) check_product(format, out, in);
    for (int kv_format : {SSD_KV_F32, SSD_KV_F16, SSD_KV_INT8, SSD_KV_FP8}) check_pass(format, kv_format, reference);
  }
  printf("%s: %s\n", ssd_isa(), failures ? "FAILED" : "all checks hold");
  return failures ? 1 : 0;
}
