// SPDX-License-Identifier: Apache-2.0
// The transposes of a list of checked problems.
#pragma once
#include "contract/types.h"

namespace blockscale::cpu {

void transpose_list(const BsTransposeProblem* items, int64_t count, int threads);

}  // namespace blockscale::cpu
