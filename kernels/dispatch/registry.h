// SPDX-License-Identifier: Apache-2.0
// L3: the GEMM kernels as a table, from ../contract/gemm_kernels.def. It lists all of them, built or not, so that the
// choice can be tested on a machine without a GPU. Next: heuristic.h, which ranks them.
#pragma once
#include "contract/gemm.h"

namespace blockscale {
namespace dispatch {

struct GemmKernel {
  BsGemmKernelInfo info;
  bool core;  // in the set CORE, which is built always
};

int32_t kernel_count();

// Null where no kernel has this index, that of a BsGemmPlan.
const GemmKernel* kernel_at(int32_t index);

// The index of a name, or -1.
int32_t find_kernel(const char* name);

// K of the kernel's MMA instruction. How products are grouped before they are added to the accumulator follows from it.
int32_t instruction_k(const BsGemmKernelInfo& kernel);

// Kernels as a set: bit i is index i. Which of them a library was built with is such a set.
using KernelSet = uint64_t;
constexpr int32_t kMaxKernels = 64;
inline KernelSet set_of(int32_t index) { return KernelSet{1} << index; }

}  // namespace dispatch
}  // namespace blockscale
