// SPDX-License-Identifier: Apache-2.0
// What happens to an accumulator, operation by operation (docs/numerics.md section 11.2). The CPU's epilogue and every
// GPU's call these; each line is one FP32 rounding.
#pragma once
#include <cmath>

#include "scale.h"

namespace blockscale {

// The second-level decode factor: amax * (1 / (6 * e4m3_max)).
BS_HD float decode_scale(float amax, int e4m3_max) { return amax * (1.0f / second_level_range(e4m3_max)); }

BS_HD float apply_scales(float acc, float a_decode, float b_decode, float alpha) {
  float t = acc + 0.0f;  // an exact sum of zero is +0, whatever the signs of the products were
  t = t * a_decode;
  t = t * b_decode;
  return alpha * t;
}

// Activations are evaluated in FP64 and rounded once: error below one unit in the last place of FP32.
BS_HD float relu(float t) { return t > 0.0f || t != t ? t : 0.0f; }
BS_HD float silu(float t) {
  const double x = t;
  return static_cast<float>(x / (1.0 + exp(-x)));
}
BS_HD float gelu(float t) {
  const double x = t;
  return static_cast<float>(0.5 * x * erfc(-x * 0.70710678118654752440));  // 1/sqrt(2)
}
BS_HD float gelu_tanh(float t) {
  // 0.5 (1 + tanh z) = 1 / (1 + exp(-2 z)), z = sqrt(2/pi) (x + 0.044715 x^3); no cancellation for negative x.
  const double x = t;
  const double z = 0.79788456080286535588 * (x + 0.044715 * x * x * x);
  return static_cast<float>(x / (1.0 + exp(-2.0 * z)));
}

}  // namespace blockscale
