// SPDX-License-Identifier: Apache-2.0
// dequantize (docs/numerics.md section 6), and the exact decode without the second level that gemm needs.
#include <algorithm>

#include "contract/checks.h"
#include "cpu/backend.h"
#include "cpu/matrix.h"
#include "cpu/parallel.h"
#include "cpu/simd_kernels.h"
#include "numerics/scale.h"

namespace blockscale::cpu {
namespace {

constexpr int64_t kChunkBlocks = 256;

}  // namespace

BsStatus dequantize(const BsDequantizeProblem* problem, const BsLaunch* launch) {
  const BsDequantizeProblem& p = *problem;
  BS_RETURN_IF_BROKEN(check_dequantize(p));
  const ScaleGrid grid = scale_grid(p.x);
  const int64_t first_block = p.start_k / kBlock, last_block = p.stop_k / kBlock;
  parallel_for(p.x.rows, std::max<int64_t>(1, p.out.cols), launch->threads, [&](int64_t begin, int64_t end) {
    uint8_t scales[kChunkBlocks];
    float factors[kChunkBlocks];
    for (int64_t row = begin; row < end; ++row) {
      const bool by_row = p.x.scaling == BS_SCALING_ROW;
      const DecodeFactors second = p.units ? DecodeFactors{} : decode_factors(p.x.amax[by_row ? row : 0], p.x.e4m3_max);
      for (int64_t block = first_block; block < last_block; block += kChunkBlocks) {
        const int64_t count = std::min(kChunkBlocks, last_block - block);
        load_scale_row(p.x, grid, row, block, scales, count);
        for (int64_t i = 0; i < count; ++i) {
          factors[i] = p.units ? e4m3_value<float>(scales[i]) : block_decode(scales[i], second);
          if (p.nan_rows && scales[i] == kE4m3NanByte) {
            p.nan_rows[row] = 1;
            factors[i] = 0.0f;
          }
        }
        const uint8_t* codes = p.x.qdata + (row * p.x.k + block * kBlock) / 2;
        char* out = element_at(p.out, row, block * kBlock - p.start_k);
        simd_kernels().decode_row(codes, factors, count * kBlock, out, p.out.dtype);
      }
    }
  });
  return ok_status();
}

}  // namespace blockscale::cpu
