/* SPDX-License-Identifier: Apache-2.0
 * L1: the problems that a backend solves, as plain structs. C and C++; no CUDA, no torch, no Python.
 *
 * A problem is complete: pointers, sizes in elements, strides in elements, and every field that changes a byte. Sizes
 * are 64-bit. All pointers of a problem are on the backend's device. Next: backend.h, the functions that take these.
 */
#ifndef BLOCKSCALE_CONTRACT_TYPES_H_
#define BLOCKSCALE_CONTRACT_TYPES_H_
#include <stddef.h>
#include <stdint.h>

typedef enum BsDtype { BS_F32 = 0, BS_BF16 = 1, BS_F16 = 2, BS_F64 = 3 } BsDtype;
typedef enum BsScaling { BS_SCALING_TENSOR = 0, BS_SCALING_ROW = 1 } BsScaling;
typedef enum BsScaleLayout { BS_LINEAR = 0, BS_SWIZZLED_128X4 = 1 } BsScaleLayout;
typedef enum BsAmaxKind { BS_AMAX_NONE = -1, BS_AMAX_TENSOR = 0, BS_AMAX_ROW = 1, BS_AMAX_COLUMN = 2 } BsAmaxKind;
typedef enum BsActivation { BS_IDENTITY = 0, BS_RELU = 1, BS_SILU = 2, BS_GELU = 3, BS_GELU_TANH = 4 } BsActivation;

typedef enum BsCode {
  BS_OK = 0,
  BS_INVALID = 1,     /* a broken contract: ValueError */
  BS_NOT_OFFERED = 2, /* legal, but not by this backend or device: NotImplementedError */
  BS_FAILED = 3       /* the device or the runtime failed: RuntimeError */
} BsCode;

/* What a call returns. message is a zero-terminated text, empty when code is BS_OK. */
typedef struct BsStatus {
  int32_t code;
  char message[508];
} BsStatus;

/* rows x cols elements; element (r, c) stands at r * row_stride + c. */
typedef struct BsMatrix {
  void* data;
  int32_t dtype; /* BsDtype */
  int64_t rows, cols, row_stride;
} BsMatrix;

/* One orientation of an NVFP4 matrix (rows, k): codes (rows, k/2), block scales in `layout`, amax () or (rows,). */
typedef struct BsOperand {
  uint8_t* qdata;
  uint8_t* block_scale;
  float* amax;
  int64_t rows, k;
  int32_t layout;   /* BsScaleLayout */
  int32_t scaling;  /* BsScaling */
  int32_t e4m3_max; /* 448 or 256 */
  int32_t present;  /* 0: this operand is not wanted. Pointers cannot say so: those of an empty one are null too */
} BsOperand;

/* amax[...] = max |x| over the tensor (1 value), each row (rows values) or each column (cols values). */
typedef struct BsAmaxProblem {
  BsMatrix x;
  int32_t kind; /* BsAmaxKind */
  float* amax;
} BsAmaxProblem;

/* Quantize x (M, K). `rowwise` is an (M, K) operand, `columnwise` a (K, M) one; one of the two may be absent. The
 * given second levels are read, |.| of them is stored in the operand; null means the maximum of x. With tensor scaling
 * both operands share one second level: the same pointer (or null) and the same e4m3_max.
 */
typedef struct BsQuantizeProblem {
  BsMatrix x;
  int32_t block_rows; /* 1 or 16 */
  const float* rowwise_amax;
  const float* columnwise_amax;
  BsOperand rowwise;
  BsOperand columnwise;
} BsQuantizeProblem;

/* out (rows, k) = value of the operand, FP32 arithmetic and one rounding to out's dtype. With units != 0 the second
 * level is left out: out = val(code) * val(block scale), exact in FP32, BF16, FP16 and FP64. A block scale 7F, which is
 * NaN, decodes to NaN; or to 0 if nan_rows is given, and nan_rows[r] then says whether row r held one. */
typedef struct BsDequantizeProblem {
  BsOperand x;
  int64_t start_k, stop_k; /* columns to decode; multiples of 16; out has stop_k - start_k columns */
  int32_t units;
  uint8_t* nan_rows; /* (rows,) or null; set, never cleared */
  BsMatrix out;
} BsDequantizeProblem;

/* y = transpose of x, both with (16, 16) blocks: codes, block scales with padding, amax. */
typedef struct BsTransposeProblem {
  BsOperand x;
  BsOperand y;
} BsTransposeProblem;

/* Block scales of a (rows, k) operand from one layout to the other; padding is written as zero. */
typedef struct BsRelayoutProblem {
  const uint8_t* source;
  uint8_t* target;
  int64_t rows, k;
  int32_t source_layout, target_layout; /* BsScaleLayout */
} BsRelayoutProblem;

/* The epilogue of a GEMM (docs/numerics.md section 11.2, 12) over an accumulator that is already there.
 * acc (m, n): FP32, or FP64 holding exact values, or int64 in units of 2^-20 (acc_fixed instead of acc).
 * d: float output; or null data and `quantized` present. */
typedef struct BsEpilogueProblem {
  BsMatrix acc;
  const int64_t* acc_fixed; /* (m, n) contiguous, or null */
  const uint8_t* a_nan_rows;
  const uint8_t* b_nan_rows; /* (m,), (n,) or null: accumulators that are NaN */
  int32_t acc_empty;         /* K == 0: acc is not read, t = +0 in place of the three scaling lines */
  const float* a_amax;
  const float* b_amax; /* a_amax null: no a_dec line (a plain floating-point A) */
  int32_t a_scaling, b_scaling, a_e4m3_max, b_e4m3_max;
  const float* alpha_pointer; /* device scalar, or null: alpha */
  float alpha, beta;
  BsMatrix c;         /* read only if beta != 0 */
  BsMatrix bias;      /* (1, n) or null data */
  int32_t activation; /* BsActivation */
  BsMatrix d;
  BsOperand quantized;   /* layout as given */
  const float* out_amax; /* second level of `quantized` */
  int32_t return_kind;   /* BsAmaxKind: none, tensor or row */
  float* returned_amax;
} BsEpilogueProblem;

/* out (FP64) = x (FP32, BF16 or FP16), exactly. */
typedef struct BsWidenProblem {
  BsMatrix x;
  BsMatrix out;
} BsWidenProblem;

/* sums[i] += round(products[i] * 2^20): one K chunk of an exact product into 64-bit integers. */
typedef struct BsAccumulateProblem {
  const double* products;
  int64_t* sums;
  int64_t count;
} BsAccumulateProblem;

/* Where and how a call runs. The workspace is on the device and at least as large as workspace_bytes() said. */
typedef struct BsLaunch {
  void* stream;    /* CUDA stream; ignored by the CPU */
  int32_t device;  /* CUDA ordinal; ignored by the CPU */
  int32_t threads; /* CPU threads; ignored by CUDA */
  void* workspace;
  int64_t workspace_bytes;
} BsLaunch;

#endif
