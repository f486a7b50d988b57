// SPDX-License-Identifier: Apache-2.0
// Maxima of magnitudes over a tensor and over each row: warps take spans of rows, 16 bytes a lane and four loads in
// flight. Columns are in amax_columns.cu.
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
constexpr int kCtasPerMultiprocessor = 4;
constexpr int kLoads = 4;            // in flight for each lane
constexpr int64_t kRowItems = 4096;  // pieces that keep a GPU busy: rows are split until there are so many

struct Params {
  const void* x;
  int64_t row_stride, rows, cols;
  int64_t span, spans;  // of a row: elements of each, a multiple of 16 bytes, and how many
  uint32_t* out;        // tensor: one slot a CTA; rows: slot row * spans + span
  bool vector;
};

// The largest magnitude of a lane's share of elements begin..end of a row.
template <class Tag>
__device__ __forceinline__ uint32_t lane_max(const Params& p, int64_t row, int64_t begin, int64_t end) {
  using Element = typename Tag::Element;
  constexpr int kVector = 16 / sizeof(Element);
  const Element* x = static_cast<const Element*>(p.x) + row * p.row_stride;
  uint4 largest = make_uint4(0, 0, 0, 0);
  for (int64_t i = begin + (threadIdx.x & 31) * kVector; i < end; i += 32 * kVector * kLoads) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int64_t at = i + j * 32 * kVector;
      loaded[j] = load_16_bytes<Tag>(x + at, end - at, p.vector);
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) largest = packed_max<Tag>(largest, packed_magnitude<Tag>(loaded[j]));
  }
  return largest_of_packed<Tag>(largest);
}

template <class Tag, bool kPerRow>
__global__ void __launch_bounds__(kThreads, kCtasPerMultiprocessor) amax_kernel(const __grid_constant__ Params p) {
  __shared__ uint32_t scratch[32];
  const uint32_t warp = threadIdx.x >> 5;
  uint32_t largest = 0;
  for (TileWalk walk(p.rows, p.spans, blockIdx.x * kWarps + warp, gridDim.x * kWarps); walk.inside(); walk.advance()) {
    const int64_t begin = walk.col * p.span;
    const int64_t end = min(begin + p.span, p.cols);
    const uint32_t found = lane_max<Tag>(p, walk.row, begin, end);
    if constexpr (kPerRow) {
      largest = warp_max(found);
      if ((threadIdx.x & 31) == 0) p.out[walk.row * p.spans + walk.col] = canonical_magnitude(largest);
    } else {
      largest = umax(largest, found);
    }
  }
  if constexpr (!kPerRow) {
    largest = cta_max(largest, scratch);
    if (threadIdx.x == 0) p.out[blockIdx.x] = canonical_magnitude(largest);
  }
}

// Spans of `spans` equal parts, in units of 1024 elements: whole rounds of a warp.
Params split_rows(const BsMatrix& x, int64_t spans) {
  Params params = {};
  params.x = x.data;
  params.row_stride = x.row_stride;
  params.rows = x.rows;
  params.cols = x.cols;
  params.span = round_up(ceil_div(x.cols, spans), 1024);
  params.spans = ceil_div(x.cols, params.span);
  params.vector = has_vector_rows(x);
  return params;
}

int64_t row_spans(int64_t rows, int64_t cols) {
  const int64_t wanted = std::max<int64_t>(1, std::min(ceil_div(kRowItems, rows), ceil_div(cols, 2048)));
  return ceil_div(cols, round_up(ceil_div(cols, wanted), 1024));  // what split_rows makes of it
}

}  // namespace

BsStatus tensor_partials(const BsMatrix& x, uint32_t* partials, int32_t* count, const Context& context) {
  BsMatrix flat = x;
  if (x.row_stride == x.cols || x.rows == 1) flat = {x.data, x.dtype, 1, x.rows * x.cols, x.rows * x.cols};
  Params params = split_rows(flat, ceil_div(flat.cols, 4096));
  params.out = partials;
  const int64_t items = params.rows * params.spans;
  const int64_t ctas =
      std::min<int64_t>(kMaxPartials, one_wave(ceil_div(items, kWarps), kCtasPerMultiprocessor, context));
  *count = static_cast<int32_t>(ctas);
  return with_dtype(
      x.dtype, [&](auto tag) { return launch(amax_kernel<decltype(tag), false>, ctas, kThreads, context, params); });
}

int64_t row_amax_workspace(int64_t rows, int64_t cols) {
  if (rows == 0 || cols == 0) return 0;
  const int64_t spans = row_spans(rows, cols);
  return spans > 1 ? rows * spans * 4 : 0;
}

BsStatus row_amax(const BsMatrix& x, float* amax, const Context& context) {
  Params params = split_rows(x, row_spans(x.rows, x.cols));
  const bool finished = params.spans == 1;
  params.out = static_cast<uint32_t*>(finished ? static_cast<void*>(amax) : context.workspace);
  const int64_t ctas = one_wave(ceil_div(params.rows * params.spans, kWarps), kCtasPerMultiprocessor, context);
  BS_RETURN_IF_BROKEN(with_dtype(
      x.dtype, [&](auto tag) { return launch(amax_kernel<decltype(tag), true>, ctas, kThreads, context, params); }));
  if (finished) return ok_status();
  const Reduction reduction = {params.out, amax, x.rows, params.spans, params.spans, 1};
  return finish_amax(&reduction, 1, context);
}

BsStatus amax(const BsAmaxProblem& problem, const Context& context) {
  const BsMatrix& x = problem.x;
  if (x.dtype == BS_F64) return failure(BS_NOT_OFFERED, "amax: float64 input is not offered on CUDA; use float32.");
  if (x.rows == 0 || x.cols == 0) {
    const int64_t outputs = problem.kind == BS_AMAX_TENSOR ? 1 : problem.kind == BS_AMAX_ROW ? x.rows : x.cols;
    const Reduction nothing = {nullptr, problem.amax, outputs, 0, 0, 0};
    return finish_amax(&nothing, 1, context);
  }
  if (problem.kind == BS_AMAX_ROW) return row_amax(x, problem.amax, context);
  if (problem.kind == BS_AMAX_COLUMN) return column_amax(x, problem.amax, nullptr, context);
  int32_t count = 0;
  BS_RETURN_IF_BROKEN(tensor_partials(x, static_cast<uint32_t*>(context.workspace), &count, context));
  const Reduction reduction = {context.workspace, problem.amax, 1, count, 0, 1};
  return finish_amax(&reduction, 1, context);
}

int64_t amax_workspace_bytes(const BsAmaxProblem& problem) {
  const BsMatrix& x = problem.x;
  if (x.rows <= 0 || x.cols <= 0) return 0;
  if (problem.kind == BS_AMAX_ROW) return row_amax_workspace(x.rows, x.cols);
  if (problem.kind == BS_AMAX_COLUMN) return column_amax_workspace(x.rows, x.cols, x.dtype, false);
  return kMaxPartials * 4;
}

}  // namespace blockscale::cuda
