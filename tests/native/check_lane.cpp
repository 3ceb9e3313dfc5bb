// The native library on another processor, without Python: `make neon` runs this under an emulator.
//
//     check_lane write FILE     what this build computes, for another build to compare with
//     check_lane compare FILE   all checks, and the same numbers within their tolerance
#include "toy.h"

namespace {

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

// Logits of all tokens of one sequence, fed `chunk` at a time; the last token's draws too.
Floats fed(const Toy& toy, int kv_format, int64_t chunk, int threads, std::vector<int64_t>* drawn = nullptr) {
  const Store store(kv_format);
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
    pass.tables = store.table.data(), pass.wanted_tokens = wanted.data(), pass.logits = &logits[start * toy.vocab];
    pass.draws = draws.data(), pass.expected = none.data(), pass.drawn_vocab = toy.vocab, pass.drawn = tokens.data();
    pass.threads = threads;
    check(ssd_forward(&toy.model, &store.kv, &pass) == 0, "a pass failed");
    if (drawn) drawn->insert(drawn->end(), tokens.begin(), tokens.end());
  }
  return logits;
}

void check_pass(int format, int kv_format, Reference& reference) {
  const std::string what = "pass in " + FORMATS.at(format) + ", KV format " + std::to_string(kv_format);
  const Toy toy(format);
  std::vector<int64_t> drawn;
  const Floats whole = fed(toy, kv_format, toy.length, 1, &drawn);
  check(ssd_reserve(&toy.model, 2 * toy.length, 3 * toy.length, 3) == 0, "no memory for passes");
  for (int64_t chunk : {1, 3, 7, 59})
    check(same_bits(fed(toy, kv_format, chunk, 1), whole), what + ": chunks matter");
  for (int threads : {2, 3}) check(same_bits(fed(toy, kv_format, 23, threads), whole), what + ": threads matter");
  // codes of inputs or keys on a border may fall to either side
  const bool coded = format >= SSD_INT8 || kv_format != SSD_KV_F32;
  reference.agree(what, whole, coded ? 0.1f : 1e-4f);
  if (!coded) reference.agree(what + ", draws", Floats(drawn.begin(), drawn.end()), 0.0f);
}

using Ids = std::vector<int64_t>;

// What is drawn behind each of `ids`, in one pass.
Ids drawn_behind(const Toy& toy, int kv_format, const Ids& ids, ssd_draw draw) {
  const Store store(kv_format);
  const int64_t count = int64_t(ids.size());
  Ids positions(count), zeros(count, 0), none(count, -1), tokens(count);
  std::vector<ssd_draw> draws(count, draw);
  for (int64_t t = 0; t < count; ++t) positions[t] = t, draws[t].position = t + 1, draws[t].count = 0;
  ssd_pass pass{};
  pass.tokens = pass.wanted = count;
  pass.token_ids = ids.data(), pass.positions = pass.wanted_tokens = positions.data(), pass.table_at = zeros.data();
  pass.tables = store.table.data(), pass.draws = draws.data(), pass.expected = none.data();
  pass.drawn_vocab = toy.vocab, pass.drawn = tokens.data(), pass.threads = 1;
  check(ssd_forward(&toy.model, &store.kv, &pass) == 0, "a pass failed");
  return tokens;
}

// One sequence that reads 20 tokens, and then grows either three lines or itself.
void check_build(int format, int kv_format, bool continues, Reference& reference) {
  const std::string what = "build in " + FORMATS.at(format) + ", KV format " + std::to_string(kv_format);
  const int64_t read = 20, limit = 5, count = 6, waiting = continues ? 1 : 3, results = 1 + waiting * limit;
  const Toy toy(format);
  const Store store(kv_format);
  Ids ids, tables = store.table, drawn(results), candidates(results * count), step_tokens(64);
  for (int64_t t = 0; t < read; ++t) ids.push_back(t * 13 % toy.vocab);
  std::vector<ssd_line> lines;
  for (int64_t i = 0; i < waiting; ++i) {
    const int64_t own = 2 * i, partial = read % toy.block, full = read / toy.block;
    lines.push_back({continues ? 0 : int64_t(tables.size()), continues ? 0 : 1 + i * limit, limit, read, -1, 0, {}});
    if (continues) continue;
    lines.back().copy = {store.table[full], own, partial};
    tables.insert(tables.end(), store.table.begin(), store.table.begin() + full);
    tables.insert(tables.end(), {own, own + 1});
  }
  ssd_build_row row{};
  row.draw = {99, 0, 0.9, 0.9, 0.0, 0, 0};
  row.tokens = read, row.waiting = waiting, row.continues = continues;
  Floats scores(results * count);
  std::vector<double> seconds(64);
  ssd_build_call call{};
  call.rows = 1, call.chunk = 7, call.steps = 64, call.row = &row, call.line = lines.data(), call.token_ids = ids.data();
  call.tables = tables.data(), call.drawn_vocab = toy.vocab, call.count = count, call.drawn = drawn.data();
  call.candidates = candidates.data(), call.scores = scores.data(), call.step_tokens = step_tokens.data();
  call.step_seconds = seconds.data(), call.threads = 2;
  check(ssd_build(&toy.model, &store.kv, &call) == 0, what + ": ended early");
  check(row.read == read && row.lines == waiting && call.progress == 3 + limit - continues, what + ": not to its end");
  for (int64_t i = 0; i < row.lines; ++i) {
    const ssd_line& line = lines[i];
    Ids whole = ids;
    if (!continues) whole.push_back(line.first);
    check(continues || line.first == candidates[i], what + ": another first token than the likeliest");
    whole.insert(whole.end(), &drawn[line.result_at], &drawn[line.result_at] + line.drawn);
    const Ids behind = drawn_behind(toy, kv_format, whole, row.draw);
    check(line.drawn == limit && std::equal(&drawn[line.result_at], &drawn[line.result_at] + limit, behind.end() - limit - 1),
          what + ": other tokens than pass by pass");
  }
  if (format < SSD_INT8 && kv_format == SSD_KV_F32) reference.agree(what, Floats(drawn.begin(), drawn.end()), 0.0f);
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
    for (int kv_format : {SSD_KV_F32, SSD_KV_F16, SSD_KV_INT8, SSD_KV_FP8}) {
      check_pass(format, kv_format, reference);
      for (bool continues : {false, true}) check_build(format, kv_format, continues, reference);
    }
  }
  printf("%s: %s\n", ssd_isa(), failures ? "FAILED" : "all checks hold");
  return failures ? 1 : 0;
}
