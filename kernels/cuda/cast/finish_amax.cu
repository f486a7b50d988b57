// SPDX-License-Identifier: Apache-2.0
// Partial maxima to amaxes. Also what an empty problem runs: a maximum over nothing is 0, over one given value its |.|.
#include "cuda/cast/amax.h"
#include "cuda/launch.cuh"
#include "cuda/reduce.cuh"

namespace blockscale::cuda {
namespace {

constexpr int kThreads = 256;

struct Params {
  Reduction reductions[2];
};

// Slots that lie side by side are reduced by a CTA, others (side by side for different outputs) by a thread each.
bool by_cta(const Reduction& reduction) { return reduction.stride_depth == 1; }

__global__ void __launch_bounds__(kThreads) finish_amax_kernel(const __grid_constant__ Params p) {
  __shared__ uint32_t scratch[32];
  const Reduction& reduction = p.reductions[blockIdx.y];
  const uint32_t* in = static_cast<const uint32_t*>(reduction.in);
  if (reduction.stride_depth == 1) {
    for (int64_t i = blockIdx.x; i < reduction.count; i += gridDim.x) {
      uint32_t largest = 0;
      for (int64_t j = threadIdx.x; j < reduction.depth; j += kThreads)
        largest = umax(largest, in[i * reduction.stride_out + j] & kMagnitudeMask);
      largest = cta_max(largest, scratch);
      if (threadIdx.x == 0) reduction.out[i] = float_of(canonical_magnitude(largest));
    }
  } else {
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < reduction.count;
         i += int64_t{gridDim.x} * kThreads) {
      uint32_t largest = 0;
#pragma unroll 4
      for (int64_t j = 0; j < reduction.depth; ++j)
        largest = umax(largest, in[i * reduction.stride_out + j * reduction.stride_depth] & kMagnitudeMask);
      reduction.out[i] = float_of(canonical_magnitude(largest));
    }
  }
}

}  // namespace

BsStatus finish_amax(const Reduction* reductions, int count, const Context& context) {
  Params params = {};
  int used = 0;
  int64_t ctas = 0;
  for (int i = 0; i < count; ++i) {
    if (reductions[i].count == 0) continue;
    params.reductions[used++] = reductions[i];
    const int64_t wanted =
        by_cta(reductions[i]) ? reductions[i].count : (reductions[i].count + kThreads - 1) / kThreads;
    ctas = std::max(ctas, wanted);
  }
  if (used == 0) return ok_status();
  const dim3 grid(static_cast<unsigned>(one_wave(ctas, 8, context)), static_cast<unsigned>(used));
  return launch(finish_amax_kernel, grid, kThreads, context, params);
}

}  // namespace blockscale::cuda
