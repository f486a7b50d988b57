// SPDX-License-Identifier: Apache-2.0
// One launch for a list of any length: where the kernel finds the items, and which unit of work belongs to which item.
//
// Every item is cut into units of one size, one for a warp. Units are numbered through the list; an item knows the
// number of its first. A list that fits travels in the kernel's parameters, by value: nothing to copy, nothing that
// must stay alive, and a CUDA graph keeps it. A longer one stands in a table on the device that the caller has packed
// and copied.
#pragma once

#include "cuda/launch.cuh"
#include "numerics/layout.h"

namespace blockscale::cuda {

constexpr int kListThreads = 256;
constexpr int kListWarps = kListThreads / 32;

// Bytes of kernel parameters: what every launch carries for a short list, and the most there can be (CUDA 12.1, sm_70).
constexpr int kShortList = 2048;
constexpr int kLongList = 32764;

// `Item` is the device's form of an item; it has `int64_t first_unit`.
template <class Item, int kBytes>
struct ListParams {
  static constexpr int kCapacity = (kBytes - 24) / static_cast<int>(sizeof(Item));
  const Item* table;  // on the device; null: `items` below
  int64_t units;
  int32_t count;
  Item items[kCapacity];
};

// The walk of a warp over units, a grid's warps apart. `item` stays in registers until its last unit is passed.
template <class Item>
class ListWalk {
 public:
  template <int kBytes>
  __device__ __forceinline__ explicit ListWalk(const ListParams<Item, kBytes>& p)
      : items_(p.table ? p.table : p.items),
        units_(p.units),
        unit_(int64_t{blockIdx.x} * kListWarps + (threadIdx.x >> 5)),
        step_(int64_t{gridDim.x} * kListWarps),
        count_(p.count) {}

  __device__ __forceinline__ bool inside() const { return unit_ < units_; }
  __device__ __forceinline__ void advance() { unit_ += step_; }

  // Whether the unit belongs to another item than the last one: `item` has then changed.
  __device__ __forceinline__ bool enter() {
    if (unit_ < end_) return false;
    int low = index_ + 1, high = count_;  // the first item after index_ that starts behind the unit
    while (low < high) {
      const int middle = (low + high) >> 1;
      if (items_[middle].first_unit <= unit_)
        low = middle + 1;
      else
        high = middle;
    }
    index_ = low - 1;
    item = items_[index_];
    end_ = low < count_ ? items_[low].first_unit : units_;
    return true;
  }
  // The unit's number in its item: below 2^31, as it stands for at least 256 elements.
  __device__ __forceinline__ uint32_t unit() const { return static_cast<uint32_t>(unit_ - item.first_unit); }

  Item item;

 private:
  const Item* items_;
  int64_t units_, unit_, step_, end_ = 0;
  int count_, index_ = -1;
};

// A stage is a struct with
//   Item, Problem: the device's and the contract's form of an item;
//   int64_t units(const Problem&): how many units an item is cut into;
//   Item make(const Problem&, int64_t first_unit);
//   BsStatus run(const ListParams<Item, kBytes>&, const Problem*, const Context&): the launch.
template <class Stage>
constexpr int64_t kLongestInline = ListParams<typename Stage::Item, kLongList>::kCapacity;

template <class Stage>
int64_t list_table_bytes(int64_t count) {
  return count > kLongestInline<Stage> ? count * static_cast<int64_t>(sizeof(typename Stage::Item)) : 0;
}

// Writes the items; their number of units.
template <class Stage>
int64_t pack_list(const typename Stage::Problem* problems, int64_t count, typename Stage::Item* items) {
  int64_t first_unit = 0;
  for (int64_t i = 0; i < count; ++i) {
    items[i] = Stage::make(problems[i], first_unit);
    first_unit += Stage::units(problems[i]);
  }
  return first_unit;
}

template <class Stage, int kBytes>
BsStatus launch_inline(const typename Stage::Problem* problems, int64_t count, const void* table,
                       const Context& context) {
  using Params = ListParams<typename Stage::Item, kBytes>;
  static_assert(sizeof(Params) <= kBytes, "the parameters of a kernel");
  Params params;
  params.table = static_cast<const typename Stage::Item*>(table);
  params.count = static_cast<int32_t>(count);
  if (table) {
    params.units = 0;
    for (int64_t i = 0; i < count; ++i) params.units += Stage::units(problems[i]);
  } else {
    params.units = pack_list<Stage>(problems, count, params.items);
  }
  return Stage::run(params, problems, context);
}

template <class Item, int kBytes>
BsStatus launch_units(void (*kernel)(ListParams<Item, kBytes>), int ctas_per_multiprocessor, const Context& context,
                      const ListParams<Item, kBytes>& params) {
  if (params.units == 0) return ok_status();
  const int64_t ctas = one_wave(ceil_div(params.units, kListWarps), ctas_per_multiprocessor, context);
  return launch(kernel, ctas, kListThreads, context, params);
}

// One launch for the whole list.
template <class Stage>
BsStatus launch_list(const typename Stage::Problem* problems, int64_t count, const void* table,
                     const Context& context) {
  if (count == 0) return ok_status();
  if (count <= ListParams<typename Stage::Item, kShortList>::kCapacity)
    return launch_inline<Stage, kShortList>(problems, count, nullptr, context);
  if (count <= kLongestInline<Stage>) return launch_inline<Stage, kLongList>(problems, count, nullptr, context);
  if (!table) return failure(BS_INVALID, "%s: table must be given for a list of this length; got null.", context.op);
  return launch_inline<Stage, kShortList>(problems, count, table, context);
}

}  // namespace blockscale::cuda
