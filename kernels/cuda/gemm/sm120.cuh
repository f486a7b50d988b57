// SPDX-License-Identifier: Apache-2.0
// The NVFP4 GEMM of sm_120a and sm_121a from CUTLASS's collectives: TMA loads into at most 99 KiB of shared memory,
// block-scaled mma.sync into registers, our epilogue. No tensor memory, no clusters.
#pragma once
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "cuda/gemm/adapter.cuh"
#include "cuda/gemm/outputs.cuh"

namespace blockscale::cuda {

// kPingpong: two groups of warps take turns, one multiplies while the other stores; else they share a tile.
template <int kTileM, int kTileN, int kTileK, bool kPingpong, class Output>
struct Sm120Gemm {
  static constexpr bool kSwapped = false;
  static constexpr int kSms = 1;
  using ElementPair = cutlass::nv_float4_t<cutlass::float_e2m1_t>;
  using Tile = cute::Shape<cute::Int<kTileM>, cute::Int<kTileN>, cute::Int<kTileK>>;
  using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;
  using Shape = TileShape<kTileM, kTileN, kPingpong ? 128 : 256, false, 1>;
  using MainloopSchedule = std::conditional_t<kPingpong, cutlass::gemm::KernelTmaWarpSpecializedPingpongNvf4Sm120,
                                              cutlass::gemm::KernelTmaWarpSpecializedNvf4Sm120>;

  static constexpr int kAlignD = 128 / cutlass::sizeof_bits<typename Output::Element>::value;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm120, cutlass::arch::OpClassBlockScaledTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, cutlass::layout::RowMajor, kAlignD,
      typename Output::Stored, cutlass::layout::RowMajor, kAlignD, cutlass::epilogue::collective::EpilogueScheduleAuto,
      typename Output::template Callbacks<Shape>>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm120, cutlass::arch::OpClassBlockScaledTensorOp, ElementPair, cutlass::layout::RowMajor, 32,
      ElementPair, cutlass::layout::ColumnMajor, 32, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      MainloopSchedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue, void>;
  using Device = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
  static constexpr int kStages = Mainloop::DispatchPolicy::Stages;

  static typename Mainloop::Arguments operands(const PreparedGemm& p, const cute::Shape<int, int, int, int>& problem) {
    return block_scaled_operands<Sm120Gemm, kSwapped>(p, problem);
  }
};

}  // namespace blockscale::cuda
