// SPDX-License-Identifier: Apache-2.0
// Largest magnitudes of a matrix, as bits: NaN above inf above every finite value, so that nothing is lost.
#pragma once
#include <vector>

#include "contract/types.h"

namespace blockscale::cpu {

uint32_t tensor_maximum(const BsMatrix& x, int threads);
// Any of the two may be null. rows: x.rows values, columns: x.cols values.
void row_and_column_maxima(const BsMatrix& x, uint32_t* rows, uint32_t* columns, int threads);

}  // namespace blockscale::cpu
