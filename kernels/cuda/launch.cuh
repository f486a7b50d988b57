// SPDX-License-Identifier: Apache-2.0
// The one place where a kernel is launched.
#pragma once
#include <algorithm>

#include "cuda/device.h"
#include "cuda/ops.h"

namespace blockscale::cuda {

// CTAs for `tiles` pieces of work when `per_multiprocessor` of them run at once: one full wave that loops, so that what
// a CTA computes once (a reduction of partial maxima, a division) is spread over many tiles.
inline int64_t one_wave(int64_t tiles, int per_multiprocessor, const Context& context) {
  const int64_t wave = static_cast<int64_t>(context.multiprocessors) * per_multiprocessor;
  return std::max<int64_t>(1, std::min(tiles, wave));
}

// Every kernel takes one struct.
template <class Params>
BsStatus launch(void (*kernel)(Params), dim3 grid, int threads, const Context& context, const Params& params) {
  void* arguments[] = {const_cast<Params*>(&params)};
  const cudaError_t error = cudaLaunchKernel(kernel, grid, dim3(threads), arguments, 0, context.stream);
  return error == cudaSuccess ? ok_status() : cuda_failure(context.op, "a kernel launch", error);
}

template <class Params>
BsStatus launch(void (*kernel)(Params), int64_t ctas, int threads, const Context& context, const Params& params) {
  return launch(kernel, dim3(static_cast<unsigned>(ctas)), threads, context, params);
}

}  // namespace blockscale::cuda
