// SPDX-License-Identifier: Apache-2.0
// From a prepared problem to the arguments of a CUTLASS kernel, and its launch. Gemm: Sm90Gemm, Sm100Gemm or Sm120Gemm,
// each of which fills in its own mainloop's arguments.
#pragma once
#include "cuda/device.h"
#include "cuda/gemm/gemm_kernel.h"

namespace blockscale::cuda {

// Codes and scales, and which of A and B the hardware sees first. Shared by the block-scaled mainloops.
template <class Gemm, bool kSwapped>
typename Gemm::Mainloop::Arguments block_scaled_operands(const PreparedGemm& p,
                                                         const cute::Shape<int, int, int, int>& problem) {
  using Mainloop = typename Gemm::Mainloop;
  using Element = typename Mainloop::ArrayElementA;
  using Scale = cutlass::float_ue4m3_t;
  using Layouts = typename Mainloop::Sm1xxBlkScaledConfig;
  const auto* a = static_cast<const Element*>(kSwapped ? p.b : p.a);
  const auto* b = static_cast<const Element*>(kSwapped ? p.a : p.b);
  const auto* a_scales = reinterpret_cast<const Scale*>(kSwapped ? p.b_scales : p.a_scales);
  const auto* b_scales = reinterpret_cast<const Scale*>(kSwapped ? p.a_scales : p.b_scales);
  const typename Gemm::Kernel::StrideA stride_a = {p.k, cute::Int<1>{}, 0};
  const typename Gemm::Kernel::StrideB stride_b = {p.k, cute::Int<1>{}, 0};
  typename Mainloop::Arguments arguments = {};
  arguments.ptr_A = a;
  arguments.dA = stride_a;
  arguments.ptr_B = b;
  arguments.dB = stride_b;
  arguments.ptr_SFA = a_scales;
  arguments.layout_SFA = Layouts::tile_atom_to_shape_SFA(problem);
  arguments.ptr_SFB = b_scales;
  arguments.layout_SFB = Layouts::tile_atom_to_shape_SFB(problem);
  return arguments;
}

// The row stride of D in either orientation; the other stride is the constant 1.
inline void set_row_stride(cute::Stride<int64_t, cute::Int<1>, int64_t>& stride, int64_t rows) {
  cute::get<0>(stride) = rows;
}
inline void set_row_stride(cute::Stride<cute::Int<1>, int64_t, int64_t>& stride, int64_t rows) {
  cute::get<1>(stride) = rows;
}

template <class Gemm>
struct Adapter {
  using Device = typename Gemm::Device;
  using Arguments = typename Device::Arguments;

  static Arguments arguments(const PreparedGemm& p, const BsGemmPlan& plan, int device, int multiprocessors) {
    const cute::Shape<int, int, int, int> problem = {Gemm::kSwapped ? p.n : p.m, Gemm::kSwapped ? p.m : p.n, p.k, 1};
    Arguments args = {};
    args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    args.problem_shape = problem;
    args.mainloop = Gemm::operands(p, problem);
    args.epilogue.thread = p.epilogue;
    if constexpr (!std::is_void_v<typename Gemm::Kernel::ElementD>)
      args.epilogue.ptr_D = static_cast<typename Gemm::Kernel::ElementD*>(p.d);
    set_row_stride(args.epilogue.dD, p.d_stride);
    args.hw_info.device_id = device;
    args.hw_info.sm_count = multiprocessors;
    args.hw_info.cluster_shape = dim3(plan.cluster_m, plan.cluster_n, 1);
    args.hw_info.cluster_shape_fallback = dim3(Gemm::kSms, 1, 1);
    return args;
  }

  // CUTLASS asks for a number of columns of D that fills 16 bytes. TMA itself does not: it clips at the last column,
  // and needs an aligned pitch, which the host side sees to. So the question is asked for the next number that does.
  static bool can_implement(const PreparedGemm& p, const BsGemmPlan& plan) {
    PreparedGemm wider = p;
    wider.n = (p.n + Gemm::kAlignD - 1) / Gemm::kAlignD * Gemm::kAlignD;
    return Device::can_implement(arguments(wider, plan, 0, 1)) == cutlass::Status::kSuccess;
  }

  static int64_t workspace_bytes(const PreparedGemm& p, const BsGemmPlan& plan) {
    return static_cast<int64_t>(Device::get_workspace_size(arguments(p, plan, 0, 1)));
  }

  static BsStatus run(const PreparedGemm& p, const BsGemmPlan& plan, const Context& context, void* workspace) {
    const Arguments args = arguments(p, plan, context.device, context.multiprocessors);
    Device device;
    cutlass::Status status = device.initialize(args, workspace, context.stream);
    if (status == cutlass::Status::kSuccess) status = device.run(context.stream);
    if (status == cutlass::Status::kSuccess) return ok_status();
    const cudaError_t error = cudaGetLastError();
    return failure(BS_FAILED, "%s: the GEMM kernel could not be launched: %s (%s).", context.op,
                   cutlass::cutlassGetStatusString(status), cudaGetErrorString(error));
  }

  static constexpr GemmKernel kEntry = {&can_implement, &workspace_bytes, &run};
};

}  // namespace blockscale::cuda
