/* SPDX-License-Identifier: Apache-2.0
 * L1: what a backend is: a table of functions over the problems of types.h. The CPU library and the CUDA library each
 * export one, so that everything above is written once.
 *
 * A function checks its problem before it writes anything and returns a BsStatus; it never throws, and on a GPU it only
 * enqueues: no allocation, no synchronisation.
 */
#ifndef BLOCKSCALE_CONTRACT_BACKEND_H_
#define BLOCKSCALE_CONTRACT_BACKEND_H_
#include "adam.h"
#include "gemm.h"
#include "primary.h"
#include "types.h"

#define BLOCKSCALE_ABI_VERSION 2

typedef struct BsBackend {
  int32_t abi_version;
  const char* name; /* "cpu", "cuda" */
  /* Device memory that a quantize call needs, in bytes. */
  int64_t (*amax_workspace_bytes)(const BsAmaxProblem*);
  int64_t (*quantize_workspace_bytes)(const BsQuantizeProblem*);
  int64_t (*epilogue_workspace_bytes)(const BsEpilogueProblem*);
  BsStatus (*amax)(const BsAmaxProblem*, const BsLaunch*);
  BsStatus (*quantize)(const BsQuantizeProblem*, const BsLaunch*);
  BsStatus (*dequantize)(const BsDequantizeProblem*, const BsLaunch*);
  BsStatus (*transpose)(const BsTransposeProblem*, const BsLaunch*);
  BsStatus (*relayout)(const BsRelayoutProblem*, const BsLaunch*);
  BsStatus (*widen)(const BsWidenProblem*, const BsLaunch*);           /* CPU only; null on CUDA */
  BsStatus (*accumulate)(const BsAccumulateProblem*, const BsLaunch*); /* CPU only; null on CUDA */
  BsStatus (*epilogue)(const BsEpilogueProblem*, const BsLaunch*);
  /* Primary weights: primary.h. The table of a list is packed on the host, into memory of the caller's. */
  int64_t (*primary_table_bytes)(const BsPrimaryProblem*);
  BsStatus (*pack_primary_table)(const BsPrimaryProblem*, void* host_table);
  BsStatus (*primary)(const BsPrimaryProblem*, const BsLaunch*);
  BsStatus (*adam)(const BsAdamProblem*, const BsLaunch*);
  /* Fused GEMMs; null on the CPU, whose GEMM is a library's product and `epilogue`. */
  int32_t (*gemm_built)(int32_t kernel); /* whether this library holds the kernel */
  BsStatus (*gemm_check)(const BsGemmProblem*, const BsGemmPlan*);
  int64_t (*gemm_workspace_bytes)(const BsGemmProblem*, const BsGemmPlan*);
  BsStatus (*gemm)(const BsGemmProblem*, const BsGemmPlan*, const BsLaunch*);
} BsBackend;

#ifdef __cplusplus
extern "C" {
#endif
/* The CUDA library (blockscale_cuda) exports these; `probe` says whether a device can run it, and why not. */
const BsBackend* blockscale_cuda_backend(void);
BsStatus blockscale_cuda_probe(int32_t device);
/* The targets that this library was built for, as "90a;100a". */
const char* blockscale_cuda_targets(void);
#ifdef __cplusplus
}
#endif

#endif
