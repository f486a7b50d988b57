/* SPDX-License-Identifier: Apache-2.0
 * L4: the C ABI of the native library. A backend is a table of functions (contract/backend.h) over plain structs
 * (contract/types.h). Python reaches it through bind/module.cpp; any other language can do the same from here.
 */
#ifndef BLOCKSCALE_H_
#define BLOCKSCALE_H_
#include "contract/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The CPU backend; never null. */
const BsBackend* blockscale_cpu_backend(void);

/* Name of the instruction set that the CPU backend uses here: "baseline", "avx2" or "avx512". */
const char* blockscale_cpu_isa(void);

/* Opens the CUDA library at `path` and returns its backend, or null with the reason in `status`. Needs no driver: a
 * device is looked for by blockscale_cuda_probe only. */
typedef struct BsCudaLibrary {
  const BsBackend* backend;
  BsStatus (*probe)(int32_t device);
  const char* (*targets)(void);
  BsStatus (*check_codecs)(unsigned long long* mismatches, const BsLaunch* launch);
} BsCudaLibrary;
BsStatus blockscale_load_cuda(const char* path, BsCudaLibrary* library);

#ifdef __cplusplus
}
#endif

#endif
