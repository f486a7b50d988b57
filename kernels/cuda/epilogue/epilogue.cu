// SPDX-License-Identifier: Apache-2.0
// The epilogue of a GEMM over an FP32 accumulator that is already in memory (docs/numerics.md sections 11.2 and 12):
// which kernel, and what an empty output still writes.
#include "contract/checks.h"
#include "cuda/cast/amax.h"
#include "cuda/epilogue/epilogue_kernels.h"

namespace blockscale::cuda {
namespace {

bool is_float(int32_t dtype) { return dtype == BS_F32 || dtype == BS_BF16 || dtype == BS_F16; }

BsStatus check_offered(const BsEpilogueProblem& p) {
  if (p.acc_fixed || (!p.acc_empty && p.acc.dtype != BS_F32))
    return failure(BS_NOT_OFFERED, "gemm: only a float32 accumulator is offered on CUDA.");
  if (!is_present(p.quantized) && !is_float(p.d.dtype))
    return failure(BS_NOT_OFFERED, "gemm: out_dtype must be float32, bfloat16 or float16 on CUDA.");
  if ((p.beta != 0.0f && !is_float(p.c.dtype)) || (p.bias.data && !is_float(p.bias.dtype)))
    return failure(BS_NOT_OFFERED, "gemm: c and bias must be float32, bfloat16 or float16 on CUDA.");
  return ok_status();
}

BsStatus store_empty(const BsEpilogueProblem& p, const Context& context) {
  Reduction reductions[2];
  int count = 0;
  if (p.return_kind != BS_AMAX_NONE)
    reductions[count++] = {nullptr, p.returned_amax, p.return_kind == BS_AMAX_ROW ? p.acc.rows : 1, 0, 1, 0};
  if (is_present(p.quantized))
    reductions[count++] = {p.out_amax, p.quantized.amax, p.quantized.scaling == BS_SCALING_ROW ? p.acc.rows : 1, 1, 1,
                           0};
  return finish_amax(reductions, count, context);
}

}  // namespace

BsStatus epilogue(const BsEpilogueProblem& problem, const Context& context) {
  BS_RETURN_IF_BROKEN(check_offered(problem));
  if (problem.acc.rows == 0 || problem.acc.cols == 0) return store_empty(problem, context);
  return is_present(problem.quantized) ? nvfp4_output(problem, context) : float_output(problem, context);
}

int64_t epilogue_workspace_bytes(const BsEpilogueProblem& problem) {
  const int64_t m = problem.acc.rows, n = problem.acc.cols;
  if (m <= 0 || n <= 0 || problem.return_kind == BS_AMAX_NONE) return 0;
  if (problem.return_kind == BS_AMAX_TENSOR) return kMaxPartials * 4;
  const int64_t pieces = is_present(problem.quantized) ? nvfp4_output_pieces(n) : float_output_pieces(n);
  return pieces > 1 ? pieces * m * 4 : 0;
}

}  // namespace blockscale::cuda
