// SPDX-License-Identifier: Apache-2.0
// The two launches that epilogue.cu chooses from. The problem is not empty.
#pragma once
#include "cuda/ops.h"

namespace blockscale::cuda {

BsStatus float_output(const BsEpilogueProblem& problem, const Context& context);
BsStatus nvfp4_output(const BsEpilogueProblem& problem, const Context& context);

// Pieces of a row that leave one partial maximum each for return_amax = "row".
int64_t float_output_pieces(int64_t n);
int64_t nvfp4_output_pieces(int64_t n);

}  // namespace blockscale::cuda
