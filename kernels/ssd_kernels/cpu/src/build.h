// A build: several paths grow by a token a step until all are done, in one call. A step is one forward pass.
#pragma once
#include "lane.h"

namespace ssd {
namespace SSD_ISA {

// A lane's memory for builds: one step's pass, token by token and draw by draw.
struct BuildSpace {
  Room<int64_t> token_ids, positions, table_at, wanted, expected, slots, drawn, candidates;
  Room<float> scores;
  Room<ssd_draw> draws;
  Room<ssd_block_copy> copies;

  bool reserve(int64_t tokens, int64_t draws_, int64_t count) {
    return token_ids.reserve(tokens) && positions.reserve(tokens) && table_at.reserve(tokens) && wanted.reserve(draws_) &&
           expected.reserve(draws_) && slots.reserve(draws_) && drawn.reserve(draws_) && candidates.reserve(draws_ * count) &&
           scores.reserve(draws_ * count) && draws.reserve(draws_) && copies.reserve(draws_);
  }
};

class Build {
 public:
  Build(const ssd_decoder& model, const ssd_kv& kv, ssd_build_call& call, BuildSpace& space)
      : model_(model), kv_(kv), call_(call), space_(space) {}

  // 0 all lines are done, 1 ended by the stop word, -1 memory is short.
  int run() {
    copy_blocks(call_.copy, call_.copies);  // whatever follows: later calls count on it
    if (!reserve()) return -1;
    for (int64_t step = 0; step < call_.steps; ++step) {
      if (says(call_.stop) != SSD_GO_ON) return 1;
      const auto started = std::chrono::steady_clock::now();
      open_lines();
      lay_out();
      if (pass_.tokens == 0) return 0;
      Forward forward(model_, kv_, pass_, workspace());
      if (!forward.prepare()) return -1;
      in_parallel(call_.threads, [&](Team& team) { forward.run(team); });
      if (forward.interrupted()) return 1;
      take();
      call_.step_tokens[step] = pass_.tokens;
      call_.step_seconds[step] = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
      __atomic_store_n(&call_.progress, int32_t(step + 1), __ATOMIC_RELEASE);
    }
    return 0;
  }

 private:
  bool reserve() {
    int64_t tokens = 0, draws = 0;
    for (int64_t r = 0; r < call_.rows; ++r) {
      const ssd_build_row& row = call_.row[r];
      const int64_t lines = row.lines + row.waiting;
      tokens += std::min(row.tokens, call_.chunk) + lines;
      draws += 1 + lines;
    }
    return space_.reserve(tokens, draws, call_.count);
  }

  // One after the other, each thread in some of the layers.
  void copy_blocks(const ssd_block_copy* copies, int64_t count) {
    if (count == 0) return;
    in_parallel(call_.threads, [&](Team& team) {
      const Range layers = team.share(model_.layers);
      for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
        const Pages pages(kv_, layer, model_.kv_heads, model_.head_dim);
        for (int64_t i = 0; i < count; ++i)
          for (int64_t head = 0; head < model_.kv_heads; ++head)
            memcpy(pages.at(&copies[i].target, 0, head), pages.at(&copies[i].source, 0, head), copies[i].tokens * pages.entry);
      }
    });
  }

  void open_lines() {
    int64_t copies = 0;
    for (int64_t r = 0; r < call_.rows; ++r) {
      ssd_build_row& row = call_.row[r];
      if (row.waiting == 0 || row.read < row.tokens) continue;
      const int64_t opened = row.continues ? open_trunk(row) : open_likeliest(row);
      for (int64_t i = 0; i < opened; ++i) {
        ssd_line& line = call_.line[row.line_at + row.lines + i];
        line.length = row.length;
        if (line.copy.tokens) space_.copies[copies++] = line.copy;
      }
      row.lines += opened;
      row.waiting = 0;
    }
    copy_blocks(space_.copies.get(), copies);
  }

  int64_t open_trunk(const ssd_build_row& row) {
    if (call_.drawn[row.result_at] < 0) return 0;
    call_.line[row.line_at + row.lines].drawn = 1;
    return 1;
  }

  int64_t open_likeliest(const ssd_build_row& row) {
    const int64_t* candidates = call_.candidates + row.result_at * call_.count;
    const float* scores = call_.scores + row.result_at * call_.count;
    int64_t opened = 0;
    for (int64_t i = 0; i < call_.count && opened < row.waiting; ++i) {
      if (candidates[i] < 0 || scores[i] <= BANNED / 2 || ends(row, candidates[i])) continue;
      call_.line[row.line_at + row.lines + opened++].first = candidates[i];
    }
    return opened;
  }

  bool ends(const ssd_build_row& row, int64_t token) const {
    const int64_t* ids = call_.end_ids + row.end_at;
    return std::find(ids, ids + row.end_count, token) != ids + row.end_count;
  }

  // The last token of a line, which it has not read.
  int64_t last_of(const ssd_line& line) const {
    return line.drawn ? call_.drawn[line.result_at + line.drawn - 1] : line.first;
  }

  bool is_done(const ssd_build_row& row, const ssd_line& line) const {
    return line.drawn >= line.limit || ends(row, last_of(line));
  }

  int64_t chunk_of(const ssd_build_row& row) const { return std::min(call_.chunk, row.tokens - row.read); }

  // Calls `trunk(row, tokens)` and `line(row, line)` for what the next pass feeds, in the order in which it does so.
  template <class OfTrunk, class OfLine>
  void each_fed(OfTrunk trunk, OfLine of_line) {
    for (int64_t r = 0; r < call_.rows; ++r) {
      ssd_build_row& row = call_.row[r];
      if (row.read < row.tokens) trunk(row, chunk_of(row));
      for (int64_t i = 0; i < row.lines; ++i) {
        ssd_line& line = call_.line[row.line_at + i];
        if (!is_done(row, line)) of_line(row, line);
      }
    }
  }

  void lay_out() {
    pass_ = {};
    each_fed(
        [&](const ssd_build_row& row, int64_t tokens) {
          for (int64_t i = 0; i < tokens; ++i)
            feed(call_.token_ids[row.token_at + row.read + i], row.length + i, row.table_at);
          if (row.read + tokens == row.tokens) want(row, row.result_at);
        },
        [&](const ssd_build_row& row, const ssd_line& line) {
          feed(last_of(line), line.length, line.table_at);
          want(row, line.result_at + line.drawn);
        });
    pass_.token_ids = space_.token_ids.get(), pass_.positions = space_.positions.get();
    pass_.table_at = space_.table_at.get(), pass_.tables = call_.tables;
    pass_.wanted_tokens = space_.wanted.get(), pass_.draws = space_.draws.get(), pass_.expected = space_.expected.get();
    pass_.drawn_vocab = call_.drawn_vocab, pass_.count = call_.count;
    pass_.drawn = space_.drawn.get(), pass_.candidates = space_.candidates.get(), pass_.scores = space_.scores.get();
    pass_.stop = call_.stop, pass_.threads = call_.threads;
  }

  void feed(int64_t token, int64_t position, int64_t table_at) {
    const int64_t at = pass_.tokens++;
    space_.token_ids[at] = token, space_.positions[at] = position, space_.table_at[at] = table_at;
  }

  // A draw behind the token that was fed last, whose result goes to `slot`.
  void want(const ssd_build_row& row, int64_t slot) {
    const int64_t at = pass_.wanted++, token = pass_.tokens - 1;
    space_.wanted[at] = token, space_.expected[at] = -1, space_.slots[at] = slot;
    ssd_draw& draw = space_.draws[at] = row.draw;
    draw.position = space_.positions[token] + 1, draw.count = call_.count;
  }

  // The pass is done: what it read, and what it drew.
  void take() {
    for (int64_t i = 0; i < pass_.wanted; ++i) {
      call_.drawn[space_.slots[i]] = space_.drawn[i];
      std::copy_n(&space_.candidates[i * call_.count], call_.count, call_.candidates + space_.slots[i] * call_.count);
      std::copy_n(&space_.scores[i * call_.count], call_.count, call_.scores + space_.slots[i] * call_.count);
    }
    each_fed(
        [&](ssd_build_row& row, int64_t tokens) { row.read += tokens, row.length += tokens; },
        [&](const ssd_build_row&, ssd_line& line) {
          ++line.length;
          if (call_.drawn[line.result_at + line.drawn] < 0) line.limit = line.drawn;  // numbers of no use end it
          else ++line.drawn;
        });
  }

  const ssd_decoder& model_;
  const ssd_kv& kv_;
  ssd_build_call& call_;
  BuildSpace& space_;
  ssd_pass pass_{};
};

}  // namespace SSD_ISA
}  // namespace ssd
