// One forward pass over a ragged batch. Every thread of the team runs `Forward::run`; barriers stand where one
// thread reads what another wrote.
#pragma once
#include <algorithm>

#include "attention.h"
#include "chains.h"

namespace ssd {
namespace SSD_ISA {

// A lane's memory for passes.
struct Workspace {
  Room<float> x, normed, qkv, mixed, gate_up, active, rotations, logits, scales, attention;
  Room<int8_t> codes;
  Room<int32_t> sums;
  Scratches draws;
};

inline int32_t says(const int32_t* stop) { return stop ? __atomic_load_n(stop, __ATOMIC_RELAXED) : SSD_GO_ON; }

class Forward {
 public:
  Forward(const ssd_decoder& model, const ssd_kv& kv, const ssd_pass& pass, Workspace& space)
      : model_(model), kv_(kv), pass_(pass), space_(space), tokens_(pass.tokens), hidden_(model.hidden),
        mixed_(model.heads * model.head_dim), qkv_((model.heads + 2 * model.kv_heads) * model.head_dim),
        scratch_(attention_scratch(model.head_dim)) {}

  // Makes room; false when memory is short.
  bool prepare() {
    space_.draws.grow(pass_.threads);
    return each_room([](auto& room, int64_t size) { return room.reserve(size); });
  }

  // Makes room, and has the system give the pages at once instead of in the first pass that needs them.
  bool prepare_pages() {
    return each_room([](auto& room, int64_t size) { return room.reserve(size) && room.touch(size); });
  }

  bool interrupted() const { return interrupted_; }

  void run(Team& team) {
    embed(team);
    for (int64_t index = 0; index < model_.layers; ++index) {
      if (team.rank == 0 && says(pass_.stop) == SSD_STOP_AT_ONCE) interrupted_ = true;
      team.barrier();
      if (interrupted_) return;
      attention_part(index, model_.layer[index], team);
      mlp_part(model_.layer[index], team);
    }
    team.barrier();
    head(team);
  }

 private:
  // Calls `take(room, size)` for all that the pass needs, until one of them says false.
  template <class Take>
  bool each_room(Take take) {
    const int64_t widest = round_up(std::max({hidden_, mixed_, model_.intermediate}), GROUP);
    const int64_t rows = std::max(tokens_, pass_.wanted);
    return take(space_.x, tokens_ * hidden_) && take(space_.normed, rows * hidden_) &&
           take(space_.qkv, tokens_ * qkv_) && take(space_.mixed, tokens_ * mixed_) &&
           take(space_.gate_up, tokens_ * 2 * model_.intermediate) &&
           take(space_.active, tokens_ * model_.intermediate) && take(space_.rotations, tokens_ * model_.head_dim) &&
           take(space_.codes, rows * widest) && take(space_.scales, rows * widest / GROUP) &&
           take(space_.sums, rows * widest / GROUP) && take(space_.attention, pass_.threads * scratch_) &&
           (pass_.logits || take(space_.logits, pass_.wanted * model_.vocab));
  }

  void embed(Team& team) {
    const int64_t half = model_.head_dim / 2;
    const Range range = team.share(tokens_);
    for (int64_t t = range.begin; t < range.end; ++t) {
      embed_token(pass_.token_ids[t], &space_.x[t * hidden_]);
      float* cos = &space_.rotations[t * 2 * half];
      for (int64_t i = 0; i < half; ++i) {
        const float angle = float(pass_.positions[t]) * model_.frequencies[i];
        cos[i] = std::cos(angle) * model_.rope_factor;
        cos[half + i] = std::sin(angle) * model_.rope_factor;
      }
    }
  }

  void embed_token(int64_t id, float* x) const {
    if (model_.embedding_bits == 32) {
      memcpy(x, (const float*)model_.embedding + id * hidden_, hidden_ * sizeof(float));
      return;
    }
    const uint16_t* from = (const uint16_t*)model_.embedding + id * hidden_;
    for (int64_t i = 0; i < hidden_; ++i) x[i] = model_.embedding_bits > 0 ? bf16_to_float(from[i]) : half_to_float(from[i]);
  }

  // Rows for a product of `w`; their codes are made by `quantize`, row by row.
  Rows rows(const ssd_matrix&, int64_t count, const float* x, int64_t stride) {
    return {count, x, stride, space_.codes.get(), space_.scales.get(), space_.sums.get()};
  }

  void quantize(const ssd_matrix& w, const float* x, int64_t row) {
    if (!has_groups(w)) return;
    const int64_t groups = groups_of(w), at = row * groups;
    quantize_row(x, w.in, groups, &space_.codes[row * w.padded_in], &space_.scales[at], &space_.sums[at]);
  }

  void norm(const float* x, const float* weight, const ssd_matrix& next, int64_t row) {
    float* y = &space_.normed[row * hidden_];
    rms_norm(x, weight, hidden_, model_.rms_eps, y);
    quantize(next, y, row);
  }

  void norm_all(const float* weight, const ssd_matrix& next, Team& team) {
    const Range range = team.share(tokens_);
    for (int64_t t = range.begin; t < range.end; ++t) norm(&space_.x[t * hidden_], weight, next, t);
    team.barrier();
  }

  void attention_part(int64_t index, const ssd_layer& layer, Team& team) {
    norm_all(layer.input_norm, *layer.qkv, team);
    product(*layer.qkv, rows(*layer.qkv, tokens_, space_.normed.get(), hidden_),
            {space_.qkv.get(), qkv_, layer.qkv_bias, false}, team);
    team.barrier();
    const Pages pages(kv_, index, model_.kv_heads, model_.head_dim);
    position_heads(layer, pages, team);
    team.barrier();
    attend_all(layer, pages, team);
    team.barrier();
    if (has_groups(*layer.output)) {
      const Range range = team.share(tokens_);
      for (int64_t t = range.begin; t < range.end; ++t) quantize(*layer.output, &space_.mixed[t * mixed_], t);
      team.barrier();
    }
    product(*layer.output, rows(*layer.output, tokens_, space_.mixed.get(), mixed_),
            {space_.x.get(), hidden_, layer.output_bias, true}, team);
    team.barrier();
  }

  // Norms and rotates queries and keys, writes keys and values to their pages.
  void position_heads(const ssd_layer& layer, const Pages& pages, Team& team) {
    const int64_t dim = model_.head_dim, heads = model_.heads + model_.kv_heads;
    const Range range = team.share(tokens_ * heads);
    for (int64_t unit = range.begin; unit < range.end; ++unit) {
      const int64_t t = unit / heads, h = unit % heads;
      float* head = &space_.qkv[t * qkv_ + h * dim];
      if (layer.qk_norm) rms_norm(head, layer.qk_norm + h * dim, dim, model_.rms_eps, head);
      const float* cos = &space_.rotations[t * dim];
      rotate(head, cos, cos + dim / 2, dim / 2);
      if (h < model_.heads) continue;
      const int64_t kv_head = h - model_.heads;
      uint8_t* entry = pages.at(pass_.tables + pass_.table_at[t], pass_.positions[t], kv_head);
      write_entry(pages, entry, head, head + model_.kv_heads * dim);
    }
  }

  void attend_all(const ssd_layer& layer, const Pages& pages, Team& team) {
    const int64_t shared = model_.heads / model_.kv_heads, units = tokens_ * model_.heads;
    if (tokens_ >= 8 * team.size) {  // later tokens cost more: deal them out in turn
      for (int64_t t = team.rank; t < tokens_; t += team.size)
        for (int64_t h = 0; h < model_.heads; h += heads_at_once(h, shared))
          attend_token(layer, pages, t, h, heads_at_once(h, shared), team);
      return;
    }
    const Range range = team.share(units);
    for (int64_t unit = range.begin; unit < range.end;) {
      const int64_t t = unit / model_.heads, h = unit % model_.heads;
      const int64_t count = std::min(heads_at_once(h, shared), range.end - unit);
      attend_token(layer, pages, t, h, count, team);
      unit += count;
    }
  }

  // Heads from `h` on that read the same keys, as many as `attend` takes.
  static int64_t heads_at_once(int64_t h, int64_t shared) {
    return std::min<int64_t>(MOST_HEADS, shared - h % shared);
  }

  void attend_token(const ssd_layer& layer, const Pages& pages, int64_t t, int64_t h, int64_t count, Team& team) {
    const int64_t dim = model_.head_dim, last = pass_.positions[t];
    const int64_t first = layer.window && last >= layer.window ? last - layer.window + 1 : 0;
    const Span span{pages, pass_.tables + pass_.table_at[t], h * model_.kv_heads / model_.heads, first, last};
    attend(int(count), span, &space_.qkv[t * qkv_ + h * dim], &space_.attention[team.rank * scratch_],
           &space_.mixed[t * mixed_ + h * dim]);
  }

  void mlp_part(const ssd_layer& layer, Team& team) {
    const int64_t inner = model_.intermediate;
    norm_all(layer.post_norm, *layer.gate_up, team);
    product(*layer.gate_up, rows(*layer.gate_up, tokens_, space_.normed.get(), hidden_),
            {space_.gate_up.get(), 2 * inner, layer.gate_up_bias, false}, team);
    team.barrier();
    activate(*layer.down, team);
    team.barrier();
    product(*layer.down, rows(*layer.down, tokens_, space_.active.get(), inner),
            {space_.x.get(), hidden_, layer.down_bias, true}, team);
  }

  // In units of a group, so that even one row keeps every thread busy.
  void activate(const ssd_matrix& down, Team& team) {
    const int64_t inner = model_.intermediate, groups = (inner + GROUP - 1) / GROUP;
    const Range range = team.share(tokens_ * groups);
    for (int64_t unit = range.begin; unit < range.end; ++unit) {
      const int64_t t = unit / groups, at = unit % groups * GROUP, size = std::min<int64_t>(GROUP, inner - at);
      const float* gate = &space_.gate_up[t * 2 * inner + at];
      float* active = &space_.active[t * inner + at];
      gated(gate, gate + inner, size, active);
      if (has_groups(down))
        quantize_row(active, size, 1, &space_.codes[t * down.padded_in + at], &space_.scales[unit], &space_.sums[unit]);
    }
  }

  void head(Team& team) {
    if (!pass_.wanted) return;
    const Range range = team.share(pass_.wanted);
    for (int64_t i = range.begin; i < range.end; ++i)
      norm(&space_.x[pass_.wanted_tokens[i] * hidden_], model_.norm, *model_.head, i);
    team.barrier();
    float* logits = pass_.logits ? pass_.logits : space_.logits.get();
    product(*model_.head, rows(*model_.head, pass_.wanted, space_.normed.get(), hidden_), {logits, model_.vocab, nullptr, false}, team);
    if (!pass_.draws) return;
    team.barrier();
    draw_chains(logits, model_.vocab, pass_, space_.draws, team);
  }

  const ssd_decoder& model_;
  const ssd_kv& kv_;
  const ssd_pass& pass_;
  Workspace& space_;
  const int64_t tokens_, hidden_, mixed_, qkv_, scratch_;
  bool interrupted_ = false;
};

}  // namespace SSD_ISA
}  // namespace ssd
