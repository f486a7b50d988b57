// SPDX-License-Identifier: Apache-2.0
// The table of registry.h: one explicit list, no registration at start-up, which a linker could drop.
#include "dispatch/registry.h"

#include <cstring>

namespace blockscale {
namespace dispatch {
namespace {

enum KernelGroup { CORE, FULL };

constexpr GemmKernel kKernels[] = {
#define BS_GEMM_KERNEL(name, group, arch, m, n, k, sms, swapped, output, schedule) \
  {{#name, arch, m, n, k, sms, swapped, output, schedule}, group == CORE},
#include "contract/gemm_kernels.def"
#undef BS_GEMM_KERNEL
};
constexpr int32_t kCount = sizeof kKernels / sizeof kKernels[0];
static_assert(kCount <= kMaxKernels, "a KernelSet has a bit for each kernel");

}  // namespace

int32_t kernel_count() { return kCount; }

const GemmKernel* kernel_at(int32_t index) { return index >= 0 && index < kCount ? &kKernels[index] : nullptr; }

int32_t find_kernel(const char* name) {
  for (int32_t i = 0; i < kCount; ++i)
    if (!std::strcmp(kKernels[i].info.name, name)) return i;
  return -1;
}

int32_t instruction_k(const BsGemmKernelInfo& kernel) {
  if (kernel.arch == 90) return 16;                           // wgmma on BF16
  if (kernel.arch == 103 && kernel.tile_k == 768) return 96;  // the FP4 instruction that sm_103 adds
  return 64;
}

}  // namespace dispatch
}  // namespace blockscale
