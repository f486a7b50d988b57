// SPDX-License-Identifier: Apache-2.0
// amax over a tensor, its rows or its columns.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include "contract/checks.h"
#include "cpu/backend.h"
#include "cpu/matrix.h"
#include "cpu/maxima.h"
#include "cpu/parallel.h"
#include "cpu/simd_kernels.h"

namespace blockscale::cpu {
namespace {

// Columns that one row's run is cut into, so that a single long row still fills all threads.
constexpr int64_t kRunElements = 1 << 16;

void raise_to(std::atomic<uint32_t>& maximum, uint32_t value) {
  uint32_t seen = maximum.load(std::memory_order_relaxed);
  while (value > seen && !maximum.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

void store_magnitudes(const uint32_t* magnitudes, int64_t count, float* amax) {
  for (int64_t i = 0; i < count; ++i) amax[i] = float_of(canonical_magnitude(magnitudes[i]));
}

}  // namespace

uint32_t tensor_maximum(const BsMatrix& x, int threads) {
  const SimdKernels& simd = simd_kernels();
  const int64_t runs = std::max<int64_t>(1, ceil_div(x.cols, kRunElements));
  const int64_t run = std::min(x.cols, kRunElements);
  std::atomic<uint32_t> maximum{0};
  parallel_for(x.rows * runs, run, threads, [&](int64_t begin, int64_t end) {
    uint32_t local = 0;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t row = unit / runs, col = unit % runs * kRunElements;
      local = umax(local, simd.amax_run(element_at(x, row, col), x.dtype, std::min(kRunElements, x.cols - col)));
    }
    raise_to(maximum, local);
  });
  return maximum.load();
}

void row_and_column_maxima(const BsMatrix& x, uint32_t* rows, uint32_t* columns, int threads) {
  const SimdKernels& simd = simd_kernels();
  if (columns) std::fill_n(columns, x.cols, 0u);
  std::mutex merging;
  parallel_for(x.rows, std::max<int64_t>(1, x.cols), threads, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> local(columns ? x.cols : 0);
    for (int64_t row = begin; row < end; ++row) {
      const char* values = element_at(x, row, 0);
      if (rows) rows[row] = simd.amax_run(values, x.dtype, x.cols);
      if (columns) simd.amax_fold(values, x.dtype, x.cols, local.data());
    }
    if (!columns) return;
    const std::lock_guard<std::mutex> lock(merging);
    for (int64_t col = 0; col < x.cols; ++col) columns[col] = umax(columns[col], local[col]);
  });
}

BsStatus amax(const BsAmaxProblem* problem, const BsLaunch* launch) {
  const BsAmaxProblem& p = *problem;
  BS_RETURN_IF_BROKEN(check_amax(p));
  if (p.kind == BS_AMAX_TENSOR) {
    const uint32_t maximum = tensor_maximum(p.x, launch->threads);
    store_magnitudes(&maximum, 1, p.amax);
    return ok_status();
  }
  // The outputs hold the bits while they grow; canonical NaNs at the end.
  const bool by_row = p.kind == BS_AMAX_ROW;
  const int64_t count = by_row ? p.x.rows : p.x.cols;
  std::vector<uint32_t> maxima(count);
  row_and_column_maxima(p.x, by_row ? maxima.data() : nullptr, by_row ? nullptr : maxima.data(), launch->threads);
  store_magnitudes(maxima.data(), count, p.amax);
  return ok_status();
}

}  // namespace blockscale::cpu
