// Paged keys and values: where a token's entry lies, how it is written, how a vector of it is read.
#pragma once
#include "api.h"
#include "pack.h"

namespace ssd {
namespace SSD_ISA {

inline int64_t kv_item_bytes(int32_t format) { return format == SSD_KV_F32 ? 4 : format == SSD_KV_F16 ? 2 : 1; }
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
    const int64_t slot = table[position / block_size] * block_size + position % block_size;
    return data + (slot * heads + head) * entry;
  }
  // Bytes from one token to the next within a block.
  int64_t stride() const { return heads * entry; }
};

// float8 e4m3 as its 16-bit neighbour: the byte, moved into a float16, is the value divided by 2^8.
inline float fp8_to_float(uint8_t byte) {
  const uint16_t half = uint16_t((byte & 0x80u) << 8 | (byte & 0x7fu) << 7);
  return half_to_float(half) * 256.0f;
}

// Nearest e4m3 of a value in [-448, 448], ties to even.
inline uint8_t float_to_fp8(float value) {
  const uint16_t half = float_to_half(value / 256.0f);
  const uint16_t magnitude = half & 0x7fffu;
  const uint16_t rounded = uint16_t((magnitude + 0x3fu + ((magnitude >> 7) & 1u)) >> 7);
  return uint8_t((half >> 8 & 0x80u) | (rounded > 0x7eu ? 0x7eu : rounded));
}

inline float largest_of(const float* x, int64_t size) {
  float largest = 0;
  for (int64_t i = 0; i < size; ++i) largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
  return largest;
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
      const bool finite = x[i] * 0.0f == 0.0f;
      ((uint16_t*)to)[i] = finite ? float_to_half(x[i]) : 0x7e00u;
    }
    return;
  }
  const float limit = format == SSD_KV_INT8 ? 127.0f : 448.0f;
  float spoilt = 0;
  for (int64_t i = 0; i < dim; ++i) spoilt += x[i] * 0.0f;
  const float largest = largest_of(x, dim);
  const bool usable = spoilt == 0.0f && largest > 1e-30f;
  const float inverse = usable ? limit / largest : 0.0f;
  *scale = spoilt == 0.0f ? largest / limit : spoilt;
  for (int64_t i = 0; i < dim; ++i) {
    const float value = usable ? x[i] * inverse : 0.0f;
    to[i] = format == SSD_KV_INT8 ? uint8_t(int8_t(int32_t(__builtin_rintf(value)))) : float_to_fp8(value);
  }
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
  float items[W];
  read_items(FORMAT, from + at, W, items);
  return load(items);
}

}  // namespace SSD_ISA
}  // namespace ssd
