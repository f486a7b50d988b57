// SPDX-License-Identifier: Apache-2.0
// transpose of operands with (16, 16) blocks: nibbles and tile scales move, no value changes (section 13.1).
#include "cpu/transpose.h"

#include <algorithm>

#include "contract/checks.h"
#include "cpu/backend.h"
#include "cpu/list.h"
#include "cpu/matrix.h"
#include "cpu/simd_kernels.h"

namespace blockscale::cpu {
namespace {

constexpr int64_t kPatch = 128;  // rows and columns: a line of 64 bytes of codes either way

int64_t patches_across(const BsTransposeProblem& p) { return ceil_div(p.x.k, kPatch); }

void transpose_patch(const BsTransposeProblem& p, int64_t unit) {
  const int64_t row = unit / patches_across(p) * kPatch, col = unit % patches_across(p) * kPatch;
  const int64_t last_row = std::min(row + kPatch, p.x.rows), last_col = std::min(col + kPatch, p.x.k);
  const int64_t in_pitch = p.x.k / 2, out_pitch = p.y.k / 2;
  const ScaleGrid from = scale_grid(p.x), to = scale_grid(p.y);
  for (int64_t c = col; c < last_col; c += kBlock) {
    uint8_t scales[kPatch / kBlock];
    for (int64_t r = row; r < last_row; r += kBlock) {
      simd_kernels().transpose_tile(p.x.qdata + r * in_pitch + c / 2, in_pitch, p.y.qdata + c * out_pitch + r / 2,
                                    out_pitch);
      scales[(r - row) / kBlock] = p.x.block_scale[from.offset(r, c / kBlock)];
    }
    for (int64_t i = 0; i < kBlock; ++i)
      store_scale_row(p.y, to, c + i, row / kBlock, scales, (last_row - row) / kBlock);
  }
}

}  // namespace

void transpose_list(const BsTransposeProblem* items, int64_t count, int threads) {
  for (int64_t i = 0; i < count; ++i) {
    items[i].y.amax[0] = items[i].x.amax[0];
    clear_padding(items[i].y);
  }
  for_each_unit(
      items, count, [](const BsTransposeProblem& p) { return ceil_div(p.x.rows, kPatch) * patches_across(p); },
      [](const BsTransposeProblem& p) { return p.x.rows * p.x.k; }, threads, transpose_patch);
}

BsStatus transpose(const BsTransposeProblem* problem, const BsLaunch* launch) {
  BS_RETURN_IF_BROKEN(check_transpose(*problem));
  transpose_list(problem, 1, launch->threads);
  return ok_status();
}

}  // namespace blockscale::cpu
