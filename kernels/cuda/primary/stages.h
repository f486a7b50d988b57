// SPDX-License-Identifier: Apache-2.0
// The stages of primary weights on CUDA, each in a file of its name; primary.cu chooses. Problems are checked.
#pragma once
#include "contract/primary.h"
#include "cuda/ops.h"

namespace blockscale::cuda {

BsStatus partial_amax(const BsPrimaryProblem& problem, const Context& context);
BsStatus fused_scale(const BsPrimaryProblem& problem, const Context& context);
BsStatus partial_cast(const BsPrimaryProblem& problem, const Context& context);
BsStatus transpose_list(const BsPrimaryProblem& problem, const Context& context);

// Bytes of the table of a list, 0 if its items fit in the parameters of a kernel; and what stands in it.
int64_t partial_amax_table_bytes(int64_t count);
int64_t fused_scale_table_bytes(int64_t count);
int64_t partial_cast_table_bytes(int64_t count);
int64_t transpose_table_bytes(int64_t count);
void pack_partial_amax(const BsPrimaryProblem& problem, void* table);
void pack_fused_scale(const BsPrimaryProblem& problem, void* table);
void pack_partial_cast(const BsPrimaryProblem& problem, void* table);
void pack_transpose(const BsPrimaryProblem& problem, void* table);

}  // namespace blockscale::cuda
