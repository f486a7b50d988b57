// SPDX-License-Identifier: Apache-2.0
// Consecutive elements, sixteen for a block of NVFP4, as they stand in memory: loaded, widened, and their largest
// magnitude and signs taken without widening.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "contract/types.h"
#include "numerics/layout.h"

namespace blockscale::cuda {

// The input dtypes.
struct F32 {
  using Element = uint32_t;
};
struct Bf16 {
  using Element = uint16_t;
};
struct F16 {
  using Element = uint16_t;
};
template <class Tag>
constexpr bool kIsF32 = sizeof(typename Tag::Element) == 4;

// work(Tag{}) for the tag of a dtype that has been checked.
template <class Work>
BsStatus with_dtype(int32_t dtype, const Work& work) {
  if (dtype == BS_F32) return work(F32{});
  if (dtype == BS_BF16) return work(Bf16{});
  return work(F16{});
}

inline int64_t dtype_bytes(int32_t dtype) { return dtype == BS_F32 ? 4 : 2; }

inline bool is_aligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

// Whether every row starts on 16 bytes, so that runs of 16 bytes can be loaded and stored whole.
inline bool has_vector_rows(const BsMatrix& x) {
  return is_aligned(x.data, 16) && (x.rows <= 1 || x.row_stride * dtype_bytes(x.dtype) % 16 == 0);
}

// The FP32 magnitude bits of an element, and its value, from its own bits.
template <class Tag>
__device__ __forceinline__ float widen(typename Tag::Element bits);
template <>
__device__ __forceinline__ float widen<F32>(uint32_t bits) {
  return float_of(bits);
}
template <>
__device__ __forceinline__ float widen<Bf16>(uint16_t bits) {
  return widen_bf16(bits);
}
template <>
__device__ __forceinline__ float widen<F16>(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

// The largest magnitude of packed elements, still packed: two 16-bit elements a word, or one FP32.
template <class Tag>
__device__ __forceinline__ uint32_t packed_magnitude(uint32_t word) {
  return word & (kIsF32<Tag> ? kMagnitudeMask : 0x7FFF7FFFu);
}
template <class Tag>
__device__ __forceinline__ uint32_t packed_max(uint32_t p, uint32_t q) {
  return kIsF32<Tag> ? umax(p, q) : __vmaxu2(p, q);
}
// ... and the FP32 magnitude bits of the larger element of a word of magnitudes.
template <class Tag>
__device__ __forceinline__ uint32_t largest_of_packed(uint32_t word) {
  if constexpr (kIsF32<Tag>)
    return word;
  else
    return magnitude_bits(widen<Tag>(static_cast<uint16_t>(umax(word & 0xFFFFu, word >> 16))));
}

template <class Tag, int kCount>
struct RawRun {
  static constexpr int kWords = kCount * static_cast<int>(sizeof(typename Tag::Element)) / 4;
  uint32_t word[kWords];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = 0;
  }

  // `vector` (the same in the whole grid): the elements start on 16 bytes.
  __device__ __forceinline__ void load(const void* base, int64_t element, bool vector) {
    using Element = typename Tag::Element;
    const Element* from = static_cast<const Element*>(base) + element;
    if (vector) {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        const uint4 four = __ldg(reinterpret_cast<const uint4*>(from) + i);
        word[4 * i] = four.x, word[4 * i + 1] = four.y, word[4 * i + 2] = four.z, word[4 * i + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        if constexpr (kIsF32<Tag>)
          word[i] = __ldg(from + i);
        else
          word[i] = __ldg(from + 2 * i) | static_cast<uint32_t>(__ldg(from + 2 * i + 1)) << 16;
      }
    }
  }

  // i is a constant after unrolling.
  __device__ __forceinline__ float value(int i) const {
    if constexpr (kIsF32<Tag>)
      return float_of(word[i]);
    else
      return widen<Tag>(static_cast<uint16_t>(word[i / 2] >> (i % 2 * 16)));
  }

  __device__ __forceinline__ uint32_t max_magnitude() const {
    uint32_t packed = packed_magnitude<Tag>(word[0]);
#pragma unroll
    for (int i = 1; i < kWords; ++i) packed = packed_max<Tag>(packed, packed_magnitude<Tag>(word[i]));
    return largest_of_packed<Tag>(packed);
  }
};
template <class Tag>
using Raw16 = RawRun<Tag, 16>;

// 16 bytes of consecutive elements, of which `count` exist; zeros in place of the others. `vector`: they start on 16
// bytes.
template <class Tag>
__device__ __forceinline__ uint4 load_16_bytes(const typename Tag::Element* from, int64_t count, bool vector) {
  constexpr int kElementBytes = sizeof(typename Tag::Element), kElements = 16 / kElementBytes;
  if (vector && count >= kElements) return __ldg(reinterpret_cast<const uint4*>(from));
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < kElements; ++i)
    if (i < count)
      words[i * kElementBytes / 4] |= static_cast<uint32_t>(__ldg(from + i)) << (i * kElementBytes % 4 * 8);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

template <class Tag>
__device__ __forceinline__ uint4 packed_magnitude(uint4 v) {
  return make_uint4(packed_magnitude<Tag>(v.x), packed_magnitude<Tag>(v.y), packed_magnitude<Tag>(v.z),
                    packed_magnitude<Tag>(v.w));
}
template <class Tag>
__device__ __forceinline__ uint4 packed_max(uint4 p, uint4 q) {
  return make_uint4(packed_max<Tag>(p.x, q.x), packed_max<Tag>(p.y, q.y), packed_max<Tag>(p.z, q.z),
                    packed_max<Tag>(p.w, q.w));
}
template <class Tag>
__device__ __forceinline__ uint32_t largest_of_packed(uint4 v) {
  return largest_of_packed<Tag>(packed_max<Tag>(packed_max<Tag>(v.x, v.y), packed_max<Tag>(v.z, v.w)));
}

// Eight bytes of codes. `vector`: the operand's qdata starts on 8 bytes (its rows then do too, K being a multiple of
// 16).
__device__ __forceinline__ void store_codes(uint8_t* to, uint2 codes, bool vector) {
  if (vector) {
    *reinterpret_cast<uint2*>(to) = codes;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = static_cast<uint8_t>((i < 4 ? codes.x : codes.y) >> (i % 4 * 8));
  }
}
__device__ __forceinline__ uint2 load_codes(const uint8_t* from, bool vector) {
  if (vector) return __ldg(reinterpret_cast<const uint2*>(from));
  uint2 codes = make_uint2(0, 0);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes.x |= static_cast<uint32_t>(from[i]) << (8 * i);
    codes.y |= static_cast<uint32_t>(from[i + 4]) << (8 * i);
  }
  return codes;
}

}  // namespace blockscale::cuda
