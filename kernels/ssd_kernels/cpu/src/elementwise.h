// What stands between the products: norms, the gate, rotation, exponentials. Plain loops, one order each.
#pragma once
#include <cmath>

#include "vec.h"

namespace ssd {
namespace SSD_ISA {

// e^x within 2 ulp for x in [-87, 88], written out so that vectors and single numbers agree; below, about 0.
inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float n = __builtin_rintf(x * 1.44269504f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const int32_t exponent = n == n ? int32_t(n) : 0;
  const int32_t bits = (exponent + 127) << 23;
  float power;
  memcpy(&power, &bits, 4);
  return p * power;
}

inline float sum_of_squares(const float* x, int64_t size) {
  F sums[2] = {zero(), zero()};
  int64_t i = 0;
  for (; i + 2 * W <= size; i += 2 * W)
    for (int j = 0; j < 2; ++j) {
      const F v = load(x + i + j * W);
      sums[j] = fma(v, v, sums[j]);
    }
  float total = sum_lanes(add(sums[0], sums[1]));
  for (; i < size; ++i) total += x[i] * x[i];
  return total;
}

// y = x / rms(x) · weight; y may be x. Zhang, Sennrich, "Root Mean Square Layer Normalization" (2019).
inline void rms_norm(const float* x, const float* weight, int64_t size, float eps, float* y) {
  const float scale = 1.0f / std::sqrt(sum_of_squares(x, size) / float(size) + eps);
  for (int64_t i = 0; i < size; ++i) y[i] = x[i] * scale * weight[i];
}

// gate · sigmoid(gate) · up.
inline void gated(const float* gate, const float* up, int64_t size, float* y) {
  for (int64_t i = 0; i < size; ++i) y[i] = gate[i] * up[i] / (1.0f + exponential(-gate[i]));
}

// Rotary position embedding of one head, halves paired; cos and sin carry the scale.
inline void rotate(float* head, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float first = head[i], second = head[i + half];
    head[i] = first * cos[i] - second * sin[i];
    head[i + half] = second * cos[i] + first * sin[i];
  }
}

}  // namespace SSD_ISA
}  // namespace ssd
