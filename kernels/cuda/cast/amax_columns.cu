// SPDX-License-Identifier: Apache-2.0
// Maxima of magnitudes over each column, and if wanted over each row in the same read of x. A CTA takes a slab of rows
// of 32 * 16 bytes: a lane keeps the maxima of its 16 bytes of columns packed, warps take every eighth row.
#include "contract/checks.h"
#include "cuda/cast/amax.h"
#include "cuda/launch.cuh"
#include "cuda/load.cuh"
#include "cuda/reduce.cuh"
#include "cuda/tiling.cuh"

namespace blockscale::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kLoads = 4;              // rows in flight for each warp
constexpr int64_t kTargetCtas = 1024;  // slabs are made until there are so many CTAs, of at least kSlabRows rows
constexpr int64_t kSlabRows = 64;

struct Params {
  const void* x;
  int64_t row_stride, rows, cols;
  int64_t slab_rows, strips;  // strips of 512 bytes across
  uint32_t* columns;          // slot slab * cols + column
  uint32_t* row_maxima;       // slot strip * rows + row; null: not wanted
  bool vector;
};

struct Plan {
  int64_t strips, slab_rows, slabs;
  static Plan make(int64_t rows, int64_t cols, int32_t dtype) {
    Plan plan;
    plan.strips = ceil_div(cols, 512 / dtype_bytes(dtype));
    const int64_t wanted =
        std::max<int64_t>(1, std::min(ceil_div(kTargetCtas, plan.strips), ceil_div(rows, kSlabRows)));
    plan.slab_rows = ceil_div(rows, wanted);
    plan.slabs = ceil_div(rows, plan.slab_rows);
    return plan;
  }
};

template <class Tag>
__global__ void __launch_bounds__(kThreads, 4) amax_columns_kernel(const __grid_constant__ Params p) {
  using Element = typename Tag::Element;
  constexpr int kColumns = 512 / sizeof(Element);
  __shared__ uint4 of_warp[kWarps][32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int64_t strip = blockIdx.x % p.strips, slab = blockIdx.x / p.strips;
  const int64_t col = strip * kColumns + lane * (kColumns / 32);
  const int64_t end = min((slab + 1) * p.slab_rows, p.rows);

  const Element* x = static_cast<const Element*>(p.x) + col;
  uint4 largest = make_uint4(0, 0, 0, 0);
  for (int64_t row = slab * p.slab_rows + warp; row < end; row += kWarps * kLoads) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      loaded[j] = make_uint4(0, 0, 0, 0);
      if (row + j * kWarps < end)
        loaded[j] = load_16_bytes<Tag>(x + (row + j * kWarps) * p.row_stride, p.cols - col, p.vector);
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const uint4 magnitude = packed_magnitude<Tag>(loaded[j]);
      largest = packed_max<Tag>(largest, magnitude);
      if (p.row_maxima && row + j * kWarps < end) {  // the same in the whole warp
        const uint32_t of_row = warp_max(largest_of_packed<Tag>(magnitude));
        if (lane == 0) p.row_maxima[strip * p.rows + row + j * kWarps] = canonical_magnitude(of_row);
      }
    }
  }
  of_warp[warp][lane] = largest;
  __syncthreads();

  const int column = threadIdx.x;  // of the strip
  if (column < kColumns && strip * kColumns + column < p.cols) {
    uint32_t best = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
      best = umax(best, magnitude_bits(widen<Tag>(reinterpret_cast<const Element*>(of_warp[w])[column])));
    p.columns[slab * p.cols + strip * kColumns + column] = canonical_magnitude(best);
  }
}

}  // namespace

int64_t column_amax_workspace(int64_t rows, int64_t cols, int32_t dtype, bool rows_too) {
  if (rows == 0 || cols == 0) return 0;
  const Plan plan = Plan::make(rows, cols, dtype);
  const int64_t columns = plan.slabs > 1 ? plan.slabs * cols * 4 : 0;
  return columns + (rows_too && plan.strips > 1 ? plan.strips * rows * 4 : 0);
}

BsStatus column_amax(const BsMatrix& x, float* columns, float* rows, const Context& context) {
  const Plan plan = Plan::make(x.rows, x.cols, x.dtype);
  Params params = {x.data,  x.row_stride,      x.rows, x.cols, plan.slab_rows, plan.strips, nullptr,
                   nullptr, has_vector_rows(x)};
  // What one CTA sees whole goes straight to its place; the rest is reduced from the workspace by one more launch.
  uint32_t* workspace = static_cast<uint32_t*>(context.workspace);
  Reduction reductions[2];
  int count = 0;
  if (plan.slabs > 1) {
    params.columns = workspace;
    workspace += plan.slabs * x.cols;
    reductions[count++] = {params.columns, columns, x.cols, plan.slabs, 1, x.cols};
  } else {
    params.columns = reinterpret_cast<uint32_t*>(columns);
  }
  if (rows && plan.strips > 1) {
    params.row_maxima = workspace;
    reductions[count++] = {params.row_maxima, rows, x.rows, plan.strips, 1, x.rows};
  } else if (rows) {
    params.row_maxima = reinterpret_cast<uint32_t*>(rows);
  }
  BS_RETURN_IF_BROKEN(with_dtype(x.dtype, [&](auto tag) {
    return launch(amax_columns_kernel<decltype(tag)>, plan.strips * plan.slabs, kThreads, context, params);
  }));
  return count ? finish_amax(reductions, count, context) : ok_status();
}

}  // namespace blockscale::cuda
