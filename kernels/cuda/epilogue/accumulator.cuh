// SPDX-License-Identifier: Apache-2.0
// An FP32 accumulator to t, eight columns at a time: the lines of docs/numerics.md section 11.2 up to the activation.
// Both outputs start here. The arithmetic is numerics/epilogue.h; this adds loads and the order of the optional lines.
#pragma once
#include "contract/types.h"
#include "cuda/epilogue/activation.cuh"
#include "cuda/load.cuh"
#include "numerics/epilogue.h"

namespace blockscale::cuda {

constexpr int kRun = 8;  // columns

// A float matrix of any input dtype.
struct MatrixView {
  const void* data;
  int64_t row_stride;
  int32_t dtype;
  bool vector;  // rows start on 16 bytes

  static MatrixView make(const BsMatrix& x) { return {x.data, x.row_stride, x.dtype, has_vector_rows(x)}; }
};

// The lines of section 11.2 and their operands, the same for an accumulator in memory and one in a GEMM kernel.
struct EpilogueLines {
  MatrixView c, bias;
  const float* a_amax;  // null: no a_dec line
  const float* b_amax;
  const float* alpha_pointer;
  float alpha, beta;
  int32_t a_e4m3_max, b_e4m3_max, activation;
  bool a_per_row, b_per_row;

  static EpilogueLines make(const BsEpilogueProblem& p) {
    EpilogueLines lines = {};
    lines.c = MatrixView::make(p.c);
    lines.bias = MatrixView::make(p.bias);
    lines.a_amax = p.a_amax;
    lines.b_amax = p.b_amax;
    lines.alpha_pointer = p.alpha_pointer;
    lines.alpha = p.alpha;
    lines.beta = p.beta;
    lines.a_e4m3_max = p.a_e4m3_max;
    lines.b_e4m3_max = p.b_e4m3_max;
    lines.activation = p.activation;
    lines.a_per_row = p.a_scaling == BS_SCALING_ROW;
    lines.b_per_row = p.b_scaling == BS_SCALING_ROW;
    return lines;
  }
};

struct AccumulatorParams : EpilogueLines {
  MatrixView acc;
  int64_t m, n;
  const uint8_t* a_nan_rows;
  const uint8_t* b_nan_rows;
  bool acc_empty;

  static AccumulatorParams make(const BsEpilogueProblem& p) {
    return {EpilogueLines::make(p), MatrixView::make(p.acc), p.acc.rows, p.acc.cols, p.a_nan_rows,
            p.b_nan_rows,           p.acc_empty != 0};
  }
};

// Plain loads, not through the read-only path: C may be the output itself.
template <class Tag>
__device__ __forceinline__ void load_run_of(const MatrixView& x, int64_t row, int64_t col, int count,
                                            float (&values)[kRun]) {
  using Element = typename Tag::Element;
  constexpr int kVector = 16 / sizeof(Element);
  const Element* from = static_cast<const Element*>(x.data) + row * x.row_stride + col;
  if (x.vector && count == kRun) {
#pragma unroll
    for (int i = 0; i < kRun; i += kVector) {
      const uint4 four = *reinterpret_cast<const uint4*>(from + i);
      const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if constexpr (kIsF32<Tag>)
          values[i + j] = float_of(words[j]);
        else
          values[i + j] = widen<Tag>(static_cast<uint16_t>(words[j / 2] >> (j % 2 * 16)));
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i) values[i] = i < count ? widen<Tag>(from[i]) : 0.0f;
  }
}

// One element, where a thread's columns are not side by side.
__device__ __forceinline__ float load_element(const MatrixView& x, int64_t row, int64_t col) {
  const int64_t element = row * x.row_stride + col;
  if (x.dtype == BS_F32) return widen<F32>(static_cast<const uint32_t*>(x.data)[element]);
  const uint16_t bits = static_cast<const uint16_t*>(x.data)[element];
  return x.dtype == BS_BF16 ? widen<Bf16>(bits) : widen<F16>(bits);
}

__device__ __forceinline__ void load_run(const MatrixView& x, int64_t row, int64_t col, int count,
                                         float (&values)[kRun]) {
  if (x.dtype == BS_F32) return load_run_of<F32>(x, row, col, count, values);
  if (x.dtype == BS_BF16) return load_run_of<Bf16>(x, row, col, count, values);
  load_run_of<F16>(x, row, col, count, values);
}

__device__ __forceinline__ float read_alpha(const EpilogueLines& p) {
  return p.alpha_pointer ? *p.alpha_pointer : p.alpha;
}

// t of columns col .. col + count of a row; the others are 0.
__device__ __forceinline__ void finish_accumulators(const AccumulatorParams& p, float alpha, int64_t row, int64_t col,
                                                    int count, float (&t)[kRun]) {
#pragma unroll
  for (int i = 0; i < kRun; ++i) t[i] = 0.0f;
  if (!p.acc_empty) {
    // Without an a_dec line a factor of 1 is exact.
    const float a_decode = p.a_amax ? decode_scale(p.a_amax[p.a_per_row ? row : 0], p.a_e4m3_max) : 1.0f;
    const bool nan_row = p.a_nan_rows && p.a_nan_rows[row];
    float b_decode = p.b_per_row ? 0.0f : decode_scale(*p.b_amax, p.b_e4m3_max);
    load_run_of<F32>(p.acc, row, col, count, t);
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      if (i >= count) continue;
      if (p.b_per_row) b_decode = decode_scale(p.b_amax[col + i], p.b_e4m3_max);
      if (nan_row || (p.b_nan_rows && p.b_nan_rows[col + i])) t[i] = float_of(kNanBits);
      t[i] = apply_scales(t[i], a_decode, b_decode, alpha);
    }
  }
  float other[kRun];
  if (p.beta != 0.0f) {
    load_run(p.c, row, col, count, other);
#pragma unroll
    for (int i = 0; i < kRun; ++i) t[i] = t[i] + p.beta * other[i];
  }
  if (p.bias.data) {
    load_run(p.bias, 0, col, count, other);
#pragma unroll
    for (int i = 0; i < kRun; ++i) t[i] = t[i] + other[i];
  }
  activate(p.activation, t);
#pragma unroll
  for (int i = 0; i < kRun; ++i)
    if (i >= count) t[i] = 0.0f;
}

}  // namespace blockscale::cuda
