// SPDX-License-Identifier: Apache-2.0
// L3: which kernel and cluster should run a GEMM: a pure function of the problem, the device and the kernels that are
// built. The score is an estimate from published figures (machine.h), never a measurement; autotuning measures.
//
// It counts, for each plan, the clocks that the tensor cores, shared memory, the SM's port, L2 and DRAM would need
// alone. The largest bounds the plan; of two plans with one bound the one with less work in all wins. docs/dispatch.md
// has the rules in words.
#pragma once
#include <string>
#include <vector>

#include "dispatch/registry.h"

namespace blockscale {
namespace dispatch {

struct GemmQuestion {
  int32_t arch;
  int32_t multiprocessors;
  KernelSet built;
  int64_t m, n, k;
  int32_t output;        // BsGemmOutput
  bool has_c;            // D reads a C of its own size
  bool batch_invariant;  // a row of D must not depend on M
};

enum class Bound { kMath, kShared, kFill, kDecode, kEpilogue, kL2, kDram };
const char* name_of(Bound bound);

struct GemmEstimate {
  BsGemmPlan plan;
  double clocks;     // the score: smaller is better
  double waves;      // clusters of work / clusters that fit on the device at once
  int64_t rounds;    // the same, rounded up: what the busiest SM does
  int64_t clusters;  // clusters of work
  int32_t slots;     // clusters that fit
  double padding;    // share of the products that are computed for rows, columns or K beyond the problem
  Bound bound;
};

// Whether this kernel may serve the question, cluster aside.
bool is_candidate(const GemmQuestion& question, int32_t kernel);

// What batch_invariant admits: one instruction K for each architecture, A as the MMA's A.
bool is_batch_invariant(const BsGemmKernelInfo& kernel);

// The best plan; false where no built kernel can serve the question. Allocates nothing.
bool choose(const GemmQuestion& question, BsGemmPlan* plan);

// Every legal plan, best first.
std::vector<GemmEstimate> rank(const GemmQuestion& question);

// One line: the plan, how it divides the problem, and what bounds it.
std::string explain(const GemmEstimate& estimate);

}  // namespace dispatch
}  // namespace blockscale
