// SPDX-License-Identifier: Apache-2.0
// The GEMM of sm_90a from CUTLASS's collectives: operands decoded to BF16, which is exact, WGMMA with FP32
// accumulation, and the epilogue of the Blackwell kernels, node for node. It spares the FP32 accumulator's way through
// memory, and it is where that epilogue runs on hardware.
#pragma once
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "cuda/gemm/adapter.cuh"
#include "cuda/gemm/outputs.cuh"

namespace blockscale::cuda {

template <int kTileM, int kTileN, int kTileK, class Output>
struct Sm90Gemm {
  static constexpr bool kSwapped = false;
  static constexpr int kSms = 1;
  using Element = cutlass::bfloat16_t;
  using Tile = cute::Shape<cute::Int<kTileM>, cute::Int<kTileN>, cute::Int<kTileK>>;
  using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
  using Shape = TileShape<kTileM, kTileN, 256, false, 1>;

  static constexpr int kAlignD = 128 / cutlass::sizeof_bits<typename Output::Element>::value;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, cutlass::layout::RowMajor, kAlignD,
      typename Output::Stored, cutlass::layout::RowMajor, kAlignD, cutlass::epilogue::TmaWarpSpecializedCooperative,
      typename Output::template Callbacks<Shape>>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, cutlass::layout::RowMajor, 8, Element,
      cutlass::layout::ColumnMajor, 8, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue, void>;
  using Device = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
  static constexpr int kStages = Mainloop::DispatchPolicy::Stages;

  static typename Mainloop::Arguments operands(const PreparedGemm& p, const cute::Shape<int, int, int, int>&) {
    typename Mainloop::Arguments arguments = {};
    arguments.ptr_A = static_cast<const Element*>(p.a);
    arguments.dA = {p.k, cute::Int<1>{}, 0};
    arguments.ptr_B = static_cast<const Element*>(p.b);
    arguments.dB = {p.k, cute::Int<1>{}, 0};
    return arguments;
  }
};

}  // namespace blockscale::cuda
