// SPDX-License-Identifier: Apache-2.0
// A float matrix as FP64, exactly: subnormals too, also where the caller flushes them to zero.
#include <algorithm>

#include "contract/checks.h"
#include "cpu/backend.h"
#include "cpu/matrix.h"
#include "cpu/parallel.h"

namespace blockscale::cpu {

BsStatus widen(const BsWidenProblem* problem, const BsLaunch* launch) {
  const BsWidenProblem& p = *problem;
  BS_RETURN_IF_BROKEN(check_matrix("gemm", "a", p.x));
  BS_RETURN_IF_BROKEN(check_matrix("gemm", "out", p.out));
  if (p.x.dtype == BS_F64) return broken_rule("gemm", "a", "float32, bfloat16 or float16", p.x.dtype);
  if (p.out.dtype != BS_F64) return broken_rule("gemm", "out", "float64", p.out.dtype);
  if (p.out.rows != p.x.rows || p.out.cols != p.x.cols)
    return broken_rule("gemm", "out", "of the shape of a", p.out.cols);
  parallel_for(p.x.rows, std::max<int64_t>(1, p.x.cols), launch->threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      double* out = reinterpret_cast<double*>(element_at(p.out, row, 0));
      for (int64_t col = 0; col < p.x.cols; ++col) out[col] = load_as_float(p.x, row, col);
    }
  });
  return ok_status();
}

}  // namespace blockscale::cpu
