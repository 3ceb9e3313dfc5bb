// Paged keys and values: where a token's entry lies, how it is written, how a vector of it is read.
#pragma once
#include "api.h"
#include "pack.h"

namespace ssd {
namespace SSD_ISA {

constexpr int64_t kv_item_bytes(int32_t format) { return format == SSD_KV_F32 ? 4 : format == SSD_KV_F16 ? 2 : 1; }
inline bool kv_has_scales(int32_t format) { return format >= SSD_KV_INT8; }

// One layer of one model's KV.
struct Pages {
  uint8_t* data;
  int32_t format;
  int64_t block_size, heads, dim, item, entry;

  Pages(const ssd_kv& kv, int64_t layer, int64_t heads, int64_t dim)
      : data(kv.data + layer * kv.layer_bytes), format(kv.format), block_size(kv.block_size), heads(heads), dim(dim),
        item(kv_item_bytes(kv.format)), entry(2 * dim * item + (kv_has_scales(kv.format) ? 8 : 0)) {}

  // The entry of `position` (keys, values, scales) for `head`.
  uint8_t* at(const int64_t* table, int64_t position, int64_t head) const {
    const int64_t block = table[position / block_size], offset = position % block_size;
    return data + ((block * heads + head) * block_size + offset) * entry;
  }
};

inline uint32_t word_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

// Nearest e4m3 of a value in [-448, 448], ties to even. Without branches, so that loops become vectors.
inline uint8_t float_to_fp8(float value) {
  const uint32_t bits = word_of(value), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - (120u << 23) + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  // below 2^-6 the step is 2^-9, which is that of float32 from 2^14 on
  const uint32_t small = word_of(std::fabs(value) + 0x1p14f) - word_of(0x1p14f);
  const uint32_t code = magnitude < (121u << 23) ? small : normal;
  return uint8_t((bits >> 24 & 0x80u) | (code > 0x7eu ? 0x7eu : code));
}

constexpr uint32_t NOT_FINITE = 0x7f800000u;

// The bits of the largest magnitude of `x`: in the order of the numbers, NaN above all.
inline uint32_t largest_bits(const float* x, int64_t size) {
  int32_t largest = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int32_t magnitude = int32_t(word_of(x[i]) & 0x7fffffffu);
    largest = magnitude > largest ? magnitude : largest;
  }
  return uint32_t(largest);
}

// One key or value into its place; `scale` is written for formats that have one. A vector that is not
// finite keeps a NaN: in the scale, where codes could not hold it.
inline void write_vector(int32_t format, const float* x, int64_t dim, uint8_t* to, float* scale) {
  if (format == SSD_KV_F32) {
    memcpy(to, x, dim * 4);
    return;
  }
  if (format == SSD_KV_F16) {
    for (int64_t i = 0; i < dim; ++i) {
      const bool finite = (word_of(x[i]) & 0x7fffffffu) < NOT_FINITE;
      ((uint16_t*)to)[i] = finite ? float_to_half(x[i]) : uint16_t(0x7e00u);
    }
    return;
  }
  const uint32_t bits = largest_bits(x, dim);
  float largest;
  memcpy(&largest, &bits, 4);
  const float limit = format == SSD_KV_INT8 ? 127.0f : 448.0f;
  *scale = bits < NOT_FINITE ? largest / limit : largest - largest;
  if (!(largest > 1e-30f) || bits >= NOT_FINITE) {
    memset(to, 0, dim);
    return;
  }
  const float inverse = limit / largest;
  if (format == SSD_KV_INT8)
    for (int64_t i = 0; i < dim; ++i) to[i] = uint8_t(int8_t(int32_t(__builtin_rintf(x[i] * inverse))));
  else
    for (int64_t i = 0; i < dim; ++i) to[i] = float_to_fp8(x[i] * inverse);
}

inline void write_entry(const Pages& pages, uint8_t* entry, const float* key, const float* value) {
  float* scales = (float*)(entry + 2 * pages.dim * pages.item);
  write_vector(pages.format, key, pages.dim, entry, scales);
  write_vector(pages.format, value, pages.dim, entry + pages.dim * pages.item, scales + 1);
}

inline void read_items(int32_t format, const uint8_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    if (format == SSD_KV_F32) memcpy(to + i, from + 4 * i, 4);
    else if (format == SSD_KV_F16) to[i] = half_to_float(((const uint16_t*)from)[i]);
    else if (format == SSD_KV_INT8) to[i] = float(int8_t(from[i]));
    else to[i] = fp8_to_float(from[i]);
  }
}

// W items from item `at` on, float32, without the scale.
template <int FORMAT>
inline F read_vector(const uint8_t* from, int64_t at) {
  if (FORMAT == SSD_KV_F32) return load((const float*)from + at);
  if (FORMAT == SSD_KV_F16) return load_half((const uint16_t*)from + at);
  return FORMAT == SSD_KV_INT8 ? load_int8(from + at) : load_fp8(from + at);
}

}  // namespace SSD_ISA
}  // namespace ssd
