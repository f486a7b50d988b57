// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes to and from memory of other widths. Included by simd_kernels.cpp only, inside its instruction set.
#pragma once
#include "numerics/bits.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

// A call between the steps of one loop body would spill every vector.
#define BS_INLINE inline __attribute__((always_inline))

namespace blockscale::cpu {
namespace {

template <class T>
BS_INLINE T load_unaligned(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
BS_INLINE void store_unaligned(void* to, const T& value) {
  std::memcpy(to, &value, sizeof value);
}

// A vector of `count` elements of type T.
template <class T, int count>
struct Narrow {
  typedef T type __attribute__((vector_size(sizeof(T) * count)));
};

// Sixteen elements of an unsigned type, zero-extended.
BS_INLINE u32x16 load_widened(const uint16_t* from) {
  u32x16 result;
#if defined(__AVX512F__)
  result.part[0] = reinterpret_cast<u32x16::Part>(_mm512_cvtepu16_epi32(load_unaligned<__m256i>(from)));
#else
  using Source = Narrow<uint16_t, u32x16::kPartLanes>::type;
  for (int i = 0; i < u32x16::kParts; ++i)
    result.part[i] = __builtin_convertvector(load_unaligned<Source>(from + i * u32x16::kPartLanes), u32x16::Part);
#endif
  return result;
}
BS_INLINE u32x16 load_widened(const uint8_t* from) {
#if defined(__AVX512F__)
  u32x16 result;
  result.part[0] = reinterpret_cast<u32x16::Part>(_mm512_cvtepu8_epi32(load_unaligned<__m128i>(from)));
  return result;
#elif defined(__AVX2__)
  u32x16 result;
  const __m128i bytes = load_unaligned<__m128i>(from);
  result.part[0] = reinterpret_cast<u32x16::Part>(_mm256_cvtepu8_epi32(bytes));
  result.part[1] = reinterpret_cast<u32x16::Part>(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
  return result;
#else
  uint32_t lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = from[i];
  return load_unaligned<u32x16>(lanes);
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Lanes of at most 16 bits as halfwords. Packing works on halves of a register: the permutation restores the order.
BS_INLINE __m256i pack_u16(const u32x16& lanes) {
  const auto low = reinterpret_cast<__m256i>(lanes.part[0]), high = reinterpret_cast<__m256i>(lanes.part[1]);
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
}
#endif

// Lanes that hold values of at most 16 bits, as 16 halfwords.
BS_INLINE void store_u16(uint16_t* to, const u32x16& lanes) {
#if defined(__AVX512F__)
  store_unaligned(to, _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(lanes.part[0])));
#elif defined(__AVX2__)
  store_unaligned(to, pack_u16(lanes));
#else
  uint32_t values[16];
  std::memcpy(values, &lanes, sizeof values);
  for (int i = 0; i < 16; ++i) to[i] = static_cast<uint16_t>(values[i]);
#endif
}

// Lanes that hold values of at most 8 bits, as 16 bytes.
BS_INLINE void store_u8(uint8_t* to, const u32x16& lanes) {
#if defined(__AVX512F__)
  store_unaligned(to, _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(lanes.part[0])));
#elif defined(__AVX2__)
  const __m256i halfwords = pack_u16(lanes);
  const __m128i low = _mm256_castsi256_si128(halfwords), high = _mm256_extracti128_si256(halfwords, 1);
  store_unaligned(to, _mm_packus_epi16(low, high));
#elif defined(__SSE2__)
  __m128i words[4];
  std::memcpy(words, &lanes, sizeof words);
  store_unaligned(to, _mm_packus_epi16(_mm_packs_epi32(words[0], words[1]), _mm_packs_epi32(words[2], words[3])));
#else
  uint32_t values[16];
  std::memcpy(values, &lanes, sizeof values);
  for (int i = 0; i < 16; ++i) to[i] = static_cast<uint8_t>(values[i]);
#endif
}

// The low byte of each lane, as 16 bytes.
BS_INLINE void store_low_bytes(uint8_t* to, const u32x16& lanes) {
#if defined(__AVX512F__)
  store_unaligned(to, _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(lanes.part[0])));
#else
  store_u8(to, lanes & 0xFFu);
#endif
}

BS_INLINE void store_f64(double* to, const f32x16& lanes) {
  using Target = Narrow<double, f32x16::kPartLanes>::type;
  for (int i = 0; i < f32x16::kParts; ++i)
    store_unaligned(to + i * f32x16::kPartLanes, __builtin_convertvector(lanes.part[i], Target));
}

#if defined(__AVX512BW__)
// The largest magnitudes of 16 consecutive blocks of 16-bit elements, by a tree that halves all blocks at once: 37
// shuffles and maxima where one block after the other would take a hundred.
BS_INLINE __m512i block_maxima_u16(const uint16_t* from) {
  const __m512i mask = _mm512_set1_epi16(0x7FFF);
  __m512i quarters[4];  // a block of each four in each 128-bit lane, eight maxima of two
  for (int i = 0; i < 4; ++i) {
    const __m512i low = _mm512_and_si512(load_unaligned<__m512i>(from + 64 * i), mask);
    const __m512i high = _mm512_and_si512(load_unaligned<__m512i>(from + 64 * i + 32), mask);
    quarters[i] = _mm512_max_epu16(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xDD));
  }
  __m512i halves[2];
  for (int i = 0; i < 2; ++i)
    halves[i] = _mm512_max_epu16(_mm512_unpacklo_epi64(quarters[2 * i], quarters[2 * i + 1]),
                                 _mm512_unpackhi_epi64(quarters[2 * i], quarters[2 * i + 1]));
  const __m512 first = _mm512_castsi512_ps(halves[0]), second = _mm512_castsi512_ps(halves[1]);
  __m512i pairs = _mm512_max_epu16(_mm512_castps_si512(_mm512_shuffle_ps(first, second, 0x88)),
                                   _mm512_castps_si512(_mm512_shuffle_ps(first, second, 0xDD)));
  pairs = _mm512_max_epu16(pairs, _mm512_srli_epi32(pairs, 16));
  // Lane 4 i + j holds block 4 j + i.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, _mm512_and_si512(pairs, _mm512_set1_epi32(0xFFFF)));
}
#endif

// Thirty-two consecutive elements, split into those of even and of odd index: a lane of both is a byte of codes.
struct Pairs {
  f32x16 even, odd;
};

#if defined(__AVX512F__)
#define BS_EVENS 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define BS_LOW_ZIP 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#elif defined(__AVX2__)
#define BS_EVENS 0, 2, 4, 6, 8, 10, 12, 14
#define BS_LOW_ZIP 0, 8, 1, 9, 2, 10, 3, 11
#else
#define BS_EVENS 0, 2, 4, 6
#define BS_LOW_ZIP 0, 4, 1, 5
#endif

BS_INLINE Pairs load_pairs(const float* from) {
  constexpr int kPart = f32x16::kPartLanes;
  const i32x16::Part evens = {BS_EVENS};
  Pairs pairs;
  for (int i = 0; i < f32x16::kParts; ++i) {
    const auto low = load_unaligned<f32x16::Part>(from + 2 * i * kPart);
    const auto high = load_unaligned<f32x16::Part>(from + (2 * i + 1) * kPart);
    pairs.even.part[i] = __builtin_shuffle(low, high, evens);
    pairs.odd.part[i] = __builtin_shuffle(low, high, evens + 1);
  }
  return pairs;
}

// The inverse: lanes of even and odd index interleaved into two vectors.
BS_INLINE void interleave(const Pairs& pairs, f32x16 (&values)[2]) {
  constexpr int kPart = f32x16::kPartLanes;
  const i32x16::Part zip = {BS_LOW_ZIP};
  f32x16::Part parts[2 * f32x16::kParts];
  for (int i = 0; i < f32x16::kParts; ++i) {
    parts[2 * i] = __builtin_shuffle(pairs.even.part[i], pairs.odd.part[i], zip);
    parts[2 * i + 1] = __builtin_shuffle(pairs.even.part[i], pairs.odd.part[i], zip + kPart / 2);
  }
  std::memcpy(values, parts, sizeof parts);
}

// Lanes 0..7 hold `first`, 8..15 `second`: the factors of two blocks in the order of Pairs.
BS_INLINE f32x16 two_halves(float first, float second) {
#if defined(__AVX512F__)
  const __m512 all_first = _mm512_set1_ps(first);
  f32x16 result;
  result.part[0] = _mm512_mask_broadcastss_ps(all_first, 0xFF00, _mm_set_ss(second));
  return result;
#else
  f32x16 result;
  for (int i = 0; i < f32x16::kParts; ++i) result.part[i] = f32x16::Part{} + (i < f32x16::kParts / 2 ? first : second);
  return result;
#endif
}

}  // namespace
}  // namespace blockscale::cpu
