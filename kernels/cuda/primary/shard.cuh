// SPDX-License-Identifier: Apache-2.0
// A shard as warps read it. A unit is a strip of 16 rows by 128 columns of the weight, eight tiles side by side: lane l
// takes columns 8 * (l % 16) .. + 7 of rows l / 16, l / 16 + 2, ..; so a tile's scale serves a lane for the whole
// strip, and a tile's maximum is that of four lanes.
//
// Rows of the weight start on multiples of 16 elements, so whether eight elements start on 16 bytes is the same for all
// of a shard: is the place where element 0 of the weight would stand aligned.
#pragma once
#include <cuda_bf16.h>

#include "contract/primary.h"
#include "cuda/load.cuh"

namespace blockscale::cuda {

constexpr int kStripCols = 128;
constexpr int kRunElements = 8;
constexpr int kRunsPerLane = 8;  // rows of a strip for a lane

template <class Tag>
using Run = RawRun<Tag, kRunElements>;

// The device's form of a BsShard.
struct ShardView {
  const void* data;
  int64_t k, start, end;  // elements of the weight, end exclusive
  int8_t dtype, round_to;
  bool vector;  // runs start on 16 bytes

  static ShardView make(const BsShard& x) {
    const int64_t bytes = dtype_bytes(x.dtype);
    const uintptr_t origin = reinterpret_cast<uintptr_t>(x.data) - static_cast<uintptr_t>(x.start * bytes);
    const bool vector = x.length > 0 && origin % 16 == 0;
    const bool keep = x.round_to == BS_F32 || x.round_to == x.dtype;
    return {x.data,
            x.k,
            x.start,
            x.start + x.length,
            static_cast<int8_t>(x.dtype),
            static_cast<int8_t>(keep ? x.dtype : x.round_to),
            vector};
  }
};

inline int64_t strips_across(int64_t k) { return ceil_div(k, kStripCols); }

// The place of a lane in a strip.
struct StripSite {
  int64_t tile_row, col;  // first column of the lane's runs
  int64_t element;        // of its first run; the next one is 2 * k further
  bool inside;            // of the weight's columns

  __device__ __forceinline__ StripSite(int64_t k, uint32_t tile_row_, uint32_t strip) : tile_row(tile_row_) {
    const int lane = threadIdx.x & 31;
    col = int64_t{strip} * kStripCols + (lane & 15) * kRunElements;
    element = (tile_row * kBlock + (lane >> 4)) * k + col;
    inside = col < k;
  }
};

// The elements first .. last - 1 of a run that starts at `element` are the shard's.
struct Owned {
  int first, last;
  __device__ __forceinline__ bool none() const { return first >= last; }
  __device__ __forceinline__ bool all() const { return first == 0 && last == kRunElements; }
};
__device__ __forceinline__ Owned owned_part(const ShardView& x, int64_t element) {
  const int64_t before = x.start - element, after = x.end - element;
  return {before > 0 ? static_cast<int>(before < kRunElements ? before : kRunElements) : 0,
          after < kRunElements ? static_cast<int>(after > 0 ? after : 0) : kRunElements};
}

// Whether the shard holds all elements of a strip; and any.
__device__ __forceinline__ bool holds_strip(const ShardView& x, uint32_t tile_row, uint32_t strip) {
  const int64_t row = int64_t{tile_row} * kBlock, col = int64_t{strip} * kStripCols;
  const int64_t last_col = col + kStripCols < x.k ? col + kStripCols : x.k;
  return row * x.k + col >= x.start && (row + kBlock - 1) * x.k + last_col <= x.end;
}
__device__ __forceinline__ bool meets_tile_row(const ShardView& x, uint32_t tile_row) {
  const int64_t first = int64_t{tile_row} * kBlock * x.k;
  return first < x.end && first + kBlock * x.k > x.start;
}

// A run of which every element is the shard's.
template <class Tag>
__device__ __forceinline__ Run<Tag> load_run(const ShardView& x, int64_t element, bool vector) {
  Run<Tag> run;
  run.load(x.data, element - x.start, vector);
  return run;
}

// A run with zeros in place of what is not the shard's.
template <class Tag>
__device__ __forceinline__ Run<Tag> load_part(const ShardView& x, int64_t element, Owned part) {
  if (part.all()) return load_run<Tag>(x, element, x.vector);
  using Element = typename Tag::Element;
  const Element* from = static_cast<const Element*>(x.data) + (element - x.start);
  Run<Tag> run;
  run.clear();
#pragma unroll
  for (int i = 0; i < kRunElements; ++i) {
    if (i < part.first || i >= part.last) continue;
    if constexpr (kIsF32<Tag>)
      run.word[i] = __ldg(from + i);
    else
      run.word[i / 2] |= static_cast<uint32_t>(__ldg(from + i)) << (i % 2 * 16);
  }
  return run;
}

// Two floats rounded to a 16-bit dtype, nearest even, as one word.
template <class Tag>
__device__ __forceinline__ uint32_t rounded_pair(float low, float high);
template <>
__device__ __forceinline__ uint32_t rounded_pair<Bf16>(float low, float high) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(low)) |
         static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
}
template <>
__device__ __forceinline__ uint32_t rounded_pair<F16>(float low, float high) {
  return __half_as_ushort(__float2half_rn(low)) | static_cast<uint32_t>(__half_as_ushort(__float2half_rn(high))) << 16;
}

// The elements of a run as `To` holds them; nothing to do if that is their dtype.
template <class To, class From>
__device__ __forceinline__ Run<To> rounded_run(const Run<From>& x) {
  Run<To> run;
  if constexpr (sizeof(typename To::Element) == 4) {
    run = x;
  } else {
#pragma unroll
    for (int i = 0; i < Run<To>::kWords; ++i) run.word[i] = rounded_pair<To>(x.value(2 * i), x.value(2 * i + 1));
  }
  return run;
}
template <>
__device__ __forceinline__ Run<Bf16> rounded_run<Bf16, Bf16>(const Run<Bf16>& x) {
  return x;
}
template <>
__device__ __forceinline__ Run<F16> rounded_run<F16, F16>(const Run<F16>& x) {
  return x;
}

}  // namespace blockscale::cuda
