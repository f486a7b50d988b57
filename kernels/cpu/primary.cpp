// SPDX-License-Identifier: Apache-2.0
// Primary weights on the CPU (docs/numerics.md section 13): partial amax, fused scale, partial cast. A unit of work is
// a row of tiles, or a part of one; the transpose of a list is in transpose.cpp.
#include <cstring>

#include "contract/primary_checks.h"
#include "cpu/backend.h"
#include "cpu/list.h"
#include "cpu/matrix.h"
#include "cpu/simd_kernels.h"
#include "cpu/transpose.h"
#include "numerics/narrow.h"
#include "numerics/scale.h"

namespace blockscale::cpu {
namespace {

constexpr int64_t kPatchCols = 1024;

int64_t element_bytes(const BsShard& x) { return dtype_bytes(x.dtype); }
const char* shard_at(const BsShard& x, int64_t element) {
  return static_cast<const char*>(x.data) + (element - x.start) * element_bytes(x);
}

float rounded(const BsShard& x, float value) {
  if (x.round_to == BS_BF16) return float_of(round_to_bf16_bits(bits_of(value)));
  if (x.round_to == BS_F16) return float_of(round_to_f16_bits(bits_of(value)));
  return value;
}

// The elements of `row` from column `col` to `last_col` that the shard holds.
struct Piece {
  int64_t begin, end;  // elements of the weight
};
Piece owned(const BsShard& x, int64_t row, int64_t col, int64_t last_col) {
  return {std::max(x.start, row * x.k + col), std::min(x.start + x.length, row * x.k + last_col)};
}

// Partial amax
// ---------------------------------------------------------------------------------------------------------

int64_t column_patches(const BsShard& x) { return ceil_div(x.k, kPatchCols); }

void partial_amax_patch(const BsPartialAmaxItem& item, int64_t unit) {
  const BsShard& x = item.shard;
  const int64_t tile_row = unit / column_patches(x), col = unit % column_patches(x) * kPatchCols;
  const int64_t last_col = std::min(col + kPatchCols, x.k), last_row = std::min(tile_row * kBlock + kBlock, x.rows);
  uint32_t maxima[kPatchCols] = {};
  for (int64_t row = tile_row * kBlock; row < last_row; ++row) {
    const Piece piece = owned(x, row, col, last_col);
    if (piece.begin < piece.end)
      simd_kernels().amax_fold(shard_at(x, piece.begin), x.dtype, piece.end - piece.begin,
                               maxima + (piece.begin - row * x.k - col));
  }
  for (int64_t c = col; c < last_col; c += kBlock) {
    const uint32_t* tile = maxima + (c - col);
    // Rounding is monotone: the maximum of rounded magnitudes is the rounded maximum.
    const float amax = rounded(x, float_of(*std::max_element(tile, tile + kBlock)));
    item.tile_amax[(tile_row * x.k + c) / kBlock] = float_of(canonical_magnitude(bits_of(amax)));
  }
}

void partial_amax(const BsPartialAmaxItem* items, int64_t count, int threads) {
  const auto tile_rows = [](const BsPartialAmaxItem& item) { return ceil_div(item.shard.rows, kBlock); };
  for_each_unit(
      items, count, [&](const BsPartialAmaxItem& item) { return tile_rows(item) * column_patches(item.shard); },
      [](const BsPartialAmaxItem& item) { return item.shard.length; }, threads, partial_amax_patch);
  const auto tiles = [&](const BsPartialAmaxItem& item) { return tile_rows(item) * (item.shard.k / kBlock); };
  for_each_unit(
      items, count, [](const BsPartialAmaxItem& item) { return item.amax ? 1 : 0; }, tiles, threads,
      [&](const BsPartialAmaxItem& item, int64_t) {
        const uint32_t largest = simd_kernels().amax_run(item.tile_amax, BS_F32, tiles(item));
        item.amax[0] = float_of(canonical_magnitude(largest));
      });
}

// Fused scale
// ----------------------------------------------------------------------------------------------------------

BsOperand swizzled_scales(const BsFusedScaleItem& item) {
  BsOperand target = {};
  target.block_scale = item.block_scale;
  target.rows = item.rows;
  target.k = item.k;
  target.layout = BS_SWIZZLED_128X4;
  return target;
}

void fused_scale_row(const BsFusedScaleItem& item, int64_t tile_row) {
  const int64_t blocks = item.k / kBlock, last_row = std::min(tile_row * kBlock + kBlock, item.rows);
  uint8_t* scales = item.tile_scales + tile_row * blocks;
  const float encode = encode_scale(item.amax[0], second_level_range(item.e4m3_max));
  simd_kernels().block_scales(item.tile_amax + tile_row * blocks, blocks, encode, scales);
  const BsOperand target = swizzled_scales(item);
  const ScaleGrid grid = scale_grid(target);
  for (int64_t row = tile_row * kBlock; row < last_row; ++row) {
    if (item.layout == BS_SWIZZLED_128X4) {
      store_scale_row(target, grid, row, 0, scales, blocks);
    } else {
      std::memcpy(item.block_scale + row * item.row_stride, scales, blocks);
      std::memset(item.block_scale + row * item.row_stride + blocks, 0, item.row_stride - blocks);
    }
  }
}

void fused_scale(const BsFusedScaleItem* items, int64_t count, int threads) {
  for (int64_t i = 0; i < count; ++i) {
    const BsFusedScaleItem& item = items[i];
    if (item.layout == BS_SWIZZLED_128X4) {
      clear_padding(swizzled_scales(item));
    } else if (item.scale_rows > item.rows && item.row_stride > 0) {
      std::memset(item.block_scale + item.rows * item.row_stride, 0, (item.scale_rows - item.rows) * item.row_stride);
    }
  }
  for_each_unit(
      items, count,
      [](const BsFusedScaleItem& item) { return item.row_stride > 0 || item.k > 0 ? ceil_div(item.rows, kBlock) : 0; },
      [](const BsFusedScaleItem& item) { return item.rows * item.k / kBlock; }, threads, fused_scale_row);
  for (int64_t i = 0; i < count; ++i)
    items[i].stored_amax[0] = float_of(canonical_magnitude(magnitude_bits(items[i].amax[0])));
}

// Partial cast
// ---------------------------------------------------------------------------------------------------------

// Elements that share a byte with others, or whose block is not whole.
void cast_one_by_one(const BsPartialCastItem& item, Piece piece, float factor) {
  const BsShard& x = item.shard;
  for (int64_t i = piece.begin; i < piece.end; ++i) {
    float value;
    if (x.dtype == BS_F32) {
      std::memcpy(&value, shard_at(x, i), sizeof value);
    } else {
      uint16_t bits;
      std::memcpy(&bits, shard_at(x, i), sizeof bits);
      value = x.dtype == BS_BF16 ? widen_bf16(bits) : widen_f16(bits);
    }
    const uint32_t code = e2m1_code(rounded(x, value) * factor);
    uint8_t& byte = item.fragment[(i >> 1) - (x.start >> 1)];
    byte = static_cast<uint8_t>(i & 1 ? (byte & 0x0Fu) | code << 4 : (byte & 0xF0u) | code);
  }
}

void partial_cast_tile_row(const BsPartialCastItem& item, int64_t tile_row) {
  const BsShard& x = item.shard;
  const float encode = encode_scale(item.amax[0], second_level_range(item.e4m3_max));
  float factors[kPatchCols / kBlock];
  const int64_t last_row = std::min(tile_row * kBlock + kBlock, x.rows);
  for (int64_t col = 0; col < x.k; col += kPatchCols) {
    const int64_t last_col = std::min(col + kPatchCols, x.k);
    simd_kernels().element_scales(item.tile_scales + (tile_row * x.k + col) / kBlock, (last_col - col) / kBlock, encode,
                                  factors);
    for (int64_t row = tile_row * kBlock; row < last_row; ++row) {
      const Piece piece = owned(x, row, col, last_col);
      if (piece.begin >= piece.end) continue;
      const int64_t origin = row * x.k + col;
      const auto factor_at = [&](int64_t element) { return factors[(element - origin) / kBlock]; };
      // Rows start on a multiple of 16, so blocks are those of the flattened weight.
      const int64_t whole = std::min(round_up(piece.begin, kBlock), piece.end);
      const int64_t rest = std::max(whole, piece.end / kBlock * kBlock);
      if (piece.begin < whole) cast_one_by_one(item, {piece.begin, whole}, factor_at(piece.begin));
      if (whole < rest)
        simd_kernels().cast_row(shard_at(x, whole), x.dtype, x.round_to, rest - whole,
                                &factors[(whole - origin) / kBlock], item.fragment + ((whole >> 1) - (x.start >> 1)));
      if (rest < piece.end) cast_one_by_one(item, {rest, piece.end}, factor_at(rest));
    }
  }
}

int64_t first_tile_row(const BsShard& x) { return x.start / (x.k * kBlock); }

void partial_cast(const BsPartialCastItem* items, int64_t count, int threads) {
  for_each_unit(
      items, count,
      [](const BsPartialCastItem& item) {
        const BsShard& x = item.shard;
        return x.length == 0 ? 0 : (x.start + x.length - 1) / (x.k * kBlock) - first_tile_row(x) + 1;
      },
      [](const BsPartialCastItem& item) { return item.shard.length; }, threads,
      [](const BsPartialCastItem& item, int64_t unit) {
        partial_cast_tile_row(item, first_tile_row(item.shard) + unit);
      });
}

}  // namespace

BsStatus primary(const BsPrimaryProblem* problem, const BsLaunch* launch) {
  const BsPrimaryProblem& p = *problem;
  BS_RETURN_IF_BROKEN(check_primary(p));
  switch (p.stage) {
    case BS_PARTIAL_AMAX:
      partial_amax(p.partial_amax, p.count, launch->threads);
      break;
    case BS_FUSED_SCALE:
      fused_scale(p.fused_scale, p.count, launch->threads);
      break;
    case BS_PARTIAL_CAST:
      partial_cast(p.partial_cast, p.count, launch->threads);
      break;
    default:
      transpose_list(p.transpose, p.count, launch->threads);
  }
  return ok_status();
}

}  // namespace blockscale::cpu
