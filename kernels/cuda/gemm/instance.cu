// SPDX-License-Identifier: Apache-2.0
// One line of gemm_kernels.def, compiled: CMake builds this file once for each, with the fields of the line as macros.
#include "contract/gemm.h"
#if BS_ARCH == 90
#include "cuda/gemm/sm90.cuh"
#elif BS_ARCH == 120
#include "cuda/gemm/sm120.cuh"
#else
#include "cuda/gemm/sm100.cuh"
#endif

namespace blockscale::cuda {
namespace {

#if BS_ARCH == 90 || BS_ARCH == 120
using Nvfp4 = OutputNvfp4Quads;
#else
using Nvfp4 = OutputNvfp4Rows;
#endif
using Output = std::conditional_t<BS_OUTPUT == BS_OUTPUT_NVFP4, Nvfp4,
                                  std::conditional_t<BS_OUTPUT == BS_OUTPUT_32BIT, Output32Bit, Output16Bit>>;

#if BS_ARCH == 90
using Gemm = Sm90Gemm<BS_TILE_M, BS_TILE_N, BS_TILE_K, Output>;
#elif BS_ARCH == 120
using Gemm = Sm120Gemm<BS_TILE_M, BS_TILE_N, BS_TILE_K, BS_SCHEDULE == BS_PINGPONG, Output>;
#else
using Gemm = Sm100Gemm<BS_TILE_M, BS_TILE_N, BS_TILE_K, BS_SMS, BS_SWAPPED, Output>;
#endif
static_assert(Gemm::kStages >= 3, "fewer than three stages cannot hide a load");

}  // namespace

extern const GemmKernel BS_SYMBOL = Adapter<Gemm>::kEntry;

}  // namespace blockscale::cuda
