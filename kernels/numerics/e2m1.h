// SPDX-License-Identifier: Apache-2.0
// E2M1, the 4-bit element of NVFP4: sign, two exponent bits, one mantissa bit (docs/numerics.md section 1.1).
#pragma once
#include "bits.h"

namespace blockscale {

// Nearest E2M1 code of y, ties to the even code; magnitudes above 6 (inf too) give 6; the sign is kept, on zero also.
// y must not be NaN: in a block that is not finite every code is 7 and is not rounded at all (scale.h).
//
// A float is rounded to a multiple of `step` by adding 2^23 * step: the sum's unit in the last place is the step, and
// the hardware rounds to nearest even. E2M1's step is 1/2 below 2, 1 below 4, then 2: half of the binade 2^e of
// max(|y|, 1). So the sum's low bits hold |y| / step, rounded, 0..4, and its exponent field is e + 149. The code is
// steps + 2e, because each binade above 1 starts two codes later. Adding the sum's bits to themselves shifted right by
// 22 gives steps + 2 * (e + 149) = steps + 2e + 2 modulo 8; starting from 6 more steps (an even number: ties still go
// to the even code) makes that steps + 2e modulo 8. Ten operations, the same for a float and for a vector of them.
template <class F>
BS_HD Uint<F> e2m1_low_bits(F y) {
  using U = Uint<F>;
  constexpr uint32_t kSix = 0x40C00000u;
  const U magnitude = umin(bits_of(y) & kMagnitudeMask, splat<U>(kSix));
  const U binade = umax(magnitude, splat<U>(pow2_bits(0))) & kInfBits;
  const U magic = binade + ((22u << kFloatMantissaBits) + 6u);
  const U sum = bits_of(float_of(magnitude) + float_of(magic));
  return sum + (sum >> 22);  // the code's magnitude in the low three bits; the others hold anything
}
template <class F>
BS_HD Uint<F> e2m1_code_of_number(F y) {
  return (e2m1_low_bits(y) & 7u) | ((bits_of(y) >> 28) & 8u);
}

// Two codes as a byte, `even` in the low nibble; bits above the eighth hold anything.
template <class F>
BS_HD Uint<F> e2m1_byte_of_numbers(F even, F odd) {
  using U = Uint<F>;
  const U magnitudes = select_bits(0x07u, e2m1_low_bits(even), e2m1_low_bits(odd) << 4);
  const U signs = select_bits(0x08u, bits_of(even) >> 28, bits_of(odd) >> 24);
  return select_bits(0x88u, signs, magnitudes);
}

// The same, for every float: a NaN of either sign gives 7.
template <class F>
BS_HD Uint<F> e2m1_code(F y) {
  using U = Uint<F>;
  return select(magnitude_bits(y) > kInfBits, splat<U>(7u), e2m1_code_of_number(y));
}

// The value of a code (low four bits): 0, 1/2, 1, 3/2, 2, 3, 4, 6 and their negatives.
template <class F>
BS_HD F e2m1_value(Uint<F> code) {
  using U = Uint<F>;
  const U magnitude = code & 7u;
  // Codes 2..7 are a float's exponent and first mantissa bit, rebiased; 0 and 1 are (1 + code/2) - 1.
  const F normal = float_of((magnitude << 22) + (126u << kFloatMantissaBits));
  const F subnormal = float_of((magnitude << 22) | pow2_bits(0)) - float_of(splat<U>(pow2_bits(0)));
  return float_of(bits_of(select(magnitude < 2u, subnormal, normal)) | ((code & 8u) << 28));
}

}  // namespace blockscale
