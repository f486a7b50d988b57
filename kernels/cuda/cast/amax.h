// SPDX-License-Identifier: Apache-2.0
// The maxima that casts start from. Two steps: kernels leave partial maxima in a workspace, one slot each, so that
// nothing has to be cleared before and nothing depends on an order; then finish_amax, or the cast itself, reduces them.
#pragma once
#include "cuda/ops.h"

namespace blockscale::cuda {

constexpr int kMaxPartials = 1024;  // of a tensor: one a CTA

// Magnitudes of a tensor into *count <= kMaxPartials slots; the rest of the reduction is the caller's. x is not empty.
BsStatus tensor_partials(const BsMatrix& x, uint32_t* partials, int32_t* count, const Context& context);

// Finished maxima. The workspace is context.workspace, of the size told by the function below each.
BsStatus row_amax(const BsMatrix& x, float* amax, const Context& context);
int64_t row_amax_workspace(int64_t rows, int64_t cols);

// Of the columns, and in the same read of x of the rows, unless `rows` is null.
BsStatus column_amax(const BsMatrix& x, float* columns, float* rows, const Context& context);
int64_t column_amax_workspace(int64_t rows, int64_t cols, int32_t dtype, bool rows_too);

// out[i] = the largest of |in[i * stride_out + j * stride_depth]|, j < depth; 0 for depth 0; a NaN is stored as
// 7FC00000.
struct Reduction {
  const void* in;  // FP32
  float* out;
  int64_t count, depth, stride_out, stride_depth;
};
// Up to two in one launch.
BsStatus finish_amax(const Reduction* reductions, int count, const Context& context);

}  // namespace blockscale::cuda
