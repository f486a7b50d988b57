// SPDX-License-Identifier: Apache-2.0
// Sixteen elements times e, rounded to E2M1 and packed: the inner loop of every cast. Same codes as e2m1_code_of_number
// (numerics/e2m1.h) for every product that is not NaN; codec_check.cu compares all 2^32 with cuda_fp4.h on the device.
//
// Blackwell converts in hardware (cvt.rn.satfinite.e2m1x2.f32). Hopper does not, and its integer units have half the
// rate of its multiply-add units, so that a conversion by integer operations would be slower than memory. There:
//
// 1. y = |x| * e, scaled by 2^-14 (exactly: see block_products). In units where that scaling is undone, y < 7.
// 2. With m = max(y, 1 + 2^-21) and M = 2^22 * m (exact):   s = M - y,   r = M - s.
//    If y >= m: M = 2^22 y, so s = (2^22 - 1) y rounded. For y in the binade [b, 2b), s lies in [2^22 b, 2^23 b), whose
//    unit in the last place is b/2, E2M1's step there (b = 1: 1/2, 2: 1, 4: 2). Where y is so close above b that s
//    falls under 2^22 b, the unit is b/4, and the multiple of b/4 that is nearest to y is still b.
//    If y < m: M = 2^22 + 2 and s is in [2^22, 2^23): the unit is 1/2, E2M1's step below 1.
//    M is an even multiple of the unit wherever y can be a tie (y is then a multiple of b/4 with at most three
//    significant bits, so 2^22 y / (b/2) is even), so the hardware's ties-to-even makes r's multiple even, as E2M1
//    asks. r = M - s is exact. So r is y rounded to E2M1: two fused multiply-adds and a maximum.
// 3. r * 2^-14 is 0, 2^-15, 2^-14, 1.5 * 2^-14, 2^-13 ..: E5M2's numbers around its smallest normal, 2^-14. There an
//    E5M2 byte is code << 1, exactly, and Hopper packs two of them an instruction.
// 4. Signs are those of x, taken from the input words.
#pragma once
#include <cuda_fp8.h>

#include "cuda/load.cuh"

namespace blockscale::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && \
    (defined(__CUDA_ARCH_SPECIFIC__) || defined(__CUDA_ARCH_FAMILY_SPECIFIC__))
#define BS_HARDWARE_E2M1 1
#endif

#if defined(BS_HARDWARE_E2M1)

// Eight elements to eight codes. The second source of a cvt goes to the low nibble.
template <int kCount>
__device__ __forceinline__ uint32_t e2m1_codes_of_8(const float (&y)[kCount], int first) {
  uint32_t word;
  asm("{\n"
      ".reg .b8 b0, b1, b2, b3;\n"
      "cvt.rn.satfinite.e2m1x2.f32 b0, %2, %1;\n"
      "cvt.rn.satfinite.e2m1x2.f32 b1, %4, %3;\n"
      "cvt.rn.satfinite.e2m1x2.f32 b2, %6, %5;\n"
      "cvt.rn.satfinite.e2m1x2.f32 b3, %8, %7;\n"
      "mov.b32 %0, {b0, b1, b2, b3};\n"
      "}"
      : "=r"(word)
      : "f"(y[first]), "f"(y[first + 1]), "f"(y[first + 2]), "f"(y[first + 3]), "f"(y[first + 4]), "f"(y[first + 5]),
        "f"(y[first + 6]), "f"(y[first + 7]));
  return word;
}

// Eight or sixteen elements times e. `amax`: their largest magnitude (unused here).
template <class Tag, int kCount>
__device__ __forceinline__ void e2m1_words(const RawRun<Tag, kCount>& x, float e, float, uint32_t (&word)[kCount / 8]) {
  float y[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) y[i] = x.value(i) * e;
#pragma unroll
  for (int i = 0; i < kCount / 8; ++i) word[i] = e2m1_codes_of_8(y, 8 * i);
}

#else

constexpr float kE5m2Unit = 0x1p-14f;       // step 3's scaling: E5M2's smallest normal number
constexpr float kRegularScale = 0x1p-112f;  // e * kE5m2Unit is normal from here on

// Bytes a.1, a.3, b.1, b.3 (or others: a prmt selector with the sign bits set), each replaced by eight copies of its
// sign.
__device__ __forceinline__ uint32_t sign_bytes(uint32_t a, uint32_t b, uint32_t selector) {
#if defined(__CUDA_ARCH__)
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selector | 0x8888u));
  return result;
#else
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i)
    if (both >> ((selector >> (4 * i) & 7) * 8 + 7) & 1) result |= 0xFFu << (8 * i);
  return result;
#endif
}

// Bit 3 of each nibble: the sign of elements 8 * half .. 8 * half + 7.
template <class Tag, int kCount>
__device__ __forceinline__ uint32_t sign_nibbles(const RawRun<Tag, kCount>& x, int half) {
  uint32_t even, odd;  // bytes: elements 0 2 4 6, elements 1 3 5 7
  if constexpr (kIsF32<Tag>) {
    const uint32_t* w = x.word + 8 * half;
    even = __byte_perm(sign_bytes(w[0], w[2], 0x0073), sign_bytes(w[4], w[6], 0x0073), 0x5410);
    odd = __byte_perm(sign_bytes(w[1], w[3], 0x0073), sign_bytes(w[5], w[7], 0x0073), 0x5410);
  } else {
    const uint32_t* w = x.word + 4 * half;
    const uint32_t low = sign_bytes(w[0], w[1], 0x7531), high = sign_bytes(w[2], w[3], 0x7531);
    even = __byte_perm(low, high, 0x6420);
    odd = __byte_perm(low, high, 0x7531);
  }
  return (even & 0x08080808u) | (odd & 0x80808080u);
}

// Step 2, in units of kE5m2Unit.
__device__ __forceinline__ float round_to_e2m1(float y) {
  const float m = fmaxf(y, (1.0f + 0x1p-21f) * kE5m2Unit);
  const float s = __fmaf_rn(m, 0x1p22f, -y);
  return __fmaf_rn(m, 0x1p22f, -s);
}

__device__ __forceinline__ uint32_t e5m2_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E5M2);
}

// min(|x| * e, 6) * kE5m2Unit for every element, or without the min where no product reaches 7, and with e scaled in
// place of each product: a product that is normal after scaling has the same rounding before and after, and one that is
// not rounds to 0 either way. Almost every block is regular: a block that is not clips (its amax exceeds the second
// level, or its block scale is small and coarse or 0), or e is tiny, or NaN.
template <class Tag, int kCount>
__device__ __forceinline__ void block_products(const RawRun<Tag, kCount>& x, float e, float amax, float (&y)[kCount]) {
  if (amax * e < 7.0f && e >= kRegularScale) {
    const float scaled = e * kE5m2Unit;
#pragma unroll
    for (int i = 0; i < kCount; ++i) y[i] = fabsf(x.value(i)) * scaled;
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) y[i] = fminf(fabsf(x.value(i)) * e, 6.0f) * kE5m2Unit;
  }
}

// Eight or sixteen elements times e. `amax`: their largest magnitude, or anything larger.
template <class Tag, int kCount>
__device__ __forceinline__ void e2m1_words(const RawRun<Tag, kCount>& x, float e, float amax,
                                           uint32_t (&word)[kCount / 8]) {
  float y[kCount];
  block_products(x, e, amax, y);
#pragma unroll
  for (int half = 0; half < kCount / 8; ++half) {
    float r[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) r[i] = round_to_e2m1(y[8 * half + i]);
    const uint32_t even = e5m2_pair(r[0], r[2]) | e5m2_pair(r[4], r[6]) << 16;
    const uint32_t odd = e5m2_pair(r[1], r[3]) | e5m2_pair(r[5], r[7]) << 16;
    word[half] = (even >> 1) | (odd << 3) | sign_nibbles(x, half);
  }
}

#endif

// A block, given its largest magnitude or anything larger.
template <class Tag>
__device__ __forceinline__ uint2 e2m1_codes(const Raw16<Tag>& x, float e, float amax) {
  uint32_t word[2];
  e2m1_words(x, e, amax, word);
  return make_uint2(word[0], word[1]);
}

// The value of a code (its low four bits; others are ignored). As the exponent field and the first mantissa bit of a
// float, the three bits of a magnitude are its value times 2^-126, code 1 as a subnormal number; the product is exact.
__device__ __forceinline__ float e2m1_value_of(uint32_t code) {
  return float_of((code << 22 & 0x01C00000u) | (code << 28 & 0x80000000u)) * 0x1p126f;
}

}  // namespace blockscale::cuda
