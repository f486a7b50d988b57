// SPDX-License-Identifier: Apache-2.0
// E4M3, the 8-bit block scale of NVFP4; only its non-negative half is used (docs/numerics.md section 1.2).
#pragma once
#include "bits.h"

namespace blockscale {

constexpr uint32_t kE4m3NanByte = 0x7F;  // written only on purpose: a block that is not finite

// Nearest E4M3 byte of min(d, 448), ties to the even byte; d >= 0 and not NaN. Result 00..7E.
// The rounding is e2m1.h's: the step is 2^-9 below 2^-6 and an eighth of the binade above.
template <class F>
BS_HD Uint<F> e4m3_byte(F d) {
  using U = Uint<F>;
  constexpr uint32_t kMax = 0x43E00000u;  // 448
  const U magnitude = umin(bits_of(d), splat<U>(kMax));
  const U binade = umax(magnitude, splat<U>(pow2_bits(-6))) & kInfBits;
  const U magic = binade + (20u << kFloatMantissaBits);
  const U steps = bits_of(float_of(magnitude) + float_of(magic)) - magic;
  return steps + ((binade - pow2_bits(-6)) >> 20);
}

// The value of a byte 00..7E; see e4m3_value for 7F.
template <class F>
BS_HD F e4m3_value_of_number(Uint<F> byte) {
  using U = Uint<F>;
  const F normal = float_of((byte << 20) + (120u << kFloatMantissaBits));
  const F subnormal = float_of((byte << 20) | pow2_bits(-6)) - float_of(splat<U>(pow2_bits(-6)));
  return select(byte < 8u, subnormal, normal);
}

// The value of a byte 00..7F; 7F is NaN.
template <class F>
BS_HD F e4m3_value(Uint<F> byte) {
  using U = Uint<F>;
  return select(byte == kE4m3NanByte, float_of(splat<U>(kNanBits)), e4m3_value_of_number<F>(byte));
}

}  // namespace blockscale
