// SPDX-License-Identifier: Apache-2.0
#include "cpu/backend.h"

namespace blockscale::cpu {
namespace {

// Scratch lives on the stack or in local vectors here: no device memory to ask for.
template <class Problem>
int64_t no_workspace(const Problem*) {
  return 0;
}

}  // namespace

const BsBackend& backend() {
  static const BsBackend table = {
      BLOCKSCALE_ABI_VERSION,
      "cpu",
      no_workspace<BsAmaxProblem>,
      no_workspace<BsQuantizeProblem>,
      no_workspace<BsEpilogueProblem>,
      amax,
      quantize,
      dequantize,
      transpose,
      relayout,
      widen,
      accumulate,
      epilogue,
  };
  return table;
}

}  // namespace blockscale::cpu
