// SPDX-License-Identifier: Apache-2.0
// transpose of an operand with (16, 16) blocks: nibbles and tile scales move, no value changes (section 13.1).
#include <algorithm>

#include "contract/checks.h"
#include "cpu/backend.h"
#include "cpu/matrix.h"
#include "cpu/parallel.h"
#include "cpu/simd_kernels.h"

namespace blockscale::cpu {
namespace {

constexpr int64_t kPatch = 128;  // rows and columns: a line of 64 bytes of codes either way

void transpose_patch(const BsTransposeProblem& p, const ScaleGrid& from, const ScaleGrid& to, int64_t row,
                     int64_t col) {
  const int64_t last_row = std::min(row + kPatch, p.x.rows), last_col = std::min(col + kPatch, p.x.k);
  const int64_t in_pitch = p.x.k / 2, out_pitch = p.y.k / 2;
  for (int64_t c = col; c < last_col; c += kBlock)
    for (int64_t r = row; r < last_row; r += kBlock) {
      simd_kernels().transpose_tile(p.x.qdata + r * in_pitch + c / 2, in_pitch, p.y.qdata + c * out_pitch + r / 2,
                                    out_pitch);
      const uint8_t scale = p.x.block_scale[from.offset(r, c / kBlock)];
      for (int64_t i = 0; i < kBlock; ++i) p.y.block_scale[to.offset(c + i, r / kBlock)] = scale;
    }
}

}  // namespace

BsStatus transpose(const BsTransposeProblem* problem, const BsLaunch* launch) {
  const BsTransposeProblem& p = *problem;
  BS_RETURN_IF_BROKEN(check_transpose(p));
  const ScaleGrid from = scale_grid(p.x), to = scale_grid(p.y);
  p.y.amax[0] = p.x.amax[0];
  clear_padding(p.y);
  const int64_t across = ceil_div(p.x.k, kPatch);
  parallel_for(ceil_div(p.x.rows, kPatch) * across, kPatch * kPatch, launch->threads, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit)
      transpose_patch(p, from, to, unit / across * kPatch, unit % across * kPatch);
  });
  return ok_status();
}

}  // namespace blockscale::cpu
