// SPDX-License-Identifier: Apache-2.0
// Copies around a kernel, only where the caller's buffers need them (staging.h).
#include "cuda/device.h"
#include "cuda/gemm/staging.h"
#include "numerics/layout.h"

namespace blockscale::cuda {
namespace {

constexpr int64_t kTmaBytes = 16;

bool tma_takes(const void* address, int64_t pitch) { return is_aligned(address, kTmaBytes) && pitch % kTmaBytes == 0; }

}  // namespace

bool needs_copy(const BsOperand& given) { return !tma_takes(given.qdata, given.k / 2); }

const void* StagedOperand::data() const {
  if (decoded) return decoded;
  return copied_codes ? copied_codes : given->qdata;
}

StagedOperand plan_operand(const BsOperand& given, const BsGemmKernelInfo& kernel, int64_t padded_k,
                           Workspace& workspace) {
  StagedOperand staged = {&given, padded_k, nullptr, nullptr, nullptr};
  if (kernel.arch == 90) {
    staged.k = given.k;
    staged.decoded = workspace.take(given.rows * given.k * 2);
    return staged;
  }
  if (padded_k != given.k || needs_copy(given)) staged.copied_codes = workspace.take(given.rows * padded_k / 2);
  if (given.layout != BS_SWIZZLED_128X4 || !is_aligned(given.block_scale, kTmaBytes))
    staged.swizzled_scales = workspace.take(ScaleGrid::make(given.rows, given.k, true).bytes());
  return staged;
}

BsStatus stage(const StagedOperand& operand, const Context& context) {
  const BsOperand& given = *operand.given;
  if (operand.decoded) {
    const BsMatrix out = {operand.decoded, BS_BF16, given.rows, given.k, given.k};
    return dequantize({given, 0, given.k, 1, nullptr, out}, context);
  }
  if (operand.copied_codes) {
    const size_t from = given.k / 2, to = operand.k / 2;
    cudaError_t error = cudaSuccess;
    if (to != from)
      error = cudaMemset2DAsync(operand.copied_codes + from, to, 0, to - from, given.rows, context.stream);
    if (error == cudaSuccess)
      error = cudaMemcpy2DAsync(operand.copied_codes, to, given.qdata, from, from, given.rows, cudaMemcpyDeviceToDevice,
                                context.stream);
    if (error != cudaSuccess) return cuda_failure(context.op, "padding the codes", error);
  }
  if (operand.swizzled_scales)
    return relayout({given.block_scale, operand.swizzled_scales, given.rows, given.k, given.layout, BS_SWIZZLED_128X4},
                    context);
  return ok_status();
}

StagedRows plan_rows(void* target, int64_t target_pitch, int64_t rows, int64_t row_bytes, int64_t alignment,
                     Workspace& workspace) {
  // One row has no pitch, but a tensor map is encoded with one all the same.
  if (rows == 1) target_pitch = round_up(row_bytes, alignment);
  StagedRows staged = {static_cast<uint8_t*>(target), target_pitch, rows, row_bytes, nullptr, 0};
  if (is_aligned(target, alignment) && target_pitch % alignment == 0) return staged;
  staged.staged_pitch = round_up(row_bytes, alignment);
  staged.staged = workspace.take(rows * staged.staged_pitch);
  return staged;
}

BsStatus unstage(const StagedRows& rows, const Context& context) {
  if (!rows.staged) return ok_status();
  const cudaError_t error = cudaMemcpy2DAsync(
      rows.target, static_cast<size_t>(rows.target_pitch), rows.staged, static_cast<size_t>(rows.staged_pitch),
      static_cast<size_t>(rows.row_bytes), static_cast<size_t>(rows.rows), cudaMemcpyDeviceToDevice, context.stream);
  return error == cudaSuccess ? ok_status() : cuda_failure(context.op, "storing rows", error);
}

}  // namespace blockscale::cuda
