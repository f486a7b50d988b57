// SPDX-License-Identifier: Apache-2.0
// One rounding from FP32 to an output dtype, nearest even; overflow gives inf, a NaN stays a NaN.
#pragma once
#include "bits.h"

namespace blockscale {

template <class U>
BS_HD U narrow_bf16_bits(U bits) {
  const U rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const U quiet = (bits >> 16) | 0x40u;  // keeps sign and payload, never turns into inf
  return select((bits & kMagnitudeMask) > kInfBits, quiet, rounded);
}

template <class U>
BS_HD U narrow_f16_bits(U bits) {
  const U sign = (bits >> 16) & 0x8000u;
  const U magnitude = bits & kMagnitudeMask;
  // Normal results: rebias by 112 binades and round off 13 bits. 65520 and above carry into inf by themselves.
  const U normal = (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14: adding 0.5 puts the unit in the last place at 2^-24, binary16's smallest step.
  const U half = splat<U>(pow2_bits(-1));
  const U subnormal = bits_of(float_of(umin(magnitude, half)) + float_of(half)) - half;
  const U finite = select(magnitude < pow2_bits(-14), subnormal, umin(normal, splat<U>(0x7C00u)));
  const U special = select(magnitude > kInfBits, splat<U>(0x7E00u), splat<U>(0x7C00u));
  return sign | select(magnitude >= kInfBits, special, finite);
}

// A float's bits rounded to a narrower dtype and widened again: the master weight as the model's dtype holds it.
template <class U>
BS_HD U round_to_bf16_bits(U bits) {
  return narrow_bf16_bits(bits) << 16;
}
template <class U>
BS_HD U round_to_f16_bits(U bits) {
  return widen_f16_bits(narrow_f16_bits(bits));
}

BS_HD uint16_t narrow_bf16(float value) { return static_cast<uint16_t>(narrow_bf16_bits(bits_of(value))); }
BS_HD uint16_t narrow_f16(float value) { return static_cast<uint16_t>(narrow_f16_bits(bits_of(value))); }

}  // namespace blockscale
