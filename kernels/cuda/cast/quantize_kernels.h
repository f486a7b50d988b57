// SPDX-License-Identifier: Apache-2.0
// The launches that quantize.cu chooses from. x is not empty, and second levels are complete: given, partial or
// computed. Each writes codes, block scales with all their padding, and the stored amax.
#pragma once
#include "cuda/cast/second_level.cuh"
#include "cuda/ops.h"

namespace blockscale::cuda {

// (1,16) blocks along the rows.
BsStatus quantize_rowwise(const BsMatrix& x, const BsOperand& out, const SecondLevel& level, const Context& context);

// The same with each row's own amax, from one read of x: false where a row is too long to be kept on chip.
bool row_fits_on_chip(const BsMatrix& x);
BsStatus quantize_row_scaled(const BsMatrix& x, const BsOperand& out, const Context& context);

// (1,16) blocks along the columns, and if `rowwise` is present along the rows in the same read of x.
BsStatus quantize_columnwise(const BsMatrix& x, const BsOperand& rowwise, const SecondLevel& rowwise_level,
                             const BsOperand& columnwise, const SecondLevel& columnwise_level, const Context& context);

// (16,16) blocks: either orientation, or both.
BsStatus quantize_16x16(const BsMatrix& x, const BsOperand& rowwise, const BsOperand& columnwise,
                        const SecondLevel& level, const Context& context);

}  // namespace blockscale::cuda
