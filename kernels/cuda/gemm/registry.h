// SPDX-License-Identifier: Apache-2.0
// A kernel by its index in gemm_kernels.def.
#pragma once
#include "cuda/gemm/gemm_kernel.h"

namespace blockscale::cuda {

// Null: no such line.
const BsGemmKernelInfo* gemm_kernel_info(int32_t kernel);
// Null: no such line, or a kernel that this library was built without.
const GemmKernel* gemm_kernel(int32_t kernel);

}  // namespace blockscale::cuda
