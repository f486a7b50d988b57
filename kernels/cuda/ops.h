// SPDX-License-Identifier: Apache-2.0
// L2 on CUDA, the file to start with: what the backend offers, one function an operation, each in a file of its name.
// backend.cu checks the problem, makes the device current and calls these; they only enqueue. Next: load.cuh (how data
// is read), tiling.cuh (who works on what), cast/block.cuh (one block of sixteen).
#pragma once
#include <cuda_runtime.h>

#include "contract/adam.h"
#include "contract/gemm.h"
#include "contract/primary.h"
#include "contract/types.h"

namespace blockscale::cuda {

// Where a call runs, after the checks. `op` opens every error text.
struct Context {
  const char* op;
  cudaStream_t stream;
  int device;
  int multiprocessors;
  void* workspace;
};

BsStatus amax(const BsAmaxProblem& problem, const Context& context);
BsStatus quantize(const BsQuantizeProblem& problem, const Context& context);
BsStatus dequantize(const BsDequantizeProblem& problem, const Context& context);
BsStatus transpose(const BsTransposeProblem& problem, const Context& context);
BsStatus relayout(const BsRelayoutProblem& problem, const Context& context);
BsStatus epilogue(const BsEpilogueProblem& problem, const Context& context);
BsStatus primary(const BsPrimaryProblem& problem, const Context& context);
BsStatus adam(const BsAdamProblem& problem, const Context& context);
BsStatus gemm(const BsGemmProblem& problem, const BsGemmPlan& plan, const Context& context, int64_t workspace_bytes);
BsStatus gemm_check(const BsGemmProblem& problem, const BsGemmPlan& plan);

int64_t amax_workspace_bytes(const BsAmaxProblem& problem);
int64_t quantize_workspace_bytes(const BsQuantizeProblem& problem);
int64_t epilogue_workspace_bytes(const BsEpilogueProblem& problem);
int64_t primary_table_bytes(const BsPrimaryProblem& problem);
void pack_primary_table(const BsPrimaryProblem& problem, void* host_table);
int64_t gemm_workspace_bytes(const BsGemmProblem& problem, const BsGemmPlan& plan);

}  // namespace blockscale::cuda
