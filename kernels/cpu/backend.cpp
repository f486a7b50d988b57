// SPDX-License-Identifier: Apache-2.0
#include "cpu/backend.h"

#include "contract/status.h"

namespace blockscale::cpu {
namespace {

// Scratch lives on the stack or in local vectors here: no device memory to ask for.
template <class Problem>
int64_t no_workspace(const Problem*) {
  return 0;
}

// Nor a table: items are read where they stand.
int64_t primary_table_bytes(const BsPrimaryProblem*) { return 0; }
BsStatus pack_primary_table(const BsPrimaryProblem*, void*) { return ok_status(); }

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
      primary_table_bytes,
      pack_primary_table,
      primary,
      adam,
      nullptr,  // fused GEMMs
      nullptr,
      nullptr,
      nullptr,
  };
  return table;
}

}  // namespace blockscale::cpu
