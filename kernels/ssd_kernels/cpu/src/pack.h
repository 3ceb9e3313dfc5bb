// From a model's weights to panels and back.
#pragma once
#include <cstdlib>

#include "arena.h"
#include "matrix.h"

namespace ssd {
namespace SSD_ISA {

// Nearest float16, ties to even; beyond the largest one, that one. Without branches, so that loops become vectors.
inline uint16_t float_to_half(float value) {
  uint32_t bits, small;
  memcpy(&bits, &value, 4);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // subnormal: adding ½ aligns the digits that are kept
  const float aligned = std::fabs(value) + 0.5f;
  memcpy(&small, &aligned, 4);
  const uint32_t half = magnitude < 0x38800000u ? small - 0x3f000000u : normal;
  return uint16_t((bits >> 16 & 0x8000u) | (magnitude >= 0x477ff000u ? 0x7bffu : half));
}

inline ssd_matrix* new_matrix(int32_t format, int64_t out, int64_t in) {
  const int64_t padded = format >= SSD_INT8 ? round_up(in, GROUP) : in;
  const int64_t bytes = format == SSD_F32    ? in * PANEL * 4
                        : format == SSD_BF16 ? in * PANEL * 2
                                             : padded / GROUP * layout_of(format).bytes();
  ssd_matrix* w = (ssd_matrix*)calloc(1, sizeof(ssd_matrix));
  if (!w) return nullptr;
  *w = {format, PANEL, out, in, padded, round_up(bytes, 64), 0, nullptr};
  w->bytes = panels_of(*w) * w->panel_bytes;
  w->data = weight_arena().take(w->bytes);
  if (w->data) return w;
  free(w);
  return nullptr;
}

template <class T>
void pack_floats(ssd_matrix& w, const T* weight) {
  for (int64_t o = 0; o < w.out; ++o) {
    T* panel = (T*)(w.data + o / PANEL * w.panel_bytes) + o % PANEL;
    for (int64_t k = 0; k < w.in; ++k) panel[k * PANEL] = weight[o * w.in + k];
  }
}

inline uint8_t* record_of(const ssd_matrix& w, int64_t output, int64_t group) {
  return w.data + output / PANEL * w.panel_bytes + group * layout_of(w.format).bytes();
}

// Where the code of input `i` of a group lies; for int4 inputs 0 … 15 are low nibbles, 16 … 31 high ones.
inline int64_t code_at(const Layout& layout, int64_t output, int i) {
  const int quad = i / 4 % (layout.bits == 8 ? QUADS : QUADS / 2);
  return (quad * PANEL + output % PANEL) * 4 + i % 4;
}

// Scale `index` of an output in its record; the one after the last is the minimum.
inline float scale_of(const uint8_t* record, const Layout& layout, int64_t output, int index) {
  const int64_t at = index * PANEL + output % PANEL;
  const uint8_t* scales = record + layout.codes();
  return layout.wide ? ((const float*)scales)[at] : half_to_float(((const uint16_t*)scales)[at]);
}

inline void put_scale(uint8_t* record, const Layout& layout, int64_t output, int index, float value) {
  const int64_t at = index * PANEL + output % PANEL;
  uint8_t* scales = record + layout.codes();
  if (layout.wide) ((float*)scales)[at] = value;
  else ((uint16_t*)scales)[at] = float_to_half(value);
}

// codes: int8 or 0 … 15 for the GROUP inputs of one group.
inline void put_group(ssd_matrix& w, int64_t output, int64_t group, const uint8_t* codes, const float* scales, float minimum) {
  const Layout layout = layout_of(w.format);
  uint8_t* record = record_of(w, output, group);
  for (int i = 0; i < GROUP; ++i) {
    uint8_t& code = record[code_at(layout, output, i)];
    if (layout.bits == 8) code = uint8_t(int8_t(codes[i]) + CODE_BIAS);
    else code |= uint8_t(codes[i] << (i < GROUP / 2 ? 0 : 4));
  }
  for (int index = 0; index < layout.scales; ++index) put_scale(record, layout, output, index, scales[index]);
  if (layout.minimum) put_scale(record, layout, output, layout.scales, minimum);
}

inline float clamp(float value, float low, float high) { return value < low ? low : value > high ? high : value; }

// As the format stores it.
inline float stored_scale(const Layout& layout, float value) {
  return layout.wide ? value : half_to_float(float_to_half(value));
}

// `count` inputs that share a scale.
inline void quantize_int8(const Layout& layout, const float* values, int count, uint8_t* codes, float& scale) {
  float largest = 0;
  for (int i = 0; i < count; ++i) largest = std::fabs(values[i]) > largest ? std::fabs(values[i]) : largest;
  scale = stored_scale(layout, largest / 127.0f);
  for (int i = 0; i < count; ++i)
    codes[i] = scale > 0 ? uint8_t(int8_t(clamp(__builtin_rintf(values[i] / scale), -127, 127))) : 0;
}

inline void quantize_int4(const Layout& layout, const float* values, uint8_t* codes, float& scale, float& minimum) {
  float low = values[0], high = values[0];
  for (int i = 1; i < GROUP; ++i) {
    low = values[i] < low ? values[i] : low;
    high = values[i] > high ? values[i] : high;
  }
  minimum = stored_scale(layout, low);
  scale = stored_scale(layout, (high - low) / 15.0f);
  for (int i = 0; i < GROUP; ++i)
    codes[i] = scale > 0 ? uint8_t(clamp(__builtin_rintf((values[i] - minimum) / scale), 0, 15)) : 0;
}

inline void pack_quantized(ssd_matrix& w, const float* weight) {
  const Layout layout = layout_of(w.format);
  const int count = GROUP / layout.scales;
  for (int64_t o = 0; o < w.out; ++o)
    for (int64_t g = 0; g < groups_of(w); ++g) {
      float values[GROUP] = {}, scales[GROUP / FINEST], minimum = 0;
      const int64_t left = w.in - g * GROUP;
      memcpy(values, weight + o * w.in + g * GROUP, (left < GROUP ? left : GROUP) * sizeof(float));
      uint8_t codes[GROUP];
      if (layout.minimum) quantize_int4(layout, values, codes, scales[0], minimum);
      else
        for (int i = 0; i < layout.scales; ++i)
          quantize_int8(layout, values + i * count, count, codes + i * count, scales[i]);
      put_group(w, o, g, codes, scales, minimum);
    }
}

inline ssd_matrix* pack(int32_t format, int64_t out, int64_t in, const void* weight) {
  ssd_matrix* w = new_matrix(format, out, in);
  if (!w) return nullptr;
  if (format == SSD_F32) pack_floats(*w, (const float*)weight);
  else if (format == SSD_BF16) pack_floats(*w, (const uint16_t*)weight);
  else pack_quantized(*w, (const float*)weight);
  return w;
}

inline ssd_matrix* pack_groups(int32_t format, int64_t out, int64_t in, const uint8_t* codes, const float* scales,
                               const float* minima) {
  ssd_matrix* w = new_matrix(format, out, in);
  if (!w) return nullptr;
  const int64_t groups = groups_of(*w), each = layout_of(format).scales;
  for (int64_t o = 0; o < out; ++o)
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t at = o * groups + g;
      put_group(*w, o, g, codes + at * GROUP, scales + at * each, minima ? minima[at] : 0);
    }
  return w;
}

inline float unpacked_code(const ssd_matrix& w, int64_t output, int64_t k) {
  const Layout layout = layout_of(w.format);
  const uint8_t* record = record_of(w, output, k / GROUP);
  const int i = int(k % GROUP);
  const uint8_t byte = record[code_at(layout, output, i)];
  const float scale = scale_of(record, layout, output, i / (GROUP / layout.scales));
  if (layout.bits == 8) return float(int8_t(byte - CODE_BIAS)) * scale;
  return float(i < GROUP / 2 ? byte & 15 : byte >> 4) * scale + scale_of(record, layout, output, layout.scales);
}

inline void unpack(const ssd_matrix& w, float* weight) {
  for (int64_t o = 0; o < w.out; ++o) {
    const uint8_t* panel = w.data + o / PANEL * w.panel_bytes;
    for (int64_t k = 0; k < w.in; ++k) {
      const int64_t at = k * PANEL + o % PANEL;
      float& value = weight[o * w.in + k];
      if (w.format == SSD_F32) value = ((const float*)panel)[at];
      else if (w.format == SSD_BF16) value = bf16_to_float(((const uint16_t*)panel)[at]);
      else value = unpacked_code(w, o, k);
    }
  }
}

}  // namespace SSD_ISA
}  // namespace ssd
