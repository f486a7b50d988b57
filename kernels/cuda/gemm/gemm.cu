// SPDX-License-Identifier: Apache-2.0
// A GEMM with a fused epilogue, the host side: a plan's kernel, its operands and output staged where they must be, the
// launch. Follow a call here: check -> prepare -> stage -> run -> unstage. docs/gemm_walk.md tells the whole way.
#include <build_facts.h>

#include "contract/checks.h"
#include "cuda/device.h"
#include "cuda/gemm/registry.h"
#include "cuda/gemm/staging.h"

namespace blockscale::cuda {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 31;  // CUTLASS's problem shapes are 32-bit

struct Staged {
  StagedOperand a, b;
  StagedRows rows;    // float output, or codes
  StagedRows scales;  // of an NVFP4 output
  int64_t kernel_workspace_bytes;
  uint8_t* kernel_workspace;
  PreparedGemm prepared;
};

// Everything a plan needs, in a workspace; `base` null: only its size and the prepared sizes.
Staged prepare(const BsGemmProblem& p, const BsGemmPlan& plan, void* base, int64_t* used) {
  const BsGemmKernelInfo& info = *gemm_kernel_info(plan.kernel);
  const BsEpilogueProblem& e = p.epilogue;
  Workspace workspace(base);
  // Both operands take the same K: pitches of K/2 bytes are multiples of 16 where K is one of 32.
  const int64_t k = info.arch == 90 ? p.a.k : round_up(p.a.k, 32);
  Staged s = {};
  s.a = plan_operand(p.a, info, k, workspace);
  s.b = plan_operand(p.b, info, k, workspace);
  if (is_present(e.quantized)) {
    // Codes: the collective's TMA, or eight bytes from the node itself, which then wants the matrix without gaps.
    const bool from_node = info.arch == 90 || info.arch == 120;
    s.rows = plan_rows(e.quantized.qdata, e.quantized.k / 2, e.quantized.rows, e.quantized.k / 2, from_node ? 8 : 16,
                       workspace);
    const int64_t bytes = ScaleGrid::make(e.quantized.rows, e.quantized.k, true).bytes();
    s.scales = plan_rows(e.quantized.block_scale, bytes, 1, bytes, 4, workspace);
  } else {
    const int64_t element = dtype_bytes(e.d.dtype);
    s.rows = plan_rows(e.d.data, e.d.row_stride * element, e.d.rows, e.d.cols * element, 16, workspace);
  }
  PreparedGemm& out = s.prepared;
  out.m = static_cast<int32_t>(p.a.rows);
  out.n = static_cast<int32_t>(p.b.rows);
  out.k = static_cast<int32_t>(k);
  out.a = s.a.data();
  out.b = s.b.data();
  out.a_scales = s.a.scales();
  out.b_scales = s.b.scales();
  out.d = s.rows.data();
  out.d_stride = is_present(e.quantized) ? s.rows.pitch() * 2 : s.rows.pitch() / dtype_bytes(e.d.dtype);
  out.epilogue = FusedParams::make(e);
  if (is_present(e.quantized)) {
    out.epilogue.qdata = s.rows.data();
    out.epilogue.block_scale = s.scales.data();
  }
  const GemmKernel* kernel = gemm_kernel(plan.kernel);
  s.kernel_workspace_bytes = kernel->workspace_bytes(out, plan);
  s.kernel_workspace = workspace.take(s.kernel_workspace_bytes);
  *used = workspace.used();
  return s;
}

BsStatus check_offered(const BsGemmProblem& p, const BsGemmPlan& plan) {
  const BsGemmKernelInfo* info = gemm_kernel_info(plan.kernel);
  if (!info) return broken_rule("gemm", "plan.kernel", "an index of the kernel table", plan.kernel);
  if (!gemm_kernel(plan.kernel))
    return failure(BS_NOT_OFFERED,
                   "gemm: kernel %s is not in this build (targets %s). Build with its target, and "
                   "BLOCKSCALE_GEMM_KERNELS=full.",
                   info->name, BS_CUDA_ARCHS);
  BS_RETURN_IF_BROKEN(check_gemm(p));
  if (p.a.rows >= kMaxSize || p.b.rows >= kMaxSize || p.a.k >= kMaxSize)
    return failure(BS_NOT_OFFERED, "gemm: M, N and K must be below 2^31 for the fused kernels.");
  const BsEpilogueProblem& e = p.epilogue;
  const int32_t output = is_present(e.quantized) ? BS_OUTPUT_NVFP4
                         : e.d.dtype == BS_F32   ? BS_OUTPUT_32BIT
                                                 : BS_OUTPUT_16BIT;
  if (info->output != output)
    return failure(BS_INVALID, "gemm: plan.kernel must be one for this output; got %s.", info->name);
  if (is_present(e.quantized) && e.quantized.layout != BS_SWIZZLED_128X4)
    return failure(BS_NOT_OFFERED, "gemm: an NVFP4 output must be in SWIZZLED_128X4.");
  if (!is_present(e.quantized) && e.d.dtype == BS_F64) return failure(BS_NOT_OFFERED, "gemm: no float64 output.");
  return ok_status();
}

// The kernel's own question looks at sizes and pitches; pointers into the workspace are aligned by construction.
BsStatus check_kernel(const Staged& s, const BsGemmPlan& plan) {
  if (gemm_kernel(plan.kernel)->can_implement(s.prepared, plan)) return ok_status();
  return failure(BS_NOT_OFFERED, "gemm: kernel %s with cluster %dx%d does not take M=%d N=%d K=%d.",
                 gemm_kernel_info(plan.kernel)->name, plan.cluster_m, plan.cluster_n, s.prepared.m, s.prepared.n,
                 s.prepared.k);
}

}  // namespace

BsStatus gemm_check(const BsGemmProblem& p, const BsGemmPlan& plan) {
  BS_RETURN_IF_BROKEN(check_offered(p, plan));
  int64_t used;
  return check_kernel(prepare(p, plan, nullptr, &used), plan);
}

int64_t gemm_workspace_bytes(const BsGemmProblem& p, const BsGemmPlan& plan) {
  if (check_offered(p, plan).code != BS_OK) return 0;
  int64_t used;
  prepare(p, plan, nullptr, &used);
  return used;
}

BsStatus gemm(const BsGemmProblem& p, const BsGemmPlan& plan, const Context& context, int64_t workspace_bytes) {
  BS_RETURN_IF_BROKEN(check_offered(p, plan));
  int64_t used;
  const Staged s = prepare(p, plan, context.workspace, &used);
  BS_RETURN_IF_BROKEN(check_workspace(context.op, workspace_bytes, used));
  BS_RETURN_IF_BROKEN(check_kernel(s, plan));
  BS_RETURN_IF_BROKEN(stage(s.a, context));
  BS_RETURN_IF_BROKEN(stage(s.b, context));
  if (p.epilogue.return_kind != BS_AMAX_NONE) {
    const int64_t values = p.epilogue.return_kind == BS_AMAX_ROW ? p.a.rows : 1;
    const cudaError_t error =
        cudaMemsetAsync(p.epilogue.returned_amax, 0, static_cast<size_t>(values) * 4, context.stream);
    if (error != cudaSuccess) return cuda_failure(context.op, "clearing returned_amax", error);
  }
  BS_RETURN_IF_BROKEN(gemm_kernel(plan.kernel)->run(s.prepared, plan, context, s.kernel_workspace));
  BS_RETURN_IF_BROKEN(unstage(s.rows, context));
  return is_present(p.epilogue.quantized) ? unstage(s.scales, context) : ok_status();
}

}  // namespace blockscale::cuda
