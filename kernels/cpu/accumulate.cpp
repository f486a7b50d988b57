// SPDX-License-Identifier: Apache-2.0
// One K chunk of an exact matrix product into 64-bit integers. Every product of two codes and two block scales is a
// multiple of 2^-20 below 2^23, so an FP64 sum of at most 1,024 of them is exact in any order, and an int64 in units of
// 2^-20 holds 2^20 of them (docs/numerics.md section 11.1).
#include <cmath>

#include "contract/status.h"
#include "cpu/backend.h"
#include "cpu/parallel.h"

namespace blockscale::cpu {

BsStatus accumulate(const BsAccumulateProblem* problem, const BsLaunch* launch) {
  const BsAccumulateProblem& p = *problem;
  if (p.count < 0) return broken_rule("gemm", "count", "non-negative", p.count);
  if (p.count > 0 && (!p.products || !p.sums)) return broken_rule("gemm", "products", "a non-null pointer", 0);
  parallel_for(p.count, 1, launch->threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) p.sums[i] += static_cast<int64_t>(p.products[i] * 0x1p20);
  });
  return ok_status();
}

}  // namespace blockscale::cpu
