/* SPDX-License-Identifier: Apache-2.0
 * L1: a GEMM with a fused epilogue, D = A @ B^T on NVFP4 operands, and the kernels that can do it.
 *
 * A kernel is named and described by a line of gemm_kernels.def, whether or not it was built. A plan is a kernel and
 * how to launch it; kernels/dispatch chooses one, or the caller pins one. Next: ../dispatch/heuristic.h.
 */
#ifndef BLOCKSCALE_CONTRACT_GEMM_H_
#define BLOCKSCALE_CONTRACT_GEMM_H_
#include "types.h"

/* What a kernel writes: BF16 and FP16 are one kernel. */
typedef enum BsGemmOutput { BS_OUTPUT_16BIT = 0, BS_OUTPUT_32BIT = 1, BS_OUTPUT_NVFP4 = 2 } BsGemmOutput;

/* How a kernel divides its work: sm_120 knows both; elsewhere it follows from the tile. */
typedef enum BsGemmSchedule { BS_COOPERATIVE = 0, BS_PINGPONG = 1 } BsGemmSchedule;

typedef struct BsGemmKernelInfo {
  const char* name;
  int32_t arch;                   /* 90, 100, 103, 120 */
  int32_t tile_m, tile_n, tile_k; /* of the MMA, in the kernel's own M and N; a pair of CTAs shares tile_m */
  int32_t sms;                    /* CTAs that share an MMA: 1 or 2 */
  int32_t swapped;                /* computes D^T = B @ A^T: the kernel's M is N, its N is M */
  int32_t output;                 /* BsGemmOutput */
  int32_t schedule;               /* BsGemmSchedule */
} BsGemmKernelInfo;

/* A complete choice. The cluster counts CTAs, in the kernel's own M and N. */
typedef struct BsGemmPlan {
  int32_t kernel; /* index into gemm_kernels.def */
  int32_t cluster_m, cluster_n;
} BsGemmPlan;

/* a (m, k), b (n, k), both layouts; of `epilogue`, acc gives only its sizes, and acc_fixed, the NaN rows and acc_empty
 * are unused. k > 0, m > 0, n > 0. */
typedef struct BsGemmProblem {
  BsOperand a;
  BsOperand b;
  BsEpilogueProblem epilogue;
} BsGemmProblem;

#endif
