// SPDX-License-Identifier: Apache-2.0
// return_amax of a GEMM: where kernels leave maxima, and the step that finishes them.
#pragma once
#include "contract/checks.h"
#include "cuda/cast/amax.h"
#include "cuda/launch.cuh"
#include "cuda/reduce.cuh"
#include "numerics/bits.h"

namespace blockscale::cuda {

struct ReturnedAmax {
  uint32_t* of_cta;  // tensor: slot CTA; else null
  uint32_t* of_row;  // row: slot piece * rows + row; else null
  int64_t rows;

  // Where there is one slot only it is the result's own place.
  static ReturnedAmax make(const BsEpilogueProblem& p, int64_t pieces, int64_t ctas, const Context& context) {
    ReturnedAmax amax = {nullptr, nullptr, p.acc.rows};
    uint32_t* const result = reinterpret_cast<uint32_t*>(p.returned_amax);
    uint32_t* const workspace = static_cast<uint32_t*>(context.workspace);
    if (p.return_kind == BS_AMAX_TENSOR) amax.of_cta = ctas == 1 ? result : workspace;
    if (p.return_kind == BS_AMAX_ROW) amax.of_row = pieces == 1 ? result : workspace;
    return amax;
  }

  BsStatus finish(const BsEpilogueProblem& p, int64_t pieces, int64_t ctas, const Context& context) const {
    Reduction reduction = {context.workspace, p.returned_amax, 1, ctas, 0, 1};
    if (of_row) reduction = {context.workspace, p.returned_amax, rows, pieces, 1, rows};
    return reduction.depth > 1 && (of_cta || of_row) ? finish_amax(&reduction, 1, context) : ok_status();
  }

  __device__ __forceinline__ void store_row(int64_t piece, int64_t row, uint32_t magnitude) const {
    of_row[piece * rows + row] = canonical_magnitude(magnitude);
  }
  // All threads of the CTA.
  __device__ __forceinline__ void store_cta(uint32_t magnitude, uint32_t* scratch) const {
    if (!of_cta) return;
    magnitude = cta_max(magnitude, scratch);
    if (threadIdx.x == 0) of_cta[blockIdx.x] = canonical_magnitude(magnitude);
  }
};

}  // namespace blockscale::cuda
