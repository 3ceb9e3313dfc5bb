// One vector of floats and one of 8-bit codes, as each instruction set has them.
// Everything rounds the same way whatever the number of rows: no reassociation, fused only where `fma` says.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace ssd {
namespace SSD_ISA {

inline float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000u) << 16;
  const uint32_t bits = uint32_t(half & 0x7fffu) << 13;
  // scaling by 2^112 moves the exponent's bias, subnormals included
  float value;
  memcpy(&value, &bits, 4);
  value *= 0x1p112f;
  uint32_t word;
  memcpy(&word, &value, 4);
  if ((half & 0x7c00u) == 0x7c00u) word |= 0x7f800000u;
  word |= sign;
  memcpy(&value, &word, 4);
  return value;
}

// float8 e4m3: the byte, moved into a float16, is the value divided by 2^8.
inline float fp8_to_float(uint8_t byte) {
  const uint16_t half = uint16_t((byte & 0x80u) << 8 | (byte & 0x7fu) << 7);
  return half_to_float(half) * 256.0f;
}

inline float bf16_to_float(uint16_t word) {
  const uint32_t bits = uint32_t(word) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

inline int32_t four_codes(const int8_t* x) {
  int32_t word;
  memcpy(&word, x, 4);
  return word;
}

#if defined(__AVX512F__) && defined(__AVX512VNNI__)

constexpr int W = 16;
constexpr int MAX_ROWS = 8;
constexpr int CODE_BIAS = 128;  // codes are stored unsigned, as vpdpbusd wants them
using F = __m512;
using I = __m512i;

inline F zero() { return _mm512_setzero_ps(); }
inline F set1(float x) { return _mm512_set1_ps(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F v) { _mm512_storeu_ps(p, v); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F larger(F a, F b) { return _mm512_max_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline F load_int8(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))); }
inline F load_fp8(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
  const __m256i rest = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7f)), 7);
  return mul(_mm512_cvtph_ps(_mm256_or_si256(sign, rest)), set1(256.0f));
}
inline F load_bf16(const uint16_t* p) {
  const I wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline I load_codes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline I low_nibbles(I v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
inline I high_nibbles(I v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
inline I spread(int32_t four) { return _mm512_set1_epi32(four); }
inline I dot8(I sum, I codes, I x) { return _mm512_dpbusd_epi32(sum, codes, x); }
inline I dot4(I sum, I codes, I x) { return _mm512_dpbusd_epi32(sum, codes, x); }
inline F to_float(I v) { return _mm512_cvtepi32_ps(v); }

#elif defined(__AVX2__)

constexpr int W = 8;
constexpr int MAX_ROWS = 4;
constexpr int CODE_BIAS = 0;
using F = __m256;
using I = __m256i;

inline F zero() { return _mm256_setzero_ps(); }
inline F set1(float x) { return _mm256_set1_ps(x); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F v) { _mm256_storeu_ps(p, v); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F larger(F a, F b) { return _mm256_max_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F load_half(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
inline F load_int8(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))); }
inline F load_fp8(const uint8_t* p) {
  const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i*)p));
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x80)), 8);
  const __m128i rest = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x7f)), 7);
  return mul(_mm256_cvtph_ps(_mm_or_si128(sign, rest)), set1(256.0f));
}
inline F load_bf16(const uint16_t* p) {
  const I wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline I load_codes(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline I low_nibbles(I v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
inline I high_nibbles(I v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }
inline I spread(int32_t four) { return _mm256_set1_epi32(four); }
inline I sum_pairs(I sum, I pairs) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline I dot8(I sum, I codes, I x) {
  // |w| · (x with the sign of w): two such products stay below 2^15, so nothing saturates
  return sum_pairs(sum, _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes)));
}
inline I dot4(I sum, I codes, I x) { return sum_pairs(sum, _mm256_maddubs_epi16(codes, x)); }
inline F to_float(I v) { return _mm256_cvtepi32_ps(v); }

#elif defined(__aarch64__)

constexpr int W = 4;
constexpr int MAX_ROWS = 8;
constexpr int CODE_BIAS = 0;
using F = float32x4_t;
using I = int32x4_t;

inline F zero() { return vdupq_n_f32(0); }
inline F set1(float x) { return vdupq_n_f32(x); }
inline F load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, F v) { vst1q_f32(p, v); }
inline F add(F a, F b) { return vaddq_f32(a, b); }
inline F mul(F a, F b) { return vmulq_f32(a, b); }
inline F larger(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
inline F load_half(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline F load_int8(const uint8_t* p) {
  int32_t four;
  memcpy(&four, p, 4);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))));
}
inline F load_fp8(const uint8_t* p) {
  uint32_t four;
  memcpy(&four, p, 4);
  const uint16x4_t wide = vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four))));
  const uint16x4_t sign = vshl_n_u16(vand_u16(wide, vdup_n_u16(0x80)), 8);
  const uint16x4_t rest = vshl_n_u16(vand_u16(wide, vdup_n_u16(0x7f)), 7);
  return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vorr_u16(sign, rest))), 256.0f);
}
inline F load_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline I load_codes(const uint8_t* p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
inline I low_nibbles(I v) { return vreinterpretq_s32_u8(vandq_u8(vreinterpretq_u8_s32(v), vdupq_n_u8(15))); }
inline I high_nibbles(I v) { return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(v), 4)); }
inline I spread(int32_t four) { return vdupq_n_s32(four); }
inline I dot8(I sum, I codes, I x) {
  const int8x16_t a = vreinterpretq_s8_s32(codes), b = vreinterpretq_s8_s32(x);
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, a, b);
#else
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
  const int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(a), vget_high_s8(b)));
  return vaddq_s32(sum, vpaddq_s32(low, high));
#endif
}
inline I dot4(I sum, I codes, I x) { return dot8(sum, codes, x); }
inline F to_float(I v) { return vcvtq_f32_s32(v); }

#else

constexpr int W = 4;
constexpr int MAX_ROWS = 4;
constexpr int CODE_BIAS = 0;
typedef float F __attribute__((vector_size(16)));
typedef int32_t I __attribute__((vector_size(16)));
typedef int8_t Bytes __attribute__((vector_size(16)));

inline F zero() { return F{}; }
inline F set1(float x) { return F{x, x, x, x}; }
inline F load(const float* p) {
  F v;
  memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, F v) { memcpy(p, &v, sizeof v); }
inline F add(F a, F b) { return a + b; }
inline F mul(F a, F b) { return a * b; }
inline F larger(F a, F b) { return a > b ? a : b; }
inline F fma(F a, F b, F c) { return a * b + c; }
inline F load_half(const uint16_t* p) {
  return F{half_to_float(p[0]), half_to_float(p[1]), half_to_float(p[2]), half_to_float(p[3])};
}
inline F load_int8(const uint8_t* p) {
  return F{float(int8_t(p[0])), float(int8_t(p[1])), float(int8_t(p[2])), float(int8_t(p[3]))};
}
inline F load_fp8(const uint8_t* p) {
  return F{fp8_to_float(p[0]), fp8_to_float(p[1]), fp8_to_float(p[2]), fp8_to_float(p[3])};
}
inline F load_bf16(const uint16_t* p) {
  return F{bf16_to_float(p[0]), bf16_to_float(p[1]), bf16_to_float(p[2]), bf16_to_float(p[3])};
}
inline I load_codes(const uint8_t* p) {
  I v;
  memcpy(&v, p, sizeof v);
  return v;
}
inline I low_nibbles(I v) { return v & 0x0f0f0f0f; }
inline I high_nibbles(I v) { return (v >> 4) & 0x0f0f0f0f; }
inline I spread(int32_t four) { return I{four, four, four, four}; }
inline I dot8(I sum, I codes, I x) {
  const Bytes a = (Bytes)codes, b = (Bytes)x;
  for (int i = 0; i < 16; ++i) sum[i / 4] += int32_t(a[i]) * int32_t(b[i]);
  return sum;
}
inline I dot4(I sum, I codes, I x) { return dot8(sum, codes, x); }
inline F to_float(I v) { return __builtin_convertvector(v, F); }

#endif

// The largest of `values`, passing over NaN.
inline float largest(const float* values, int64_t count) {
  F best = set1(values[0]);
  int64_t i = 0;
  for (; i + W <= count; i += W) best = larger(load(values + i), best);
  float lanes[W], most;
  store(lanes, best);
  most = lanes[0];
  for (int lane = 1; lane < W; ++lane) most = lanes[lane] > most ? lanes[lane] : most;
  for (; i < count; ++i) most = values[i] > most ? values[i] : most;
  return most;
}

// Halves are added until one lane is left: the same order everywhere.
inline float sum_lanes(F v) {
#if defined(__AVX512F__) && defined(__AVX512VNNI__)
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
#elif defined(__AVX2__)
  const __m256 half = v;
#endif
#if defined(__AVX2__)
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
#else
  float lanes[W];
  store(lanes, v);
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
#endif
}

}  // namespace SSD_ISA
}  // namespace ssd
