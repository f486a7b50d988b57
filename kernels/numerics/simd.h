// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes as one float-like type: a block of NVFP4 is one register on AVX-512, two on AVX2, four on SSE2 and
// NEON. Included by bits.h. GCC's vector extension does the work, on registers of the native width: wider ones would be
// lowered lane by lane.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace blockscale {

constexpr int kLanes = 16;
#if defined(__AVX512F__)
constexpr int kNativeBytes = 64;
#elif defined(__AVX2__)
constexpr int kNativeBytes = 32;
#else
constexpr int kNativeBytes = 16;
#endif

template <class T>
struct Lanes {
  static constexpr int kPartLanes = kNativeBytes / static_cast<int>(sizeof(T));
  static constexpr int kParts = kLanes / kPartLanes;
  typedef T Part __attribute__((vector_size(kNativeBytes)));

  Part part[kParts];

  BS_HD_MEMBER static Lanes of(T value) {
    Lanes lanes;
    for (int i = 0; i < kParts; ++i) lanes.part[i] = Part{} + value;
    return lanes;
  }
  BS_HD_MEMBER T operator[](int lane) const { return part[lane / kPartLanes][lane % kPartLanes]; }

#define BS_LANEWISE(op)                                                             \
  friend BS_HD_MEMBER Lanes operator op(const Lanes& p, const Lanes& q) {           \
    Lanes result;                                                                   \
    for (int i = 0; i < kParts; ++i) result.part[i] = p.part[i] op q.part[i];       \
    return result;                                                                  \
  }                                                                                 \
  friend BS_HD_MEMBER Lanes operator op(const Lanes& p, T q) { return p op of(q); } \
  friend BS_HD_MEMBER Lanes operator op(T p, const Lanes& q) { return of(p) op q; }
  BS_LANEWISE(+)
  BS_LANEWISE(-)
  BS_LANEWISE(*)
  BS_LANEWISE(/)
  BS_LANEWISE(&)
  BS_LANEWISE(|)
#undef BS_LANEWISE

#define BS_SHIFT(op)                                                      \
  friend BS_HD_MEMBER Lanes operator op(const Lanes& p, int count) {      \
    Lanes result;                                                         \
    for (int i = 0; i < kParts; ++i) result.part[i] = p.part[i] op count; \
    return result;                                                        \
  }
  BS_SHIFT(<<)
  BS_SHIFT(>>)
#undef BS_SHIFT

// A comparison gives all ones or zero in each lane.
#define BS_COMPARE(op)                                                             \
  friend BS_HD_MEMBER Lanes<int32_t> operator op(const Lanes& p, const Lanes& q) { \
    Lanes<int32_t> result;                                                         \
    for (int i = 0; i < kParts; ++i) result.part[i] = p.part[i] op q.part[i];      \
    return result;                                                                 \
  }                                                                                \
  friend BS_HD_MEMBER Lanes<int32_t> operator op(const Lanes& p, T q) { return p op of(q); }
  BS_COMPARE(==)
  BS_COMPARE(!=)
  BS_COMPARE(<)
  BS_COMPARE(>)
  BS_COMPARE(>=)
#undef BS_COMPARE
};

using f32x16 = Lanes<float>;
using u32x16 = Lanes<uint32_t>;
using i32x16 = Lanes<int32_t>;

template <>
struct UintOf<f32x16> {
  using type = u32x16;
};

template <>
struct Splat<u32x16> {
  BS_HD_MEMBER static u32x16 of(uint32_t bits) { return u32x16::of(bits); }
};

#if defined(__AVX512F__)
using NativeU32 = u32x16::Part;
BS_HD NativeU32 native_umin(NativeU32 p, NativeU32 q) {
  return reinterpret_cast<NativeU32>(_mm512_min_epu32(reinterpret_cast<__m512i>(p), reinterpret_cast<__m512i>(q)));
}
BS_HD NativeU32 native_umax(NativeU32 p, NativeU32 q) {
  return reinterpret_cast<NativeU32>(_mm512_max_epu32(reinterpret_cast<__m512i>(p), reinterpret_cast<__m512i>(q)));
}
#elif defined(__AVX2__)
using NativeU32 = u32x16::Part;
BS_HD NativeU32 native_umin(NativeU32 p, NativeU32 q) {
  return reinterpret_cast<NativeU32>(_mm256_min_epu32(reinterpret_cast<__m256i>(p), reinterpret_cast<__m256i>(q)));
}
BS_HD NativeU32 native_umax(NativeU32 p, NativeU32 q) {
  return reinterpret_cast<NativeU32>(_mm256_max_epu32(reinterpret_cast<__m256i>(p), reinterpret_cast<__m256i>(q)));
}
#endif

template <class To, class From>
BS_HD To reinterpret_lanes(const From& from) {
  To to;
  for (int i = 0; i < From::kParts; ++i) to.part[i] = reinterpret_cast<typename To::Part>(from.part[i]);
  return to;
}
BS_HD u32x16 bits_of(const f32x16& value) { return reinterpret_lanes<u32x16>(value); }
BS_HD f32x16 float_of(const u32x16& bits) { return reinterpret_lanes<f32x16>(bits); }

template <class T>
BS_HD Lanes<T> select(const i32x16& take, const Lanes<T>& yes, const Lanes<T>& no) {
  Lanes<T> result;
  for (int i = 0; i < i32x16::kParts; ++i) result.part[i] = take.part[i] ? yes.part[i] : no.part[i];
  return result;
}

// Written with the instruction where there is one: GCC keeps the comparison and the blend apart otherwise.
BS_HD u32x16 umin(const u32x16& p, const u32x16& q) {
#if defined(__AVX512F__) || defined(__AVX2__)
  u32x16 result;
  for (int i = 0; i < u32x16::kParts; ++i) result.part[i] = native_umin(p.part[i], q.part[i]);
  return result;
#else
  return select(p < q, p, q);
#endif
}
BS_HD u32x16 umax(const u32x16& p, const u32x16& q) {
#if defined(__AVX512F__) || defined(__AVX2__)
  u32x16 result;
  for (int i = 0; i < u32x16::kParts; ++i) result.part[i] = native_umax(p.part[i], q.part[i]);
  return result;
#else
  return select(p > q, p, q);
#endif
}

BS_HD u32x16 select_bits(uint32_t mask, const u32x16& p, const u32x16& q) {
#if defined(__AVX512F__)
  u32x16 result;
  const __m512i wide = _mm512_set1_epi32(static_cast<int>(mask));
  const auto one = reinterpret_cast<__m512i>(p.part[0]), other = reinterpret_cast<__m512i>(q.part[0]);
  result.part[0] = reinterpret_cast<u32x16::Part>(_mm512_ternarylogic_epi32(wide, one, other, 0xCA));  // mask ? p : q
  return result;
#else
  return (p & mask) | (q & ~mask);
#endif
}

}  // namespace blockscale
