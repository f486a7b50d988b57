// SPDX-License-Identifier: Apache-2.0
// quantize, a good place to start reading the CPU backend (docs/numerics.md sections 2 to 5):
//   1. second_levels: the amax of the tensor, or of each row of each operand, given or found; stored in the operands.
//   2. quantize_rows, where a row of x is a row of the operand: a thread takes rows one after the other.
//      quantize_strips, where 16 rows of x share scales or become columns: a thread takes patches of 128 rows by 512
//      columns, so that the columnwise operand is written in whole cache lines.
#include <algorithm>
#include <vector>

#include "contract/checks.h"
#include "cpu/backend.h"
#include "cpu/matrix.h"
#include "cpu/maxima.h"
#include "cpu/parallel.h"
#include "cpu/simd_kernels.h"
#include "numerics/scale.h"

namespace blockscale::cpu {
namespace {

constexpr int64_t kPatchRows = 128;
constexpr int64_t kPatchCols = 512;
constexpr int64_t kChunk = 4096;  // columns of a row whose scales wait in a local buffer

int64_t amax_count(const BsOperand& x) { return x.scaling == BS_SCALING_ROW ? x.rows : 1; }

void store_amax(const BsOperand& x, const float* given) {
  for (int64_t i = 0; i < amax_count(x); ++i) x.amax[i] = float_of(canonical_magnitude(magnitude_bits(given[i])));
}

// Step 1. Where rows are scaled and no columnwise operand is wanted, a row finds its own amax while it is in cache.
bool rows_find_their_own(const BsQuantizeProblem& p) {
  return is_present(p.rowwise) && !is_present(p.columnwise) && p.rowwise.scaling == BS_SCALING_ROW && !p.rowwise_amax;
}

void second_levels(const BsQuantizeProblem& p, int threads) {
  const bool row = is_present(p.rowwise), column = is_present(p.columnwise);
  if (row && p.rowwise_amax) store_amax(p.rowwise, p.rowwise_amax);
  if (column && p.columnwise_amax) store_amax(p.columnwise, p.columnwise_amax);
  const bool find_row = row && !p.rowwise_amax, find_column = column && !p.columnwise_amax;
  if ((!find_row && !find_column) || rows_find_their_own(p)) return;
  const BsOperand& any = row ? p.rowwise : p.columnwise;
  if (any.scaling == BS_SCALING_TENSOR) {
    const float found = float_of(tensor_maximum(p.x, threads));
    if (find_row) store_amax(p.rowwise, &found);
    if (find_column) store_amax(p.columnwise, &found);
    return;
  }
  std::vector<uint32_t> rows(find_row ? p.x.rows : 0), columns(find_column ? p.x.cols : 0);
  row_and_column_maxima(p.x, find_row ? rows.data() : nullptr, find_column ? columns.data() : nullptr, threads);
  if (find_row) store_amax(p.rowwise, reinterpret_cast<const float*>(rows.data()));
  if (find_column) store_amax(p.columnwise, reinterpret_cast<const float*>(columns.data()));
}

void quantize_row_chunk(const BsQuantizeProblem& p, const ScaleGrid& grid, int64_t row, int64_t col, int64_t count,
                        float encode) {
  uint8_t scales[kChunk / kBlock];
  const BsOperand& y = p.rowwise;
  uint8_t* qdata = y.qdata + (row * y.k + col) / 2;
  simd_kernels().quantize_row(element_at(p.x, row, col), p.x.dtype, count, encode, qdata, scales);
  store_scale_row(y, grid, row, col / kBlock, scales, count / kBlock);
}

// Step 2, blocks of (1, 16), rowwise only.
void quantize_rows(const BsQuantizeProblem& p, int threads) {
  const BsOperand& y = p.rowwise;
  const ScaleGrid grid = scale_grid(y);
  const float range = second_level_range(y.e4m3_max);
  const bool own = rows_find_their_own(p), by_row = y.scaling == BS_SCALING_ROW;
  const int64_t chunks = std::max<int64_t>(1, by_row ? 1 : ceil_div(y.k, kChunk));
  const int64_t unit_cols = by_row ? y.k : std::min(kChunk, y.k);
  parallel_for(y.rows * chunks, std::max<int64_t>(1, unit_cols), threads, [&](int64_t begin, int64_t end) {
    const float tensor_encode = by_row ? 0.0f : encode_scale(y.amax[0], range);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t row = unit / chunks, first = unit % chunks * kChunk;
      if (own) {
        const uint32_t maximum = simd_kernels().amax_run(element_at(p.x, row, 0), p.x.dtype, y.k);
        y.amax[row] = float_of(canonical_magnitude(maximum));
      }
      const float encode = by_row ? encode_scale(y.amax[row], range) : tensor_encode;
      const int64_t last = by_row ? y.k : std::min(first + kChunk, y.k);
      for (int64_t col = first; col < last; col += kChunk)
        quantize_row_chunk(p, grid, row, col, std::min(kChunk, last - col), encode);
    }
  });
}

struct StripWork {
  const BsQuantizeProblem& p;
  ScaleGrid row_grid, column_grid;
  std::vector<float> column_encode;  // Se of each column, scaling="row"
  float encode;                      // Se of the tensor
};

void quantize_strip(const StripWork& work, int64_t row, int64_t col, int64_t cols) {
  const BsQuantizeProblem& p = work.p;
  const bool rowwise = is_present(p.rowwise), columnwise = is_present(p.columnwise), tiles = p.block_rows == kBlock;
  uint8_t scales[kPatchCols];
  Strip strip = {};
  strip.x = element_at(p.x, row, col);
  strip.row_stride = p.x.row_stride;
  strip.cols = cols;
  strip.rows = static_cast<int>(std::min<int64_t>(kBlock, p.x.rows - row));
  strip.encode = work.encode;
  strip.row_encode = work.column_encode.empty() ? nullptr : work.column_encode.data() + col;
  strip.scales = scales;
  if (columnwise) {
    strip.columnwise_pitch = p.columnwise.k / 2;
    strip.columnwise_qdata = p.columnwise.qdata + col * strip.columnwise_pitch + row / 2;
  }
  if (!tiles) {
    simd_kernels().quantize_strip_columnwise(strip, p.x.dtype);
    for (int64_t c = 0; c < cols; ++c)
      p.columnwise.block_scale[work.column_grid.offset(col + c, row / kBlock)] = scales[c];
    if (!rowwise) return;
    const float range = second_level_range(p.rowwise.e4m3_max);
    const bool by_row = p.rowwise.scaling == BS_SCALING_ROW;
    for (int r = 0; r < strip.rows; ++r)
      quantize_row_chunk(p, work.row_grid, row + r, col, cols,
                         by_row ? encode_scale(p.rowwise.amax[row + r], range) : work.encode);
    return;
  }
  if (rowwise) {
    strip.rowwise_pitch = p.rowwise.k / 2;
    strip.rowwise_qdata = p.rowwise.qdata + (row * p.rowwise.k + col) / 2;
  }
  simd_kernels().quantize_strip_tiles(strip, p.x.dtype);
  if (rowwise)
    for (int r = 0; r < strip.rows; ++r)
      store_scale_row(p.rowwise, work.row_grid, row + r, col / kBlock, scales, cols / kBlock);
  if (columnwise)
    for (int64_t c = 0; c < cols; ++c)
      p.columnwise.block_scale[work.column_grid.offset(col + c, row / kBlock)] = scales[c / kBlock];
}

// Step 2, wherever 16 rows of x are taken together.
void quantize_strips(const BsQuantizeProblem& p, int threads) {
  StripWork work{p, scale_grid(p.rowwise), scale_grid(p.columnwise), {}, 0.0f};
  const BsOperand& any = is_present(p.rowwise) ? p.rowwise : p.columnwise;
  const float range = second_level_range(any.e4m3_max);
  {
    const KeepSubnormals keep;
    if (any.scaling == BS_SCALING_TENSOR) {
      work.encode = encode_scale(any.amax[0], range);
    } else {
      work.column_encode.resize(p.x.cols);
      for (int64_t c = 0; c < p.x.cols; ++c) work.column_encode[c] = encode_scale(p.columnwise.amax[c], range);
    }
  }
  const int64_t patches = ceil_div(p.x.cols, kPatchCols);
  parallel_for(ceil_div(p.x.rows, kPatchRows) * patches, kPatchRows * std::min(kPatchCols, p.x.cols), threads,
               [&](int64_t begin, int64_t end) {
                 for (int64_t unit = begin; unit < end; ++unit) {
                   const int64_t first = unit / patches * kPatchRows, col = unit % patches * kPatchCols;
                   const int64_t last = std::min(first + kPatchRows, p.x.rows);
                   const int64_t cols = std::min(kPatchCols, p.x.cols - col);
                   for (int64_t row = first; row < last; row += kBlock) quantize_strip(work, row, col, cols);
                 }
               });
}

}  // namespace

BsStatus quantize(const BsQuantizeProblem* problem, const BsLaunch* launch) {
  const BsQuantizeProblem& p = *problem;
  BS_RETURN_IF_BROKEN(check_quantize(p));
  second_levels(p, launch->threads);
  if (is_present(p.rowwise)) clear_padding(p.rowwise);
  if (is_present(p.columnwise)) clear_padding(p.columnwise);
  if (is_present(p.columnwise) || p.block_rows == kBlock) {
    quantize_strips(p, launch->threads);
  } else if (is_present(p.rowwise)) {
    quantize_rows(p, launch->threads);
  }
  return ok_status();
}

}  // namespace blockscale::cpu
