// SPDX-License-Identifier: Apache-2.0
// L1: the checks that every backend makes before it writes a byte. Python checks the same facts with better words at
// its own door; these hold for callers of the C ABI too.
#pragma once
#include "gemm.h"
#include "status.h"

namespace blockscale {

#define BS_RETURN_IF_BROKEN(expression)        \
  do {                                         \
    const BsStatus status_ = (expression);     \
    if (status_.code != BS_OK) return status_; \
  } while (0)

inline BsStatus check_workspace(const char* op, int64_t given, int64_t needed) {
  if (given >= needed) return ok_status();
  return failure(BS_INVALID, "%s: workspace must be at least %lld bytes; got %lld.", op, static_cast<long long>(needed),
                 static_cast<long long>(given));
}

inline BsStatus check_matrix(const char* op, const char* arg, const BsMatrix& x) {
  if (x.rows < 0 || x.cols < 0) return broken_rule(op, arg, "of non-negative sizes", x.rows < 0 ? x.rows : x.cols);
  if (x.rows > 0 && x.cols > 0 && !x.data) return broken_rule(op, arg, "a non-null pointer", 0);
  if (x.dtype < BS_F32 || x.dtype > BS_F64) return broken_rule(op, arg, "of a known dtype", x.dtype);
  return ok_status();
}

inline bool is_present(const BsOperand& operand) { return operand.present != 0; }

inline BsStatus check_operand(const char* op, const char* arg, const BsOperand& x) {
  if (x.rows < 0 || x.k < 0 || x.k % 16)
    return broken_rule(op, arg, "of non-negative rows and K a multiple of 16", x.k);
  if (x.rows > 0 && x.k > 0 && (!x.qdata || !x.block_scale)) return broken_rule(op, arg, "a non-null pointer", 0);
  if (x.layout != BS_LINEAR && x.layout != BS_SWIZZLED_128X4)
    return broken_rule(op, arg, "of a known layout", x.layout);
  if (x.e4m3_max != 448 && x.e4m3_max != 256) return broken_rule(op, arg, "of e4m3_max 448 or 256", x.e4m3_max);
  return ok_status();
}

inline BsStatus check_amax(const BsAmaxProblem& p) {
  BS_RETURN_IF_BROKEN(check_matrix("amax", "x", p.x));
  if (p.kind < BS_AMAX_TENSOR || p.kind > BS_AMAX_COLUMN) return broken_rule("amax", "kind", "a known kind", p.kind);
  const int64_t outputs = p.kind == BS_AMAX_TENSOR ? 1 : p.kind == BS_AMAX_ROW ? p.x.rows : p.x.cols;
  if (outputs > 0 && !p.amax) return broken_rule("amax", "amax", "a non-null pointer", 0);
  return ok_status();
}

inline BsStatus check_quantize(const BsQuantizeProblem& p) {
  const char* op = "quantize";
  BS_RETURN_IF_BROKEN(check_matrix(op, "x", p.x));
  if (p.x.dtype == BS_F64) return broken_rule(op, "x", "float32, bfloat16 or float16", p.x.dtype);
  if (p.block_rows != 1 && p.block_rows != 16) return broken_rule(op, "block_rows", "1 or 16", p.block_rows);
  if (is_present(p.rowwise)) {
    BS_RETURN_IF_BROKEN(check_operand(op, "rowwise", p.rowwise));
    if (p.rowwise.rows != p.x.rows) return broken_rule(op, "rowwise.rows", "the rows of x", p.rowwise.rows);
    if (p.rowwise.k != p.x.cols) return broken_rule(op, "rowwise.k", "the columns of x", p.rowwise.k);
  }
  if (is_present(p.columnwise)) {
    BS_RETURN_IF_BROKEN(check_operand(op, "columnwise", p.columnwise));
    if (p.columnwise.rows != p.x.cols) return broken_rule(op, "columnwise.rows", "the columns of x", p.columnwise.rows);
    if (p.columnwise.k != p.x.rows) return broken_rule(op, "columnwise.k", "the rows of x", p.columnwise.k);
    if (p.x.cols % 16) return broken_rule(op, "x.cols", "a multiple of 16", p.x.cols);
  }
  const bool both = is_present(p.rowwise) && is_present(p.columnwise);
  if (both && p.rowwise.scaling != p.columnwise.scaling)
    return broken_rule(op, "columnwise.scaling", "that of rowwise", p.columnwise.scaling);
  if (both && p.rowwise.scaling == BS_SCALING_TENSOR) {
    if (p.rowwise_amax != p.columnwise_amax) return broken_rule(op, "columnwise_amax", "rowwise_amax", 1);
    if (p.rowwise.e4m3_max != p.columnwise.e4m3_max)
      return broken_rule(op, "columnwise.e4m3_max", "that of rowwise", p.columnwise.e4m3_max);
  }
  const bool row_scaled = is_present(p.rowwise) ? p.rowwise.scaling : p.columnwise.scaling;
  if (row_scaled && p.block_rows == 16) return broken_rule(op, "block_rows", "1 with row scaling", p.block_rows);
  return ok_status();
}

inline BsStatus check_dequantize(const BsDequantizeProblem& p) {
  const char* op = "dequantize";
  BS_RETURN_IF_BROKEN(check_operand(op, "x", p.x));
  BS_RETURN_IF_BROKEN(check_matrix(op, "out", p.out));
  if (p.start_k % 16 || p.start_k < 0) return broken_rule(op, "start_k", "a multiple of 16", p.start_k);
  if (p.stop_k % 16 || p.stop_k < p.start_k || p.stop_k > p.x.k)
    return broken_rule(op, "stop_k", "a multiple of 16 in start_k..K", p.stop_k);
  if (p.out.rows != p.x.rows) return broken_rule(op, "out.rows", "the rows of x", p.out.rows);
  if (p.out.cols != p.stop_k - p.start_k) return broken_rule(op, "out.cols", "stop_k - start_k", p.out.cols);
  return ok_status();
}

inline BsStatus check_transpose(const BsTransposeProblem& p) {
  const char* op = "transpose";
  BS_RETURN_IF_BROKEN(check_operand(op, "x", p.x));
  BS_RETURN_IF_BROKEN(check_operand(op, "y", p.y));
  if (p.y.rows != p.x.k) return broken_rule(op, "y.rows", "the columns of x", p.y.rows);
  if (p.y.k != p.x.rows) return broken_rule(op, "y.k", "the rows of x", p.y.k);
  if (p.x.scaling != BS_SCALING_TENSOR) return broken_rule(op, "x.scaling", "tensor", p.x.scaling);
  return ok_status();
}

inline BsStatus check_relayout(const BsRelayoutProblem& p) {
  if (p.rows < 0 || p.k < 0 || p.k % 16) return broken_rule("relayout", "k", "a multiple of 16", p.k);
  if (p.rows > 0 && p.k > 0 && (!p.source || !p.target)) return broken_rule("relayout", "source", "non-null", 0);
  return ok_status();
}

inline BsStatus check_epilogue(const BsEpilogueProblem& p) {
  const char* op = "gemm";
  BS_RETURN_IF_BROKEN(check_matrix(op, "d", p.d));
  const int64_t m = p.acc.rows, n = p.acc.cols;
  if (m < 0 || n < 0) return broken_rule(op, "acc", "of non-negative sizes", m < 0 ? m : n);
  const bool empty = m == 0 || n == 0;
  if (!empty && !p.acc_empty && !p.acc.data && !p.acc_fixed) return broken_rule(op, "acc", "a non-null pointer", 0);
  if (!empty && !p.b_amax) return broken_rule(op, "b_amax", "a non-null pointer", 0);
  if (p.beta != 0.0f && !empty && !p.c.data) return broken_rule(op, "c", "given when beta is not 0", 0);
  if (is_present(p.quantized)) {
    BS_RETURN_IF_BROKEN(check_operand(op, "out", p.quantized));
    if (p.quantized.rows != m || p.quantized.k != n)
      return broken_rule(op, "out", "of the shape of acc", p.quantized.k);
    const bool has_amax = m > 0 || p.quantized.scaling == BS_SCALING_TENSOR;
    if (has_amax && !p.out_amax) return broken_rule(op, "out_amax", "given for an NVFP4 output", 0);
  } else if (p.d.rows != m || p.d.cols != n) {
    return broken_rule(op, "d", "of the shape of acc", p.d.cols);
  }
  if (p.return_kind != BS_AMAX_NONE && p.return_kind != BS_AMAX_TENSOR && p.return_kind != BS_AMAX_ROW)
    return broken_rule(op, "return_kind", "none, tensor or row", p.return_kind);
  if (p.return_kind != BS_AMAX_NONE && !p.returned_amax && (m > 0 || p.return_kind == BS_AMAX_TENSOR))
    return broken_rule(op, "returned_amax", "a non-null pointer", 0);
  return ok_status();
}

inline BsStatus check_gemm(const BsGemmProblem& p) {
  BS_RETURN_IF_BROKEN(check_operand("gemm", "a", p.a));
  BS_RETURN_IF_BROKEN(check_operand("gemm", "b", p.b));
  if (p.a.k != p.b.k) return broken_rule("gemm", "b.k", "the K of a", p.b.k);
  if (p.a.rows == 0 || p.b.rows == 0 || p.a.k == 0) return broken_rule("gemm", "a", "not empty", 0);
  if (!p.epilogue.a_amax) return broken_rule("gemm", "a_amax", "a non-null pointer", 0);
  if (p.epilogue.acc.rows != p.a.rows) return broken_rule("gemm", "acc.rows", "the rows of a", p.epilogue.acc.rows);
  if (p.epilogue.acc.cols != p.b.rows) return broken_rule("gemm", "acc.cols", "the rows of b", p.epilogue.acc.cols);
  BsEpilogueProblem epilogue = p.epilogue;
  epilogue.acc_empty = 1;  // the accumulator is the kernel's own
  return check_epilogue(epilogue);
}

}  // namespace blockscale
