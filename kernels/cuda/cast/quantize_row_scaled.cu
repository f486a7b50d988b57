// SPDX-License-Identifier: Apache-2.0
// scaling="row" with each row's own amax: one launch, one read of x. A team of threads keeps a row in registers,
// up to kBlocks blocks of sixteen a thread, reduces its maximum, and quantizes it.
#include "cuda/cast/block.cuh"
#include "cuda/cast/quantize_kernels.h"
#include "cuda/launch.cuh"
#include "cuda/load.cuh"
#include "cuda/tiling.cuh"

namespace blockscale::cuda {
namespace {

struct Params {
  const void* x;
  int64_t row_stride;
  ScaleGrid grid;
  uint8_t* qdata;
  uint8_t* block_scale;
  float* amax;
  float range;
  bool vector_x, vector_qdata;
};

// A team is a warp, eight of which make a CTA, or it is the CTA.
template <class Tag, int kTeamThreads, int kBlocksPerThread>
struct Config {
  static constexpr int kTeam = kTeamThreads, kBlocks = kBlocksPerThread;
  static constexpr int kThreads = kTeam == 32 ? 256 : kTeam;
  static constexpr int kTeams = kThreads / kTeam;
  static constexpr int64_t kRowBlocks = int64_t{kTeam} * kBlocks;
  // Registers: the row's share, and about 48 for the work.
  static constexpr int kRegisters = kBlocks * Raw16<Tag>::kWords + 48;
  static constexpr int kCtasPerMultiprocessor = 65536 / ((kRegisters + 7) / 8 * 8 * kThreads);
  static_assert(kCtasPerMultiprocessor >= 1, "a CTA must fit in the register file");
};

template <class Tag, class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerMultiprocessor)
    quantize_row_scaled_kernel(const __grid_constant__ Params p) {
  __shared__ uint32_t scratch[32];
  const int team = threadIdx.x / Config::kTeam, member = threadIdx.x % Config::kTeam;
  const int64_t step = int64_t{gridDim.x} * Config::kTeams;
  // All threads of a team take the same number of turns, so its barriers are met by all.
  for (int64_t row = int64_t{blockIdx.x} * Config::kTeams + team; row < p.grid.padded_rows; row += step) {
    const bool real_row = row < p.grid.rows;
    Raw16<Tag> x[Config::kBlocks];
#pragma unroll
    for (int i = 0; i < Config::kBlocks; ++i) {
      const int block = i * Config::kTeam + member;
      x[i].clear();
      if (real_row && block < p.grid.blocks) x[i].load(p.x, row * p.row_stride + int64_t{block} * kBlock, p.vector_x);
    }
    uint32_t of_block[Config::kBlocks];
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < Config::kBlocks; ++i) {
      of_block[i] = x[i].max_magnitude();
      largest = umax(largest, of_block[i]);
    }
    largest = Config::kTeam == 32 ? warp_max(largest) : cta_max(largest, scratch);
    const float encode = encode_scale(float_of(largest), p.range);
    if (real_row && member == 0) store_amax(p.amax + row, float_of(largest));
#pragma unroll
    for (int i = 0; i < Config::kBlocks; ++i) {
      const int block = i * Config::kTeam + member;
      if (block >= p.grid.padded_blocks) continue;
      uint32_t scale = 0;  // padding
      if (real_row && block < p.grid.blocks) {
        const QuantizedBlock quantized = quantize_block(x[i], of_block[i], encode);
        store_codes(p.qdata + (row * p.grid.blocks + block) * 8, quantized.codes, p.vector_qdata);
        scale = quantized.scale;
      }
      p.block_scale[scale_offset(p.grid, row, block)] = static_cast<uint8_t>(scale);
    }
  }
}

template <class Tag, class Config>
BsStatus run(const Params& params, const Context& context) {
  const int64_t tiles = ceil_div(params.grid.padded_rows, Config::kTeams);
  const int64_t ctas = one_wave(tiles, Config::kCtasPerMultiprocessor, context);
  return launch(quantize_row_scaled_kernel<Tag, Config>, ctas, Config::kThreads, context, params);
}

// The first configuration whose teams hold the row and its padding.
template <class Tag>
BsStatus choose(const Params&, const Context& context) {
  return failure(BS_FAILED, "%s: a row does not fit on chip.", context.op);
}
template <class Tag, class First, class... Rest>
BsStatus choose(const Params& params, const Context& context) {
  if (params.grid.padded_blocks <= First::kRowBlocks) return run<Tag, First>(params, context);
  return choose<Tag, Rest...>(params, context);
}

constexpr int64_t kLongestRow16Bit = 65536, kLongestRow32Bit = 32768;

}  // namespace

bool row_fits_on_chip(const BsMatrix& x) { return x.cols <= (x.dtype == BS_F32 ? kLongestRow32Bit : kLongestRow16Bit); }

BsStatus quantize_row_scaled(const BsMatrix& x, const BsOperand& out, const Context& context) {
  Params params = {x.data,
                   x.row_stride,
                   ScaleGrid::make(x.rows, x.cols, out.layout == BS_SWIZZLED_128X4),
                   out.qdata,
                   out.block_scale,
                   out.amax,
                   6.0f * static_cast<float>(out.e4m3_max),
                   has_vector_rows(x),
                   is_aligned(out.qdata, 8)};
  return with_dtype(x.dtype, [&](auto tag) {
    using Tag = decltype(tag);
    if constexpr (kIsF32<Tag>)
      return choose<Tag, Config<Tag, 32, 1>, Config<Tag, 32, 2>, Config<Tag, 128, 2>, Config<Tag, 256, 2>,
                    Config<Tag, 512, 2>, Config<Tag, 512, 4>>(params, context);
    else
      return choose<Tag, Config<Tag, 32, 1>, Config<Tag, 32, 4>, Config<Tag, 128, 4>, Config<Tag, 256, 4>,
                    Config<Tag, 512, 4>, Config<Tag, 512, 8>>(params, context);
  });
}

}  // namespace blockscale::cuda
