// SPDX-License-Identifier: Apache-2.0
// L0, the file to start with: how one source serves a float on the CPU, a float on a GPU, and a SIMD vector.
//
// Every function of this folder is a template over F, a "float-like" type: float, or sixteen lanes of floats (simd.h).
// Uint<F> is the matching unsigned type. Only operators and the few helpers below are used, so that the same lines are
// compiled by g++ (scalar and SIMD) and by nvcc. Next: e2m1.h, e4m3.h, scale.h.
//
// Contraction must be off wherever this is compiled (-ffp-contract=off, nvcc -fmad=false): docs/numerics.md section 0.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define BS_HD __host__ __device__ __forceinline__
#define BS_HD_MEMBER __host__ __device__ __forceinline__
#define BS_CONSTEXPR __host__ __device__ constexpr
#else
// static: the CPU backend compiles these headers once for each instruction set; no copy may be merged by the linker.
#define BS_HD static inline __attribute__((always_inline))
#define BS_HD_MEMBER inline __attribute__((always_inline))
#define BS_CONSTEXPR constexpr
#endif

namespace blockscale {

template <class F>
struct UintOf;
template <>
struct UintOf<float> {
  using type = uint32_t;
};
template <class F>
using Uint = typename UintOf<F>::type;

// The same bits in every lane of U.
template <class U>
struct Splat {
  BS_HD_MEMBER static U of(uint32_t bits) { return bits; }
};
template <class U>
BS_HD U splat(uint32_t bits) {
  return Splat<U>::of(bits);
}

BS_HD uint32_t bits_of(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

BS_HD float float_of(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

BS_HD uint32_t umin(uint32_t p, uint32_t q) { return p < q ? p : q; }
BS_HD uint32_t umax(uint32_t p, uint32_t q) { return p > q ? p : q; }
// Bit by bit: p where the mask is one, q elsewhere.
BS_HD uint32_t select_bits(uint32_t mask, uint32_t p, uint32_t q) { return (p & mask) | (q & ~mask); }
BS_HD float select(bool take, float yes, float no) { return take ? yes : no; }
BS_HD uint32_t select(bool take, uint32_t yes, uint32_t no) { return take ? yes : no; }

}  // namespace blockscale

// Overloads for vectors must be visible before the templates that call them: fundamental vectors have no namespace in
// which they could be found later.
#if defined(__GNUC__) && !defined(__CUDACC__)
#include "simd.h"
#endif

namespace blockscale {

constexpr uint32_t kMagnitudeMask = 0x7FFFFFFFu;
constexpr uint32_t kInfBits = 0x7F800000u;
constexpr uint32_t kNanBits = 0x7FC00000u;       // the one NaN that is ever stored as an amax
constexpr uint32_t kFloatMaxBits = 0x7F7FFFFFu;  // FLT_MAX
constexpr int kFloatMantissaBits = 23;
constexpr uint32_t kFloatBias = 127;

// The bits of 2^exponent.
BS_CONSTEXPR uint32_t pow2_bits(int exponent) { return static_cast<uint32_t>(exponent + 127) << kFloatMantissaBits; }

// |value| as an unsigned integer. Ordered as the magnitudes are, with NaN above inf above every finite value, so that
// a maximum over these loses nothing that is not finite.
template <class F>
BS_HD Uint<F> magnitude_bits(F value) {
  return bits_of(value) & kMagnitudeMask;
}

// The magnitude that may be stored as an amax: any NaN becomes 7FC00000.
BS_HD uint32_t canonical_magnitude(uint32_t magnitude) { return magnitude > kInfBits ? kNanBits : magnitude; }

// Exact widening of the bits of a bfloat16 or a binary16 to FP32.
BS_HD float widen_bf16(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

template <class U>
BS_HD U widen_f16_bits(U half) {
  // Normal: shift the exponent field up and rebias by 112. Subnormal: 2^-14 + m*2^-24 minus 2^-14 is exact.
  const U sign = (half & 0x8000u) << 16;
  const U field = (half & 0x7FFFu) << 13;
  const U normal = field + (112u << 23);
  const U subnormal = bits_of(float_of((half & 0x3FFu) << 13 | pow2_bits(-14)) - float_of(splat<U>(pow2_bits(-14))));
  const U special = field | kInfBits;
  const U finite = select(field < (1u << 23), subnormal, normal);
  return sign | select(field >= (31u << 23), special, finite);
}
BS_HD float widen_f16(uint16_t bits) { return float_of(widen_f16_bits(static_cast<uint32_t>(bits))); }

}  // namespace blockscale
