// SPDX-License-Identifier: Apache-2.0
// The kernels of gemm_kernels.def that this library holds. gemm_built.h is made by CMake: for each line, an entry that
// is the address of the kernel or null.
#include <gemm_built.h>

#include "cuda/gemm/registry.h"

namespace blockscale::cuda {
namespace {

struct Line {
  BsGemmKernelInfo info;
  const GemmKernel* kernel;
};

constexpr Line kLines[] = {
#define BS_GEMM_KERNEL(name, set, arch, m, n, k, sms, swapped, output, schedule) \
  {{#name, arch, m, n, k, sms, swapped, output, schedule}, BS_BUILT_##name},
#include "contract/gemm_kernels.def"
#undef BS_GEMM_KERNEL
};
constexpr int32_t kCount = sizeof(kLines) / sizeof(kLines[0]);

}  // namespace

const BsGemmKernelInfo* gemm_kernel_info(int32_t kernel) {
  return kernel >= 0 && kernel < kCount ? &kLines[kernel].info : nullptr;
}

const GemmKernel* gemm_kernel(int32_t kernel) {
  return kernel >= 0 && kernel < kCount ? kLines[kernel].kernel : nullptr;
}

}  // namespace blockscale::cuda
