// SPDX-License-Identifier: Apache-2.0
// Partial cast (docs/numerics.md section 13.1): the codes of a shard into its fragment. A warp takes a strip of 16 rows
// by 128 columns; eight elements, one word of codes, are one lane's, so each byte of a launch has one owner, and a
// boundary byte that a neighbouring shard shares is read and written by one thread.
#include "cuda/cast/block.cuh"
#include "cuda/primary/list.cuh"
#include "cuda/primary/shard.cuh"
#include "cuda/primary/stages.h"

namespace blockscale::cuda {
namespace {

constexpr int kCtasPerMultiprocessor = 3;
constexpr int kBatch = 4;  // runs of a lane that are loaded together

struct CastItem {
  int64_t first_unit;
  ShardView shard;
  const uint8_t* tile_scales;
  const float* amax;
  uint8_t* fragment;
  uint32_t first_tile_row, across;  // strips
  float range;
  bool vector_out;  // words of codes are aligned
};

// Eight codes. A NaN becomes 7: the scales are given, and need not know of it.
template <class Tag>
__device__ __forceinline__ uint32_t codes_of_run(const Run<Tag>& x, float e, bool finite) {
  const uint32_t magnitude = x.max_magnitude();
  uint32_t word[1];
  e2m1_words(x, e, float_of(magnitude), word);
  if (magnitude > kInfBits) {
    word[0] = 0;
#pragma unroll
    for (int i = 0; i < kRunElements; ++i) word[0] |= e2m1_code(x.value(i) * e) << (4 * i);
  }
  return finite ? word[0] : kEightSevens;
}

// The word of codes of a run that starts at `element`, an even number.
__device__ __forceinline__ uint8_t* codes_at(const CastItem& item, int64_t element) {
  return item.fragment + ((element >> 1) - (item.shard.start >> 1));
}

// Codes of the elements `part` of a run; the other nibbles of the fragment keep their value.
__device__ __forceinline__ void store_part(uint8_t* to, uint32_t word, Owned part) {
#pragma unroll
  for (int i = 0; i < kRunElements / 2; ++i) {
    const bool even = 2 * i >= part.first && 2 * i < part.last;
    const bool odd = 2 * i + 1 >= part.first && 2 * i + 1 < part.last;
    const uint32_t byte = word >> (8 * i) & 0xFFu;
    if (even && odd)
      to[i] = static_cast<uint8_t>(byte);
    else if (even)
      to[i] = static_cast<uint8_t>((to[i] & 0xF0u) | (byte & 0x0Fu));
    else if (odd)
      to[i] = static_cast<uint8_t>((to[i] & 0x0Fu) | (byte & 0xF0u));
  }
}

// From: the master's dtype. To: what it is rounded to, or the same.
template <class From, class To>
__device__ __forceinline__ void cast_strip(const CastItem& item, const StripSite& site, bool whole, float encode) {
  if (!site.inside) return;
  const ShardView& x = item.shard;
  const int64_t step = 2 * x.k;
  const uint32_t scale = __ldg(item.tile_scales + site.tile_row * (x.k / kBlock) + site.col / kBlock);
  if (whole) {
    uint8_t* to = codes_at(item, site.element);
#pragma unroll
    for (int batch = 0; batch < kRunsPerLane; batch += kBatch) {
      Run<From> runs[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) runs[i] = load_run<From>(x, site.element + (batch + i) * step, true);
      const float e = element_scale(scale, encode);
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        *reinterpret_cast<uint32_t*>(to + (batch + i) * x.k) =
            codes_of_run(rounded_run<To>(runs[i]), e, scale != kE4m3NanByte);
    }
    return;
  }
  const float e = element_scale(scale, encode);
#pragma unroll 1
  for (int i = 0; i < kRunsPerLane; ++i) {
    const int64_t element = site.element + i * step;
    const Owned part = owned_part(x, element);
    if (part.none()) continue;
    const uint32_t word = codes_of_run(rounded_run<To>(load_part<From>(x, element, part)), e, scale != kE4m3NanByte);
    uint8_t* to = codes_at(item, element);
    if (part.all() && item.vector_out)
      *reinterpret_cast<uint32_t*>(to) = word;
    else
      store_part(to, word, part);
  }
}

template <int kBytes>
__global__ void __launch_bounds__(kListThreads, kCtasPerMultiprocessor)
    partial_cast_kernel(const __grid_constant__ ListParams<CastItem, kBytes> p) {
  float encode = 0.0f;
  for (ListWalk<CastItem> walk(p); walk.inside(); walk.advance()) {
    const bool entered = walk.enter();
    const CastItem& item = walk.item;
    if (entered) encode = encode_scale(__ldg(item.amax), item.range);
    const uint32_t tile_row = item.first_tile_row + walk.unit() / item.across, strip = walk.unit() % item.across;
    const StripSite site(item.shard.k, tile_row, strip);
    const bool whole = item.shard.vector && item.vector_out && holds_strip(item.shard, tile_row, strip);
    const int from = item.shard.dtype, to = item.shard.round_to;  // the same in the whole warp
    if (from == BS_F32) {
      if (to == BS_F32)
        cast_strip<F32, F32>(item, site, whole, encode);
      else if (to == BS_BF16)
        cast_strip<F32, Bf16>(item, site, whole, encode);
      else
        cast_strip<F32, F16>(item, site, whole, encode);
    } else if (from == BS_BF16) {
      if (to == BS_BF16)
        cast_strip<Bf16, Bf16>(item, site, whole, encode);
      else
        cast_strip<Bf16, F16>(item, site, whole, encode);
    } else {
      if (to == BS_F16)
        cast_strip<F16, F16>(item, site, whole, encode);
      else
        cast_strip<F16, Bf16>(item, site, whole, encode);
    }
  }
}

struct Stage {
  using Item = CastItem;
  using Problem = BsPartialCastItem;
  static int64_t first_tile_row(const BsShard& x) { return x.start / (x.k * kBlock); }
  static int64_t units(const Problem& p) {
    const BsShard& x = p.shard;
    if (x.length == 0) return 0;
    return ((x.start + x.length - 1) / (x.k * kBlock) - first_tile_row(x) + 1) * strips_across(x.k);
  }
  static Item make(const Problem& p, int64_t first_unit) {
    const BsShard& x = p.shard;
    const uintptr_t origin = reinterpret_cast<uintptr_t>(p.fragment) - static_cast<uintptr_t>(x.start >> 1);
    return {first_unit,
            ShardView::make(x),
            p.tile_scales,
            p.amax,
            p.fragment,
            static_cast<uint32_t>(x.length == 0 ? 0 : first_tile_row(x)),
            static_cast<uint32_t>(strips_across(x.k)),
            6.0f * static_cast<float>(p.e4m3_max),
            origin % 4 == 0};
  }
  template <int kBytes>
  static BsStatus run(const ListParams<Item, kBytes>& params, const Problem*, const Context& context) {
    return launch_units(partial_cast_kernel<kBytes>, kCtasPerMultiprocessor, context, params);
  }
};

}  // namespace

BsStatus partial_cast(const BsPrimaryProblem& p, const Context& context) {
  return launch_list<Stage>(p.partial_cast, p.count, p.table, context);
}
int64_t partial_cast_table_bytes(int64_t count) { return list_table_bytes<Stage>(count); }
void pack_partial_cast(const BsPrimaryProblem& p, void* table) {
  pack_list<Stage>(p.partial_cast, p.count, static_cast<CastItem*>(table));
}

}  // namespace blockscale::cuda
