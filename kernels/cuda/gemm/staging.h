// SPDX-License-Identifier: Apache-2.0
// What stands between the caller's buffers and a kernel: TMA moves rows whose pitch and address are multiples of 16
// bytes, and reads scales in SWIZZLED_128X4. Buffers that are not like that go through the workspace (docs/numerics.md
// section 11.3); most are, and go straight. Host code only.
#pragma once
#include "cuda/gemm/gemm_kernel.h"

namespace blockscale::cuda {

// Hands out pieces of a workspace. With a null base it only counts.
class Workspace {
 public:
  explicit Workspace(void* base) : base_(static_cast<uint8_t*>(base)) {}
  uint8_t* take(int64_t bytes) {
    uint8_t* piece = base_ ? base_ + used_ : nullptr;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  static constexpr int64_t kAlignment = 256;
  uint8_t* base_;
  int64_t used_ = 0;
};

// An operand as a kernel takes it. Until stage() runs, a pointer into the workspace names bytes that are not there yet.
struct StagedOperand {
  const BsOperand* given;
  int64_t k;                 // padded with zero codes and scales
  uint8_t* copied_codes;     // null: the given ones do
  uint8_t* swizzled_scales;  // null: the given ones do
  uint8_t* decoded;          // BF16, sm_90 only

  const void* data() const;
  const uint8_t* scales() const { return swizzled_scales ? swizzled_scales : given->block_scale; }
};
StagedOperand plan_operand(const BsOperand& given, const BsGemmKernelInfo& kernel, int64_t padded_k,
                           Workspace& workspace);
// Whether TMA cannot take the codes as they stand.
bool needs_copy(const BsOperand& given);
BsStatus stage(const StagedOperand& operand, const Context& context);

// Rows that a kernel writes, and where they belong.
struct StagedRows {
  uint8_t* target;
  int64_t target_pitch, rows, row_bytes;
  uint8_t* staged;  // null: the kernel writes the target
  int64_t staged_pitch;

  uint8_t* data() const { return staged ? staged : target; }
  int64_t pitch() const { return staged ? staged_pitch : target_pitch; }
};
StagedRows plan_rows(void* target, int64_t target_pitch, int64_t rows, int64_t row_bytes, int64_t alignment,
                     Workspace& workspace);
// After the kernel: to the target, if it was not written there.
BsStatus unstage(const StagedRows& rows, const Context& context);

}  // namespace blockscale::cuda
