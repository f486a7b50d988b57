// SPDX-License-Identifier: Apache-2.0
// The NVFP4 GEMM of sm_100a (and sm_103a, whose K tile of 768 uses the K = 96 instruction) from CUTLASS's collectives:
// TMA loads of codes and scales, block-scaled MMA into tensor memory, our epilogue. One instantiation is one entry of
// the registry; the cluster is chosen at launch.
#pragma once
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "cuda/gemm/adapter.cuh"
#include "cuda/gemm/outputs.cuh"

namespace blockscale::cuda {

// kTileM counts both CTAs of a pair (kSms == 2).
template <int kTileM, int kTileN, int kTileK, int kSms_, bool kSwapped_, class Output>
struct Sm100Gemm {
  static constexpr int kSms = kSms_;
  static constexpr bool kSwapped = kSwapped_;
  using ElementPair = std::conditional_t<kTileK == 768, cute::tuple<cutlass::float_e2m1_t, cutlass::float_ue4m3_t>,
                                         cutlass::nv_float4_t<cutlass::float_e2m1_t>>;
  using Tile = cute::Shape<cute::Int<kTileM>, cute::Int<kTileN>, cute::Int<kTileK>>;
  using Cluster = cute::Shape<int, int, cute::_1>;
  static constexpr int kCtaM = kTileM / kSms;
  static constexpr bool kUltra = kTileK == 768;

  // Subtiles of 64 columns keep 256-wide tiles from spilling; FP32 takes half of that for the same bytes.
  static constexpr int kSubtileN = sizeof(typename Output::Element) == 4 ? 32 : 64;
  using Subtile = cute::Shape<cute::Int<kCtaM>, cute::Int<kSubtileN>>;
  // D^T of a row-major D is column-major. Where it is 16 bits wide the tensor memory is read in another pattern, in
  // which a thread holds pieces of many rows of D.
  using LayoutD = std::conditional_t<kSwapped, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;
  using Shape = std::conditional_t<kSwapped, TileShape<kTileN, kCtaM, 128, true, 1>,
                                   TileShape<kCtaM, kTileN, 128, false, kSubtileN>>;

  using EpilogueSchedule =
      std::conditional_t<kSms == 2, cutlass::epilogue::TmaWarpSpecialized2Sm, cutlass::epilogue::TmaWarpSpecialized1Sm>;
  using MainloopSchedule = std::conditional_t<
      kUltra,
      std::conditional_t<kSms == 2, cutlass::gemm::KernelTmaWarpSpecialized2SmBlockScaledMxNvf4UltraVs16Sm103,
                         cutlass::gemm::KernelTmaWarpSpecialized1SmBlockScaledMxNvf4UltraVs16Sm103>,
      std::conditional_t<kSms == 2, cutlass::gemm::KernelTmaWarpSpecialized2SmNvf4Sm100,
                         cutlass::gemm::KernelTmaWarpSpecialized1SmNvf4Sm100>>;
  using BuilderArch = std::conditional_t<kUltra, cutlass::arch::Sm103, cutlass::arch::Sm100>;

  static constexpr int kAlignD = 128 / cutlass::sizeof_bits<typename Output::Element>::value;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      BuilderArch, cutlass::arch::OpClassBlockScaledTensorOp, Tile, Cluster, Subtile, float, float, void, LayoutD,
      kAlignD, typename Output::Element, LayoutD, kAlignD, EpilogueSchedule,
      typename Output::template Callbacks<Shape>>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      BuilderArch, cutlass::arch::OpClassBlockScaledTensorOp, ElementPair, cutlass::layout::RowMajor, 32, ElementPair,
      cutlass::layout::ColumnMajor, 32, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      MainloopSchedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue, void>;
  using Device = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
  static constexpr int kStages = Mainloop::DispatchPolicy::Stages;

  static typename Mainloop::Arguments operands(const PreparedGemm& p, const cute::Shape<int, int, int, int>& problem) {
    return block_scaled_operands<Sm100Gemm, kSwapped>(p, problem);
  }
};

}  // namespace blockscale::cuda
