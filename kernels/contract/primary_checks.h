// SPDX-License-Identifier: Apache-2.0
// L1: the checks of primary.h that every backend makes before it writes a byte, for callers of the C ABI. The one that
// Python leaves to this place is that the fragments of a list are disjoint.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "checks.h"
#include "primary.h"

namespace blockscale {

inline bool is_float_input(int32_t dtype) { return dtype == BS_F32 || dtype == BS_BF16 || dtype == BS_F16; }

inline int64_t fragment_bytes(const BsShard& x) {
  return x.length == 0 ? 0 : ((x.start + x.length + 1) >> 1) - (x.start >> 1);
}

inline BsStatus check_shard(const char* op, const BsShard& x) {
  if (x.rows < 0 || x.k < 0 || x.k % 16)
    return broken_rule(op, "shape", "of non-negative rows and K a multiple of 16", x.k);
  if (!is_float_input(x.dtype)) return broken_rule(op, "shard", "float32, bfloat16 or float16", x.dtype);
  if (!is_float_input(x.round_to)) return broken_rule(op, "round_to", "float32, bfloat16 or float16", x.round_to);
  if (x.start < 0 || x.start > x.rows * x.k) return broken_rule(op, "start", "an element of the weight", x.start);
  if (x.length < 0 || x.length > x.rows * x.k - x.start) return broken_rule(op, "shard", "within the weight", x.length);
  if (x.length > 0 && !x.data) return broken_rule(op, "shard", "a non-null pointer", 0);
  return ok_status();
}

inline BsStatus check_item(const BsPartialAmaxItem& item) {
  const char* op = "partial_amax";
  BS_RETURN_IF_BROKEN(check_shard(op, item.shard));
  if (item.shard.rows > 0 && item.shard.k > 0 && !item.tile_amax)
    return broken_rule(op, "tile_amax", "a non-null pointer", 0);
  return ok_status();
}

inline BsStatus check_item(const BsFusedScaleItem& item) {
  const char* op = "fused_scale";
  if (item.rows < 0 || item.k < 0 || item.k % 16)
    return broken_rule(op, "shape", "of non-negative rows and K a multiple of 16", item.k);
  if (item.layout != BS_LINEAR && item.layout != BS_SWIZZLED_128X4)
    return broken_rule(op, "layout", "a known layout", item.layout);
  if (item.e4m3_max != 448 && item.e4m3_max != 256) return broken_rule(op, "e4m3_max", "448 or 256", item.e4m3_max);
  if (item.layout == BS_LINEAR && item.scale_rows < item.rows)
    return broken_rule(op, "block_scale", "of at least M rows", item.scale_rows);
  if (item.layout == BS_LINEAR && item.row_stride < item.k / 16)
    return broken_rule(op, "row_stride", "at least K / 16", item.row_stride);
  const bool scales =
      item.layout == BS_LINEAR ? item.scale_rows > 0 && item.row_stride > 0 : item.rows > 0 && item.k > 0;
  if (scales && !item.block_scale) return broken_rule(op, "block_scale", "a non-null pointer", 0);
  if (item.rows > 0 && item.k > 0 && (!item.tile_amax || !item.tile_scales))
    return broken_rule(op, "tile_amax", "a non-null pointer", 0);
  if (!item.amax || !item.stored_amax) return broken_rule(op, "amax", "a non-null pointer", 0);
  return ok_status();
}

inline BsStatus check_item(const BsPartialCastItem& item) {
  const char* op = "partial_cast";
  BS_RETURN_IF_BROKEN(check_shard(op, item.shard));
  if (item.e4m3_max != 448 && item.e4m3_max != 256) return broken_rule(op, "e4m3_max", "448 or 256", item.e4m3_max);
  if (item.shard.length > 0 && (!item.tile_scales || !item.amax || !item.fragment))
    return broken_rule(op, "out", "a non-null pointer", 0);
  return ok_status();
}

inline BsStatus check_item(const BsTransposeProblem& item) { return check_transpose(item); }

// Two fragments that share a byte would be written by two threads at once.
inline BsStatus check_disjoint(const BsPartialCastItem* items, int64_t count) {
  std::vector<std::pair<uintptr_t, int64_t>> order;
  order.reserve(count);
  for (int64_t i = 0; i < count; ++i)
    if (items[i].shard.length > 0) order.emplace_back(reinterpret_cast<uintptr_t>(items[i].fragment), i);
  if (!std::is_sorted(order.begin(), order.end())) std::sort(order.begin(), order.end());
  for (size_t i = 1; i < order.size(); ++i) {
    const int64_t before = order[i - 1].second, after = order[i].second;
    if (order[i - 1].first + fragment_bytes(items[before].shard) > order[i].first)
      return failure(BS_INVALID,
                     "multi_tensor_partial_cast: out[%lld] must be disjoint from out[%lld]; got a common byte. Cast "
                     "them in two calls, one after the other.",
                     static_cast<long long>(std::max(before, after)), static_cast<long long>(std::min(before, after)));
  }
  return ok_status();
}

template <class Item>
BsStatus check_items(const Item* items, int64_t count) {
  if (count > 0 && !items) return broken_rule("primary", "items", "a non-null pointer", 0);
  for (int64_t i = 0; i < count; ++i) BS_RETURN_IF_BROKEN(check_item(items[i]));
  return ok_status();
}

inline BsStatus check_primary(const BsPrimaryProblem& p) {
  if (p.count < 0) return broken_rule("primary", "count", "non-negative", p.count);
  switch (p.stage) {
    case BS_PARTIAL_AMAX:
      return check_items(p.partial_amax, p.count);
    case BS_FUSED_SCALE:
      return check_items(p.fused_scale, p.count);
    case BS_PARTIAL_CAST:
      BS_RETURN_IF_BROKEN(check_items(p.partial_cast, p.count));
      return check_disjoint(p.partial_cast, p.count);
    case BS_TRANSPOSE:
      return check_items(p.transpose, p.count);
    default:
      return broken_rule("primary", "stage", "a known stage", p.stage);
  }
}

}  // namespace blockscale
