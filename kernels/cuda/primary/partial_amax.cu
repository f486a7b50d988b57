// SPDX-License-Identifier: Apache-2.0
// Partial amax (docs/numerics.md section 13.1): the largest magnitude of every tile over the elements of a shard. A
// warp takes a strip of eight tiles and owns their outputs, so a tile is written once, by one thread, also where the
// shard has nothing of it. A weight's amax is raised by atomic maxima, whose result does not depend on an order.
#include <algorithm>

#include "contract/primary_checks.h"
#include "cuda/primary/list.cuh"
#include "cuda/primary/shard.cuh"
#include "cuda/primary/stages.h"
#include "cuda/reduce.cuh"
#include "numerics/narrow.h"

namespace blockscale::cuda {
namespace {

constexpr int kCtasPerMultiprocessor = 3;

struct AmaxItem {
  int64_t first_unit;
  ShardView shard;
  float* tile_amax;
  uint32_t* amax;
  uint32_t across;  // strips
};

// The largest magnitude of a lane's runs in a strip.
template <class Tag>
__device__ __forceinline__ uint32_t strip_maximum(const ShardView& x, const StripSite& site, bool whole) {
  Run<Tag> largest;
  largest.clear();
  const int64_t step = 2 * x.k;
  if (whole && site.inside) {
#pragma unroll
    for (int i = 0; i < kRunsPerLane; ++i) {
      const Run<Tag> run = load_run<Tag>(x, site.element + i * step, true);
#pragma unroll
      for (int j = 0; j < Run<Tag>::kWords; ++j)
        largest.word[j] = packed_max<Tag>(largest.word[j], packed_magnitude<Tag>(run.word[j]));
    }
  } else if (site.inside) {
#pragma unroll 1
    for (int i = 0; i < kRunsPerLane; ++i) {
      const int64_t element = site.element + i * step;
      const Owned part = owned_part(x, element);
      if (part.none()) continue;
      const Run<Tag> run = load_part<Tag>(x, element, part);
#pragma unroll
      for (int j = 0; j < Run<Tag>::kWords; ++j)
        largest.word[j] = packed_max<Tag>(largest.word[j], packed_magnitude<Tag>(run.word[j]));
    }
  }
  return largest.max_magnitude();
}

// Rounding is monotone: the maximum of rounded magnitudes is the rounded maximum.
__device__ __forceinline__ uint32_t rounded_magnitude(uint32_t magnitude, int round_to) {
  if (round_to == BS_BF16) return round_to_bf16_bits(magnitude);
  if (round_to == BS_F16) return round_to_f16_bits(magnitude);
  return magnitude;
}

template <int kBytes>
__global__ void __launch_bounds__(kListThreads, kCtasPerMultiprocessor)
    partial_amax_kernel(const __grid_constant__ ListParams<AmaxItem, kBytes> p) {
  const int lane = threadIdx.x & 31;
  for (ListWalk<AmaxItem> walk(p); walk.inside(); walk.advance()) {
    walk.enter();
    const AmaxItem& item = walk.item;
    const uint32_t tile_row = walk.unit() / item.across, strip = walk.unit() % item.across;
    const StripSite site(item.shard.k, tile_row, strip);
    uint32_t magnitude = 0;
    if (meets_tile_row(item.shard, tile_row)) {  // the same in the whole warp
      const bool whole = item.shard.vector && holds_strip(item.shard, tile_row, strip);
      if (item.shard.dtype == BS_F32)
        magnitude = strip_maximum<F32>(item.shard, site, whole);
      else if (item.shard.dtype == BS_BF16)
        magnitude = strip_maximum<Bf16>(item.shard, site, whole);
      else
        magnitude = strip_maximum<F16>(item.shard, site, whole);
      magnitude = umax(magnitude, __shfl_xor_sync(kFullWarp, magnitude, 1));   // a tile has two lanes in a row
      magnitude = umax(magnitude, __shfl_xor_sync(kFullWarp, magnitude, 16));  // of odd and of even rows
      magnitude = canonical_magnitude(rounded_magnitude(magnitude, item.shard.round_to));
    }
    if ((lane & 17) == 0 && site.inside)
      item.tile_amax[tile_row * (item.shard.k / kBlock) + site.col / kBlock] = float_of(magnitude);
    if (item.amax) {
      const uint32_t largest = warp_max(magnitude);
      // Most strips raise nothing: a read spares the atomic. The value only grows, so a stale one only costs time.
      if (lane == 0 && largest > *static_cast<const volatile uint32_t*>(item.amax)) atomicMax(item.amax, largest);
    }
  }
}

// Weight amaxes start from 0: one thread an item.
template <int kBytes>
__global__ void __launch_bounds__(kListThreads)
    clear_amax_kernel(const __grid_constant__ ListParams<AmaxItem, kBytes> p) {
  const AmaxItem* items = p.table ? p.table : p.items;
  const int i = blockIdx.x * kListThreads + threadIdx.x;
  if (i < p.count && items[i].amax) *items[i].amax = 0;
}

struct Stage {
  using Item = AmaxItem;
  using Problem = BsPartialAmaxItem;
  static int64_t units(const Problem& p) { return ceil_div(p.shard.rows, kBlock) * strips_across(p.shard.k); }
  static Item make(const Problem& p, int64_t first_unit) {
    return {first_unit, ShardView::make(p.shard), p.tile_amax, reinterpret_cast<uint32_t*>(p.amax),
            static_cast<uint32_t>(strips_across(p.shard.k))};
  }
  template <int kBytes>
  static BsStatus run(const ListParams<Item, kBytes>& params, const Problem* problems, const Context& context) {
    const bool wants_amax =
        std::any_of(problems, problems + params.count, [](const Problem& p) { return p.amax != nullptr; });
    if (wants_amax) {
      const int64_t ctas = ceil_div(params.count, kListThreads);
      BS_RETURN_IF_BROKEN(launch(clear_amax_kernel<kBytes>, ctas, kListThreads, context, params));
    }
    return launch_units(partial_amax_kernel<kBytes>, kCtasPerMultiprocessor, context, params);
  }
};

}  // namespace

BsStatus partial_amax(const BsPrimaryProblem& p, const Context& context) {
  return launch_list<Stage>(p.partial_amax, p.count, p.table, context);
}
int64_t partial_amax_table_bytes(int64_t count) { return list_table_bytes<Stage>(count); }
void pack_partial_amax(const BsPrimaryProblem& p, void* table) {
  pack_list<Stage>(p.partial_amax, p.count, static_cast<AmaxItem*>(table));
}

}  // namespace blockscale::cuda
