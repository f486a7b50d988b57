// SPDX-License-Identifier: Apache-2.0
// Which kernels a quantize call runs. A given amax costs one launch; a tensor's own one more, whose partial maxima the
// cast reduces itself; a row's own none where the row stays on chip, else those of amax.h.
#include "contract/checks.h"
#include "cuda/cast/amax.h"
#include "cuda/cast/quantize_kernels.h"
#include "cuda/load.cuh"

namespace blockscale::cuda {
namespace {

struct Wants {
  bool rowwise, columnwise;  // operands
  bool row_scaled;
  bool own_rowwise, own_columnwise;  // whose second level is the maximum of x
  static Wants of(const BsQuantizeProblem& p) {
    Wants wants;
    wants.rowwise = is_present(p.rowwise);
    wants.columnwise = is_present(p.columnwise);
    wants.row_scaled = (wants.rowwise ? p.rowwise.scaling : p.columnwise.scaling) == BS_SCALING_ROW;
    wants.own_rowwise = wants.rowwise && !p.rowwise_amax;
    wants.own_columnwise = wants.columnwise && !p.columnwise_amax;
    return wants;
  }
};

// Nothing to cast: 0 for an own amax, |.| of a given one.
BsStatus store_empty(const BsQuantizeProblem& p, const Wants& wants, const Context& context) {
  Reduction reductions[2];
  int count = 0;
  const auto add = [&](const BsOperand& operand, const float* given) {
    const int64_t outputs = wants.row_scaled ? operand.rows : 1;
    reductions[count++] = {given, operand.amax, outputs, given ? 1 : 0, 1, 0};
  };
  if (wants.rowwise) add(p.rowwise, p.rowwise_amax);
  if (wants.columnwise) add(p.columnwise, p.columnwise_amax);
  return finish_amax(reductions, count, context);
}

// Row scaling: what is not given is computed into the operand's amax. Returns through the two pointers what the cast
// reads.
BsStatus complete_row_amaxes(const BsQuantizeProblem& p, const Wants& wants, const float** rowwise,
                             const float** columnwise, const Context& context) {
  *rowwise = wants.own_rowwise ? p.rowwise.amax : p.rowwise_amax;
  *columnwise = wants.own_columnwise ? p.columnwise.amax : p.columnwise_amax;
  if (wants.own_columnwise)
    return column_amax(p.x, p.columnwise.amax, wants.own_rowwise ? p.rowwise.amax : nullptr, context);
  if (wants.own_rowwise) return row_amax(p.x, p.rowwise.amax, context);
  return ok_status();
}

BsStatus cast(const BsQuantizeProblem& p, const Wants& wants, const SecondLevel& rowwise, const SecondLevel& columnwise,
              const Context& context) {
  if (p.block_rows == 16) {
    const BsOperand absent = {};
    if (!wants.rowwise) return quantize_16x16(p.x, absent, p.columnwise, columnwise, context);
    if (!wants.columnwise) return quantize_16x16(p.x, p.rowwise, absent, rowwise, context);
    return quantize_16x16(p.x, p.rowwise, p.columnwise, rowwise, context);
  }
  if (wants.columnwise) return quantize_columnwise(p.x, p.rowwise, rowwise, p.columnwise, columnwise, context);
  return quantize_rowwise(p.x, p.rowwise, rowwise, context);
}

}  // namespace

BsStatus quantize(const BsQuantizeProblem& p, const Context& context) {
  const Wants wants = Wants::of(p);
  if (!wants.rowwise && !wants.columnwise) return ok_status();
  if (p.x.rows == 0 || p.x.cols == 0) return store_empty(p, wants, context);

  const float* rowwise_amax = p.rowwise_amax;
  const float* columnwise_amax = p.columnwise_amax;
  uint32_t* partials = nullptr;
  int32_t count = 0;
  if (wants.row_scaled) {
    if (wants.own_rowwise && !wants.columnwise && row_fits_on_chip(p.x))
      return quantize_row_scaled(p.x, p.rowwise, context);
    BS_RETURN_IF_BROKEN(complete_row_amaxes(p, wants, &rowwise_amax, &columnwise_amax, context));
  } else if (wants.own_rowwise || wants.own_columnwise) {
    partials = static_cast<uint32_t*>(context.workspace);
    BS_RETURN_IF_BROKEN(tensor_partials(p.x, partials, &count, context));
  }
  return cast(p, wants, SecondLevel::make(p.rowwise, rowwise_amax, partials, count),
              SecondLevel::make(p.columnwise, columnwise_amax, partials, count), context);
}

int64_t quantize_workspace_bytes(const BsQuantizeProblem& p) {
  const Wants wants = Wants::of(p);
  if (p.x.rows <= 0 || p.x.cols <= 0 || !(wants.own_rowwise || wants.own_columnwise)) return 0;
  if (!wants.row_scaled) return kMaxPartials * 4;
  if (wants.own_columnwise) return column_amax_workspace(p.x.rows, p.x.cols, p.x.dtype, wants.own_rowwise);
  if (!wants.columnwise && row_fits_on_chip(p.x)) return 0;
  return row_amax_workspace(p.x.rows, p.x.cols);
}

}  // namespace blockscale::cuda
