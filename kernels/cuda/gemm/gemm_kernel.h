// SPDX-License-Identifier: Apache-2.0
// What one kernel of gemm_kernels.def gives to the host side: three functions over a prepared problem. Host code only.
#pragma once
#include "contract/gemm.h"
#include "cuda/epilogue/fused_params.cuh"
#include "cuda/ops.h"

namespace blockscale::cuda {

// A problem as a kernel takes it: pointers and pitches aligned for TMA, K padded to what a pitch allows, scales in
// SWIZZLED_128X4. On sm_90 `a` and `b` are decoded to BF16 and there are no scales.
struct PreparedGemm {
  int32_t m, n, k;
  const void* a;
  const void* b;
  const uint8_t* a_scales;
  const uint8_t* b_scales;
  void* d;           // float output; or codes
  int64_t d_stride;  // in elements
  FusedParams epilogue;
};

struct GemmKernel {
  // Whether CUTLASS takes it with this cluster.
  bool (*can_implement)(const PreparedGemm&, const BsGemmPlan&);
  // The same on every device: none of the kernels splits K.
  int64_t (*workspace_bytes)(const PreparedGemm&, const BsGemmPlan&);
  BsStatus (*run)(const PreparedGemm&, const BsGemmPlan&, const Context&, void* workspace);
};

}  // namespace blockscale::cuda
