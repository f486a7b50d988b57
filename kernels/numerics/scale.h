// SPDX-License-Identifier: Apache-2.0
// The two levels of scale: the only place where the formulas of docs/numerics.md section 2.1 and 6 stand.
// Every producer of NVFP4 bytes calls these: casts, fused scale, partial cast, GEMM epilogue, on the CPU and on a GPU.
// The order of operations is part of the format; each line is one FP32 rounding.
#pragma once
#include "e2m1.h"
#include "e4m3.h"

namespace blockscale {

constexpr uint32_t kOneSixthBits = 0x3E2AAAABu;  // 1/6 rounded to FP32

// 6 * e4m3_max, the largest code * block scale: 2688 or 1536.
BS_HD float second_level_range(int e4m3_max) { return 6.0f * static_cast<float>(e4m3_max); }

// amax is the FP32 second level G; the result Se scales G to the range: min(range / |G|, FLT_MAX), 1 for G = 0, and NaN
// for a G that is inf or NaN.
template <class F>
BS_HD F encode_scale(F amax, float range) {
  using U = Uint<F>;
  const U magnitude = magnitude_bits(amax);
  const F quotient = range / float_of(magnitude);
  const F clamped = float_of(umin(bits_of(quotient), splat<U>(kFloatMaxBits)));
  const F number = select(magnitude == 0u, float_of(splat<U>(pow2_bits(0))), clamped);
  return select(magnitude >= kInfBits, float_of(splat<U>(kNanBits)), number);
}

// The E4M3 byte of a block whose largest magnitude is block_amax, given Se = encode_scale. 7F if either is not finite.
template <class F>
BS_HD Uint<F> block_scale_byte(F block_amax, F encode) {
  using U = Uint<F>;
  const F sixth = encode * float_of(splat<U>(kOneSixthBits));
  const F decode = block_amax * sixth;
  const U byte = e4m3_byte(decode);  // clamps at 448, and so inf (product above FLT_MAX) too
  const U worst = umax(magnitude_bits(block_amax), magnitude_bits(encode));
  return select(worst >= kInfBits, splat<U>(kE4m3NanByte), byte);
}

// The factor e that an element is multiplied by before it is rounded: min(1 / (val(s) * (1 / Se)), FLT_MAX); NaN for
// 7F.
template <class F>
BS_HD F element_scale(Uint<F> byte, F encode) {
  using U = Uint<F>;
  const F decode = 1.0f / encode;
  const F reciprocal = 1.0f / (e4m3_value_of_number<F>(byte) * decode);
  const F clamped = float_of(umin(bits_of(reciprocal), splat<U>(kFloatMaxBits)));
  return select(byte == kE4m3NanByte, float_of(splat<U>(kNanBits)), clamped);
}

// Dequantize (section 6): value = val(code) * ((val(s) * G') * k'), where G' and k' are G and 1/range shifted by 2^10
// in opposite directions if G >= 1, which is exact and keeps val(s) * G' finite.
struct DecodeFactors {
  float amax;
  float reciprocal;
};
BS_HD DecodeFactors decode_factors(float amax, int e4m3_max) {
  const float reciprocal = 1.0f / second_level_range(e4m3_max);  // the nearest FP32: 39C30C31 or 3A2AAAAB
  const bool shift = amax >= 1.0f;
  return {shift ? amax * 0x1p-10f : amax, shift ? reciprocal * 0x1p10f : reciprocal};
}
BS_HD float block_decode(uint32_t byte, DecodeFactors factors) {
  return (e4m3_value<float>(byte) * factors.amax) * factors.reciprocal;
}

}  // namespace blockscale
