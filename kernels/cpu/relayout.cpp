// SPDX-License-Identifier: Apache-2.0
// Block scales from one layout to another (docs/layouts.md).
#include <algorithm>
#include <vector>

#include "contract/checks.h"
#include "cpu/backend.h"
#include "cpu/matrix.h"
#include "cpu/parallel.h"

namespace blockscale::cpu {

BsStatus relayout(const BsRelayoutProblem* problem, const BsLaunch* launch) {
  const BsRelayoutProblem& p = *problem;
  BS_RETURN_IF_BROKEN(check_relayout(p));
  BsOperand from = {}, to = {};
  from.rows = to.rows = p.rows;
  from.k = to.k = p.k;
  from.layout = p.source_layout;
  to.layout = p.target_layout;
  from.block_scale = const_cast<uint8_t*>(p.source);  // only read
  to.block_scale = p.target;
  const ScaleGrid from_grid = scale_grid(from), to_grid = scale_grid(to);
  clear_padding(to);
  parallel_for(p.rows, std::max<int64_t>(1, p.k / kBlock), launch->threads, [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> row_scales(p.k / kBlock);
    for (int64_t row = begin; row < end; ++row) {
      load_scale_row(from, from_grid, row, 0, row_scales.data(), row_scales.size());
      store_scale_row(to, to_grid, row, 0, row_scales.data(), row_scales.size());
    }
  });
  return ok_status();
}

}  // namespace blockscale::cpu
