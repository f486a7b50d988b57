// SPDX-License-Identifier: Apache-2.0
// What the fused epilogue of a GEMM is told (docs/numerics.md sections 11.2 and 12): device pointers and options, the
// same struct for every kernel and architecture. Options are read in the kernel: a branch that a whole grid takes costs
// nothing beside a tile, and another instantiation costs a minute of compilation.
#pragma once
#include "contract/types.h"
#include "cuda/epilogue/accumulator.cuh"

namespace blockscale::cuda {

struct FusedParams : EpilogueLines {
  int32_t m, n;         // of D
  int32_t d_dtype;      // BsDtype of a float output
  int32_t return_kind;  // BsAmaxKind
  uint32_t* returned;   // magnitudes; zero before the launch

  // NVFP4 output.
  uint8_t* qdata;
  uint8_t* block_scale;  // SWIZZLED_128X4
  const float* out_amax;
  float* stored_amax;
  float out_range;
  bool out_per_row;

  static FusedParams make(const BsEpilogueProblem& p) {
    FusedParams params = {};
    static_cast<EpilogueLines&>(params) = EpilogueLines::make(p);
    params.m = static_cast<int32_t>(p.acc.rows);
    params.n = static_cast<int32_t>(p.acc.cols);
    params.d_dtype = p.d.dtype;
    params.return_kind = p.return_kind;
    params.returned = reinterpret_cast<uint32_t*>(p.returned_amax);
    params.qdata = p.quantized.qdata;
    params.block_scale = p.quantized.block_scale;
    params.out_amax = p.out_amax;
    params.stored_amax = p.quantized.amax;
    params.out_range = second_level_range(p.quantized.e4m3_max);
    params.out_per_row = p.quantized.scaling == BS_SCALING_ROW;
    return params;
  }
};

}  // namespace blockscale::cuda
