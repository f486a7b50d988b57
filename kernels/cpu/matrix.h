// SPDX-License-Identifier: Apache-2.0
// Addresses in the matrices and operands of contract/types.h.
#pragma once
#include "contract/types.h"
#include "numerics/layout.h"

namespace blockscale::cpu {

inline int64_t dtype_bytes(int32_t dtype) { return dtype == BS_F64 ? 8 : dtype == BS_F32 ? 4 : 2; }

inline char* element_at(const BsMatrix& x, int64_t row, int64_t col) {
  return static_cast<char*>(x.data) + (row * x.row_stride + col) * dtype_bytes(x.dtype);
}

inline float load_as_float(const BsMatrix& x, int64_t row, int64_t col) {
  const char* at = element_at(x, row, col);
  if (x.dtype == BS_F32) return *reinterpret_cast<const float*>(at);
  const uint16_t bits = *reinterpret_cast<const uint16_t*>(at);
  return x.dtype == BS_BF16 ? widen_bf16(bits) : widen_f16(bits);
}

inline ScaleGrid scale_grid(const BsOperand& x) { return ScaleGrid::make(x.rows, x.k, x.layout == BS_SWIZZLED_128X4); }

// Zero in every byte outside (rows, k / 16). The kernels that follow write the rest.
void clear_padding(const BsOperand& x);

// One row's scales between a plain array and either layout.
void store_scale_row(const BsOperand& x, const ScaleGrid& grid, int64_t row, int64_t first_block, const uint8_t* scales,
                     int64_t count);
void load_scale_row(const BsOperand& x, const ScaleGrid& grid, int64_t row, int64_t first_block, uint8_t* scales,
                    int64_t count);

}  // namespace blockscale::cpu
