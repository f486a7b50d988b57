// SPDX-License-Identifier: Apache-2.0
// Activations on a GPU, in FP32: FP64 is one sixty-fourth as fast on many parts. Each is within 2^-21 * |t| of the
// exact value (docs/numerics.md section 11.2); the errors below are those of the CUDA math functions, in units of |t|.
// relu is exact and is numerics/epilogue.h's.
#pragma once
#include "contract/types.h"
#include "numerics/epilogue.h"

namespace blockscale::cuda {

// t * sigmoid(x). __expf is within (2 + 1.173 |x|) * 2^-23 of itself, which moves the sigmoid s by s (1 - s) times
// that, at most 0.63 * 2^-23; the sum rounds at 2^-24 and the division at 2^-23. Together below 2^-21.9. Far below zero
// the exponential is inf, and the result -0.
__device__ __forceinline__ float times_sigmoid(float t, float x) { return __fdividef(t, 1.0f + __expf(-x)); }

__device__ __forceinline__ float fast_silu(float t) { return times_sigmoid(t, t); }

// 0.5 t (1 + erf(t / sqrt(2))): erff is within 2 units in the last place, 2^-23 below 1, and the sum rounds at 2^-24.
__device__ __forceinline__ float fast_gelu(float t) { return (0.5f * t) * (1.0f + erff(t * 0.70710678f)); }

// 0.5 (1 + tanh z) = sigmoid(2 z), z = sqrt(2/pi) (t + 0.044715 t^3): a relative error of 2^-22 in 2 z moves the
// sigmoid by at most 0.23 * 2^-22.
__device__ __forceinline__ float fast_gelu_tanh(float t) {
  return times_sigmoid(t, 1.5957691216f * (t + 0.044715f * t * t * t));
}

// Every element; `activation` (BsActivation) is the same in the whole grid.
template <int kCount>
__device__ __forceinline__ void activate(int32_t activation, float (&t)[kCount]) {
  switch (activation) {
    case BS_RELU:
#pragma unroll
      for (int i = 0; i < kCount; ++i) t[i] = relu(t[i]);
      break;
    case BS_SILU:
#pragma unroll
      for (int i = 0; i < kCount; ++i) t[i] = fast_silu(t[i]);
      break;
    case BS_GELU:
#pragma unroll
      for (int i = 0; i < kCount; ++i) t[i] = fast_gelu(t[i]);
      break;
    case BS_GELU_TANH:
#pragma unroll
      for (int i = 0; i < kCount; ++i) t[i] = fast_gelu_tanh(t[i]);
      break;
    default:
      break;
  }
}

}  // namespace blockscale::cuda
