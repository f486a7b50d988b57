// SPDX-License-Identifier: Apache-2.0
// The CUDA library's door: the table of functions, and whether a device can run it. Each entry checks its problem,
// makes the device current for the call, and enqueues (ops.h).
#include <build_facts.h>

#include <cstdlib>

#include "contract/adam_checks.h"
#include "contract/backend.h"
#include "contract/checks.h"
#include "contract/primary_checks.h"
#include "cuda/device.h"
#include "cuda/export.h"
#include "cuda/gemm/registry.h"
#include "cuda/ops.h"

namespace blockscale::cuda {
namespace {

// Makes the launch's device current while work(context) enqueues.
template <class Work>
BsStatus on_device(const char* op, const BsLaunch& where, const Work& work) {
  const DeviceGuard guard(where.device);
  if (guard.error() != cudaSuccess) return cuda_failure(op, "making the device current", guard.error());
  Context context = {op, static_cast<cudaStream_t>(where.stream), where.device, 0, where.workspace};
  const cudaError_t error = multiprocessors(where.device, &context.multiprocessors);
  if (error != cudaSuccess) return cuda_failure(op, "asking the device", error);
  return work(context);
}

// One entry of the table: `check` from contract/checks.h, `work` from ops.h. A call without a workspace has null for
// `workspace_bytes`.
template <class Problem, BsStatus (*check)(const Problem&), BsStatus (*work)(const Problem&, const Context&),
          int64_t (*workspace_bytes)(const Problem&)>
BsStatus enqueue(const char* op, const Problem* problem, const BsLaunch* where) {
  if (!problem || !where) return failure(BS_INVALID, "%s: the problem and the launch must be non-null.", op);
  BS_RETURN_IF_BROKEN(check(*problem));
  if constexpr (workspace_bytes != nullptr) {
    BS_RETURN_IF_BROKEN(check_workspace(op, where->workspace ? where->workspace_bytes : 0, workspace_bytes(*problem)));
  }
  return on_device(op, *where, [&](const Context& context) { return work(*problem, context); });
}

int64_t amax_bytes(const BsAmaxProblem* p) { return amax_workspace_bytes(*p); }
int64_t quantize_bytes(const BsQuantizeProblem* p) { return quantize_workspace_bytes(*p); }
int64_t epilogue_bytes(const BsEpilogueProblem* p) { return epilogue_workspace_bytes(*p); }

BsStatus run_amax(const BsAmaxProblem* p, const BsLaunch* where) {
  return enqueue<BsAmaxProblem, check_amax, amax, amax_workspace_bytes>("amax", p, where);
}
BsStatus run_quantize(const BsQuantizeProblem* p, const BsLaunch* where) {
  return enqueue<BsQuantizeProblem, check_quantize, quantize, quantize_workspace_bytes>("quantize", p, where);
}
BsStatus run_dequantize(const BsDequantizeProblem* p, const BsLaunch* where) {
  return enqueue<BsDequantizeProblem, check_dequantize, dequantize, nullptr>("dequantize", p, where);
}
BsStatus run_transpose(const BsTransposeProblem* p, const BsLaunch* where) {
  return enqueue<BsTransposeProblem, check_transpose, transpose, nullptr>("transpose", p, where);
}
BsStatus run_relayout(const BsRelayoutProblem* p, const BsLaunch* where) {
  return enqueue<BsRelayoutProblem, check_relayout, relayout, nullptr>("relayout", p, where);
}
BsStatus run_epilogue(const BsEpilogueProblem* p, const BsLaunch* where) {
  return enqueue<BsEpilogueProblem, check_epilogue, epilogue, epilogue_workspace_bytes>("gemm", p, where);
}
BsStatus run_primary(const BsPrimaryProblem* p, const BsLaunch* where) {
  constexpr const char* kNames[] = {"partial_amax", "fused_scale", "partial_cast", "transpose"};
  const bool known = p && p->stage >= BS_PARTIAL_AMAX && p->stage <= BS_TRANSPOSE;
  return enqueue<BsPrimaryProblem, check_primary, primary, nullptr>(known ? kNames[p->stage] : "primary", p, where);
}
int64_t table_bytes(const BsPrimaryProblem* p) { return primary_table_bytes(*p); }
BsStatus pack_table(const BsPrimaryProblem* p, void* host_table) {
  BS_RETURN_IF_BROKEN(check_primary(*p));
  pack_primary_table(*p, host_table);
  return ok_status();
}
BsStatus run_adam(const BsAdamProblem* p, const BsLaunch* where) {
  return enqueue<BsAdamProblem, check_adam, adam, nullptr>("adam", p, where);
}

int32_t gemm_built(int32_t kernel) { return gemm_kernel(kernel) != nullptr; }
BsStatus check_plan(const BsGemmProblem* p, const BsGemmPlan* plan) { return gemm_check(*p, *plan); }
int64_t gemm_bytes(const BsGemmProblem* p, const BsGemmPlan* plan) { return gemm_workspace_bytes(*p, *plan); }
BsStatus run_gemm(const BsGemmProblem* p, const BsGemmPlan* plan, const BsLaunch* where) {
  if (!p || !plan || !where) return failure(BS_INVALID, "gemm: the problem, the plan and the launch must be non-null.");
  const int64_t given = where->workspace ? where->workspace_bytes : 0;
  return on_device("gemm", *where, [&](const Context& context) { return gemm(*p, *plan, context, given); });
}

constexpr BsBackend kBackend = {
    BLOCKSCALE_ABI_VERSION,
    "cuda",
    amax_bytes,
    quantize_bytes,
    epilogue_bytes,
    run_amax,
    run_quantize,
    run_dequantize,
    run_transpose,
    run_relayout,
    nullptr,
    nullptr,
    run_epilogue,
    table_bytes,
    pack_table,
    run_primary,
    run_adam,
    gemm_built,
    check_plan,
    gemm_bytes,
    run_gemm,
};

// Whether code for `target` ("90a", "100f", "120") runs on a device of compute capability major.minor: an `a` target on
// that one alone, others on later ones of the same major too.
bool runs_on(const char* target, char** end, int major, int minor) {
  const long number = std::strtol(target, end, 10);
  const bool same_major = number / 10 == major;
  return **end == 'a' ? same_major && number % 10 == minor : same_major && number % 10 <= minor;
}

bool built_for(int major, int minor) {
  for (const char* target = BS_CUDA_ARCHS; *target;) {
    char* end = nullptr;
    if (runs_on(target, &end, major, minor)) return true;
    while (*end && *end != ';') ++end;
    target = *end ? end + 1 : end;
  }
  return false;
}

}  // namespace
}  // namespace blockscale::cuda

extern "C" BLOCKSCALE_EXPORT const BsBackend* blockscale_cuda_backend(void) { return &blockscale::cuda::kBackend; }

extern "C" BLOCKSCALE_EXPORT const char* blockscale_cuda_targets(void) { return BS_CUDA_ARCHS; }

// Asks attributes only, so that no context is made on a device that will not be used.
extern "C" BLOCKSCALE_EXPORT BsStatus blockscale_cuda_probe(int32_t device) {
  using namespace blockscale;
  int devices = 0, major = 0, minor = 0;
  cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && (device < 0 || device >= devices))
    return failure(BS_INVALID, "cuda: device must be in 0..%d; got %d.", devices - 1, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return failure(BS_NOT_OFFERED, "cuda: no usable GPU or driver: %s (%s).", cudaGetErrorString(error),
                   cudaGetErrorName(error));
  }
  if (!cuda::built_for(major, minor))
    return failure(BS_NOT_OFFERED, "cuda: device %d has compute capability %d.%d; this library is built for %s.",
                   device, major, minor, BS_CUDA_ARCHS);
  return ok_status();
}
