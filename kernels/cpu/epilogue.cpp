// SPDX-License-Identifier: Apache-2.0
// The GEMM epilogue (docs/numerics.md sections 11.2 and 12), a row at a time: accumulators to t, t to the output.
#include "numerics/epilogue.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "contract/checks.h"
#include "cpu/backend.h"
#include "cpu/matrix.h"
#include "cpu/parallel.h"
#include "cpu/simd_kernels.h"
#include "numerics/narrow.h"

namespace blockscale::cpu {
namespace {

// Rounds once to D's dtype and returns the stored value.
float store_float(const BsMatrix& d, int64_t row, int64_t col, float t) {
  char* at = element_at(d, row, col);
  if (d.dtype == BS_F32) {
    *reinterpret_cast<float*>(at) = t;
    return t;
  }
  const uint16_t bits = d.dtype == BS_BF16 ? narrow_bf16(t) : narrow_f16(t);
  *reinterpret_cast<uint16_t*>(at) = bits;
  return d.dtype == BS_BF16 ? widen_bf16(bits) : widen_f16(bits);
}

float activate(int32_t activation, float t) {
  switch (activation) {
    case BS_RELU:
      return relu(t);
    case BS_SILU:
      return silu(t);
    case BS_GELU:
      return gelu(t);
    case BS_GELU_TANH:
      return gelu_tanh(t);
    default:
      return t;
  }
}

float accumulator(const BsEpilogueProblem& p, int64_t row, int64_t col) {
  if ((p.a_nan_rows && p.a_nan_rows[row]) || (p.b_nan_rows && p.b_nan_rows[col])) return float_of(kNanBits);
  // The exact sum, rounded once. The scaling by 2^-20 is exact.
  if (p.acc_fixed) return static_cast<float>(p.acc_fixed[row * p.acc.cols + col]) * 0x1p-20f;
  const char* at = static_cast<const char*>(p.acc.data) + (row * p.acc.row_stride + col) * dtype_bytes(p.acc.dtype);
  if (p.acc.dtype == BS_F64) return static_cast<float>(*reinterpret_cast<const double*>(at));
  return *reinterpret_cast<const float*>(at);
}

struct Factors {
  float alpha, a_decode;
  const float* b_decode;  // one a column
  const float* bias;      // one a column, or null
};

void finish_row(const BsEpilogueProblem& p, const Factors& f, int64_t row, float* t) {
  for (int64_t col = 0; col < p.acc.cols; ++col) {
    float value = 0.0f;
    if (!p.acc_empty) {
      const float acc = accumulator(p, row, col);
      value = p.a_amax ? apply_scales(acc, f.a_decode, f.b_decode[col], f.alpha)
                       : f.alpha * ((acc + 0.0f) * f.b_decode[col]);
    }
    if (p.beta != 0.0f) value = value + p.beta * load_as_float(p.c, row, col);
    if (f.bias) value = value + f.bias[col];
    t[col] = activate(p.activation, value);
  }
}

// Writes row `row` of the output and returns the largest magnitude that return_amax speaks of.
uint32_t emit_row(const BsEpilogueProblem& p, int64_t row, const float* t, float encode, const ScaleGrid& grid,
                  uint8_t* scales) {
  uint32_t largest = 0;
  if (!is_present(p.quantized)) {
    for (int64_t col = 0; col < p.acc.cols; ++col)
      largest = umax(largest, magnitude_bits(store_float(p.d, row, col, t[col])));
    return largest;
  }
  const BsOperand& y = p.quantized;
  simd_kernels().quantize_row(t, BS_F32, y.k, encode, y.qdata + row * y.k / 2, scales);
  store_scale_row(y, grid, row, 0, scales, y.k / kBlock);
  return simd_kernels().amax_run(t, BS_F32, y.k);
}

}  // namespace

BsStatus epilogue(const BsEpilogueProblem* problem, const BsLaunch* launch) {
  const BsEpilogueProblem& p = *problem;
  BS_RETURN_IF_BROKEN(check_epilogue(p));
  const KeepSubnormals keep;
  const int64_t m = p.acc.rows, n = p.acc.cols;
  const bool quantized = is_present(p.quantized);
  const bool out_by_row = quantized && p.quantized.scaling == BS_SCALING_ROW;
  std::vector<float> b_decode(n), bias(p.bias.data ? n : 0);
  if (!p.acc_empty)  // with K = 0 no scale is applied
    for (int64_t col = 0; col < n; ++col)
      b_decode[col] = decode_scale(p.b_amax[p.b_scaling == BS_SCALING_ROW ? col : 0], p.b_e4m3_max);
  for (size_t col = 0; col < bias.size(); ++col) bias[col] = load_as_float(p.bias, 0, col);
  Factors factors = {p.alpha_pointer ? *p.alpha_pointer : p.alpha, 0.0f, b_decode.data(),
                     p.bias.data ? bias.data() : nullptr};
  const ScaleGrid grid = scale_grid(p.quantized);
  if (quantized) {
    clear_padding(p.quantized);
    for (int64_t i = 0; i < (out_by_row ? m : 1); ++i)
      p.quantized.amax[i] = float_of(canonical_magnitude(magnitude_bits(p.out_amax[i])));
  }
  std::atomic<uint32_t> tensor_largest{0};
  constexpr int64_t kElementCost = 8;  // an epilogue element costs several times a cast's
  parallel_for(m, std::max<int64_t>(1, n * kElementCost), launch->threads, [&](int64_t begin, int64_t end) {
    std::vector<float> t(n);
    std::vector<uint8_t> scales(n / kBlock);
    Factors own = factors;
    for (int64_t row = begin; row < end; ++row) {
      if (p.a_amax && !p.acc_empty)
        own.a_decode = decode_scale(p.a_amax[p.a_scaling == BS_SCALING_ROW ? row : 0], p.a_e4m3_max);
      finish_row(p, own, row, t.data());
      const float encode =
          quantized ? encode_scale(p.quantized.amax[out_by_row ? row : 0], second_level_range(p.quantized.e4m3_max))
                    : 0.0f;
      const uint32_t largest = emit_row(p, row, t.data(), encode, grid, scales.data());
      if (p.return_kind == BS_AMAX_ROW) p.returned_amax[row] = float_of(canonical_magnitude(largest));
      uint32_t seen = tensor_largest.load(std::memory_order_relaxed);
      while (largest > seen && !tensor_largest.compare_exchange_weak(seen, largest, std::memory_order_relaxed)) {
      }
    }
  });
  if (p.return_kind == BS_AMAX_TENSOR) *p.returned_amax = float_of(canonical_magnitude(tensor_largest.load()));
  return ok_status();
}

}  // namespace blockscale::cpu
