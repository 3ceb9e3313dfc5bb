// Weights in panels of 3 · W outputs, inputs in sequence: a product reads its weights once, front to back,
// and every output is summed in the order of its inputs whatever the number of rows.
#pragma once
#include <cmath>
#include <cstdlib>

#include "api.h"
#include "pool.h"
#include "vec.h"

namespace ssd {
namespace SSD_ISA {

constexpr int VECTORS = 3;
constexpr int PANEL = VECTORS * W;
constexpr int GROUP = 32;
constexpr int FINEST = 16;  // fewest inputs with a scale of their own
constexpr int QUADS = GROUP / 4;
constexpr int STRETCH = 64;  // inputs that are summed by themselves
constexpr int64_t FETCH_AHEAD = 8192;  // bytes
constexpr int64_t CACHE_LINE = 64;

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
inline bool has_groups(const ssd_matrix& w) { return w.format >= SSD_INT8; }
inline int64_t panels_of(const ssd_matrix& w) { return (w.out + PANEL - 1) / PANEL; }
inline int64_t groups_of(const ssd_matrix& w) { return w.padded_in / GROUP; }

// A group of a panel: codes, then for every output its scales, then for int4 its minimum.
struct Layout {
  int bits, scales;  // of a code; of an output
  bool minimum, wide;

  constexpr int64_t codes() const { return GROUP * PANEL * bits / 8; }
  constexpr int64_t bytes() const { return codes() + (scales + minimum) * PANEL * (wide ? 4 : 2); }
};

constexpr Layout layout_of(int32_t format) {
  switch (format) {
    case SSD_INT8: return {8, 1, false, false};
    case SSD_INT4: return {4, 1, true, false};
    case SSD_INT4_WIDE: return {4, 1, true, true};
    default: return {8, 2, false, true};
  }
}

constexpr int64_t INT8_CODES = layout_of(SSD_INT8).codes(), INT4_CODES = layout_of(SSD_INT4).codes();

// The rows that a product reads: float32, or codes with a scale per group.
struct Rows {
  int64_t count;
  const float* x;
  int64_t stride;
  const int8_t* codes;    // [count, padded_in]
  const float* scales;    // [count, groups]
  const int32_t* sums;    // [count, groups] of the codes
};

// Where a product goes: y = product + bias, or y += product + bias.
struct Target {
  float* y;
  int64_t stride;
  const float* bias;
  bool adds;
};

// Codes, scales and sums of one row. A group with a number that is not finite gets the scale NaN.
inline void quantize_row(const float* x, int64_t in, int64_t groups, int8_t* codes, float* scales, int32_t* sums) {
  float padded[GROUP];
  for (int64_t g = 0; g < groups; ++g) {
    const float* from = x + g * GROUP;
    if ((g + 1) * GROUP > in) {
      for (int i = 0; i < GROUP; ++i) padded[i] = g * GROUP + i < in ? from[i] : 0.0f;
      from = padded;
    }
    float largest = 0, spoilt = 0;
    for (int i = 0; i < GROUP; ++i) {
      const float magnitude = std::fabs(from[i]);
      largest = magnitude > largest ? magnitude : largest;
    }
    for (int i = 0; i < GROUP; ++i) spoilt += from[i] * 0.0f;
    const bool usable = spoilt == 0.0f && largest > 1e-30f;
    const float inverse = usable ? 127.0f / largest : 0.0f;
    int32_t sum = 0;
    int8_t* to = codes + g * GROUP;
    if (usable) {
      for (int i = 0; i < GROUP; ++i) to[i] = int8_t(int32_t(__builtin_rintf(from[i] * inverse)));
      for (int i = 0; i < GROUP; ++i) sum += to[i];
    } else {
      memset(to, 0, GROUP);
    }
    scales[g] = spoilt == 0.0f ? largest / 127.0f : spoilt;
    sums[g] = sum;
  }
}

// Asks for what is read soon; also for what is not there, in vain.
inline void fetch(const uint8_t* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += CACHE_LINE) __builtin_prefetch(from + at, 0, 3);
}

// Weights that are used soon: between the products of several rows the processor does not look far enough.
inline void fetch_ahead(const uint8_t* weights, int64_t bytes) { fetch(weights + FETCH_AHEAD, bytes); }

template <int M>
using Sums = F[M][VECTORS];

template <int M>
inline void clear(Sums<M>& sums) {
  for (int m = 0; m < M; ++m)
    for (int i = 0; i < VECTORS; ++i) sums[m][i] = zero();
}

// Adds the products of inputs `first … last - 1`, summed by themselves first: short sums lose fewer digits.
template <int M, F (*LOAD)(const void*, int64_t)>
inline void float_stretch(const uint8_t* panel, int64_t item, int64_t first, int64_t last, const float* const* x,
                          Sums<M>& sums) {
  Sums<M> part;
  clear<M>(part);
  for (int64_t k = first; k < last; ++k) {
    const uint8_t* at = panel + k * PANEL * item;
    if (M > 1 || item < 4) fetch_ahead(at, PANEL * item);  // for one row of float32 the processor looks far enough
    F weights[VECTORS];
    for (int i = 0; i < VECTORS; ++i) weights[i] = LOAD(at, i);
    for (int m = 0; m < M; ++m) {
      const F value = set1(x[m][k]);
      for (int i = 0; i < VECTORS; ++i) part[m][i] = fma(value, weights[i], part[m][i]);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int i = 0; i < VECTORS; ++i) sums[m][i] = add(sums[m][i], part[m][i]);
}

template <int M, F (*LOAD)(const void*, int64_t)>
inline void float_panel(const uint8_t* panel, int64_t item, const ssd_matrix& w, const float* const* x, Sums<M>& sums) {
  for (int64_t k = 0; k < w.in; k += STRETCH)
    float_stretch<M, LOAD>(panel, item, k, k + STRETCH < w.in ? k + STRETCH : w.in, x, sums);
}

inline F load_float32(const void* at, int64_t i) { return load((const float*)at + i * W); }
inline F load_bfloat16(const void* at, int64_t i) { return load_bf16((const uint16_t*)at + i * W); }

// What a group needs of one row, spread over the lanes when it is used.
struct GroupOfRow {
  const int8_t* codes;
  float scale;
  int32_t sum;
};

template <int M>
using Dots = I[M][VECTORS];

// Adds the products of four inputs of every row: one load of codes serves all rows.
template <int M, I (*DOT)(I, I, I)>
inline void add_quad(const I* codes, const GroupOfRow* x, int quad, Dots<M>& dots) {
  for (int m = 0; m < M; ++m) {
    const I four = spread(four_codes(x[m].codes + 4 * quad));
    for (int i = 0; i < VECTORS; ++i) dots[m][i] = DOT(dots[m][i], codes[i], four);
  }
}

template <int M>
inline void int8_group(const uint8_t* record, const GroupOfRow* x, Sums<M>& sums) {
  Dots<M> dots;
  for (int m = 0; m < M; ++m)
    for (int i = 0; i < VECTORS; ++i) dots[m][i] = spread(-CODE_BIAS * x[m].sum);
#pragma GCC unroll 8
  for (int q = 0; q < QUADS; ++q) {
    I codes[VECTORS];
    for (int i = 0; i < VECTORS; ++i) codes[i] = load_codes(record + (q * PANEL + i * W) * 4);
    add_quad<M, dot8>(codes, x, q, dots);
  }
  const uint16_t* scales = (const uint16_t*)(record + INT8_CODES);
  for (int i = 0; i < VECTORS; ++i) {
    const F scale = load_half(scales + i * W);
    for (int m = 0; m < M; ++m) sums[m][i] = fma(to_float(dots[m][i]), mul(scale, set1(x[m].scale)), sums[m][i]);
  }
}

inline F load_scales(const uint16_t* p) { return load_half(p); }
inline F load_scales(const float* p) { return load(p); }

// S: what scales and minima are stored as.
template <int M, class S>
inline void int4_group(const uint8_t* record, const GroupOfRow* x, Sums<M>& sums) {
  Dots<M> dots;
  for (int m = 0; m < M; ++m)
    for (int i = 0; i < VECTORS; ++i) dots[m][i] = spread(0);
#pragma GCC unroll 4
  for (int q = 0; q < QUADS / 2; ++q) {
    I both[VECTORS], codes[VECTORS];
    for (int i = 0; i < VECTORS; ++i) both[i] = load_codes(record + (q * PANEL + i * W) * 4);
    for (int i = 0; i < VECTORS; ++i) codes[i] = low_nibbles(both[i]);
    add_quad<M, dot4>(codes, x, q, dots);
    for (int i = 0; i < VECTORS; ++i) codes[i] = high_nibbles(both[i]);
    add_quad<M, dot4>(codes, x, q + QUADS / 2, dots);
  }
  const S* scales = (const S*)(record + INT4_CODES);
  for (int i = 0; i < VECTORS; ++i) {
    const F scale = load_scales(scales + i * W), minimum = load_scales(scales + PANEL + i * W);
    for (int m = 0; m < M; ++m) {
      sums[m][i] = fma(to_float(dots[m][i]), mul(scale, set1(x[m].scale)), sums[m][i]);
      sums[m][i] = fma(minimum, set1(x[m].scale * float(x[m].sum)), sums[m][i]);
    }
  }
}

// Two scales for an output: of the group's first 16 inputs and of the others.
template <int M>
inline void int8_fine_group(const uint8_t* record, const GroupOfRow* x, Sums<M>& sums) {
  const float* scales = (const float*)(record + INT8_CODES);
  for (int half = 0; half < 2; ++half) {
    Dots<M> dots;
    for (int m = 0; m < M; ++m) {
      int32_t sum = 0;
      for (int k = 0; k < FINEST && CODE_BIAS; ++k) sum += x[m].codes[half * FINEST + k];
      for (int i = 0; i < VECTORS; ++i) dots[m][i] = spread(-CODE_BIAS * sum);
    }
#pragma GCC unroll 4
    for (int q = half * QUADS / 2; q < (half + 1) * QUADS / 2; ++q) {
      I codes[VECTORS];
      for (int i = 0; i < VECTORS; ++i) codes[i] = load_codes(record + (q * PANEL + i * W) * 4);
      add_quad<M, dot8>(codes, x, q, dots);
    }
    for (int i = 0; i < VECTORS; ++i) {
      const F scale = load(scales + half * PANEL + i * W);
      for (int m = 0; m < M; ++m) sums[m][i] = fma(to_float(dots[m][i]), mul(scale, set1(x[m].scale)), sums[m][i]);
    }
  }
}

template <int M, int32_t FORMAT, void (*ADD)(const uint8_t*, const GroupOfRow*, Sums<M>&)>
inline void group_panel(const uint8_t* panel, const ssd_matrix& w, const Rows& rows, int64_t first, Sums<M>& sums) {
  constexpr int64_t bytes = layout_of(FORMAT).bytes();
  const int64_t groups = groups_of(w);
  for (int64_t g = 0; g < groups; ++g) {
    fetch_ahead(panel + g * bytes, bytes);
    GroupOfRow x[M];
    for (int m = 0; m < M; ++m) {
      const int64_t row = first + m;
      x[m] = {rows.codes + row * w.padded_in + g * GROUP, rows.scales[row * groups + g], rows.sums[row * groups + g]};
    }
    ADD(panel + g * bytes, x, sums);
  }
}

template <int M>
inline void finish(const ssd_matrix& w, int64_t panel, const Target& target, int64_t first, const Sums<M>& sums) {
  const int64_t at = panel * PANEL;
  const int64_t outputs = w.out - at < PANEL ? w.out - at : PANEL;
  for (int m = 0; m < M; ++m) {
    float values[PANEL];
    for (int i = 0; i < VECTORS; ++i) store(values + i * W, sums[m][i]);
    float* y = target.y + (first + m) * target.stride + at;
    if (target.bias)
      for (int64_t i = 0; i < outputs; ++i) values[i] += target.bias[at + i];
    if (target.adds)
      for (int64_t i = 0; i < outputs; ++i) y[i] += values[i];
    else
      memcpy(y, values, outputs * sizeof(float));
  }
}

template <int M>
inline void code_panel(const uint8_t* panel, const ssd_matrix& w, const Rows& rows, int64_t first, Sums<M>& sums) {
  switch (w.format) {
    case SSD_INT8: return group_panel<M, SSD_INT8, int8_group<M>>(panel, w, rows, first, sums);
    case SSD_INT4: return group_panel<M, SSD_INT4, int4_group<M, uint16_t>>(panel, w, rows, first, sums);
    case SSD_INT4_WIDE: return group_panel<M, SSD_INT4_WIDE, int4_group<M, float>>(panel, w, rows, first, sums);
    default: return group_panel<M, SSD_INT8_FINE, int8_fine_group<M>>(panel, w, rows, first, sums);
  }
}

// Rows `first … first + M` of one panel of outputs.
template <int M>
void panel_block(const ssd_matrix& w, int64_t panel, const Rows& rows, int64_t first, const Target& target) {
  const uint8_t* data = w.data + panel * w.panel_bytes;
  Sums<M> sums;
  clear<M>(sums);
  if (has_groups(w)) {
    code_panel<M>(data, w, rows, first, sums);
  } else {
    const float* x[M];
    for (int m = 0; m < M; ++m) x[m] = rows.x + (first + m) * rows.stride;
    if (w.format == SSD_F32) float_panel<M, load_float32>(data, 4, w, x, sums);
    else float_panel<M, load_bfloat16>(data, 2, w, x, sums);
  }
  finish<M>(w, panel, target, first, sums);
}

inline void some_rows(int64_t count, const ssd_matrix& w, int64_t panel, const Rows& rows, int64_t first, const Target& target) {
  switch (count) {
    case 1: return panel_block<1>(w, panel, rows, first, target);
    case 2: return panel_block<2>(w, panel, rows, first, target);
    case 3: return panel_block<3>(w, panel, rows, first, target);
    case 4: return panel_block<4>(w, panel, rows, first, target);
    case 5: return panel_block<5>(w, panel, rows, first, target);
    case 6: return panel_block<6>(w, panel, rows, first, target);
    case 7: return panel_block<7>(w, panel, rows, first, target);
    default: return panel_block<8>(w, panel, rows, first, target);
  }
}

// This thread's part of the product of all rows.
inline void product(const ssd_matrix& w, const Rows& rows, const Target& target, const Team& team) {
  const Range range = team.share(panels_of(w));
  for (int64_t panel = range.begin; panel < range.end; ++panel)
    for (int64_t first = 0; first < rows.count; first += MAX_ROWS) {
      const int64_t left = rows.count - first;
      some_rows(left < MAX_ROWS ? left : MAX_ROWS, w, panel, rows, first, target);
    }
}

}  // namespace SSD_ISA
}  // namespace ssd
