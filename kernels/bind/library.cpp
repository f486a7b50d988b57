// SPDX-License-Identifier: Apache-2.0
// The C ABI of blockscale.h.
#include <dlfcn.h>

#include "bind/blockscale.h"
#include "contract/status.h"
#include "cpu/backend.h"
#include "cpu/simd_kernels.h"

extern "C" {

const BsBackend* blockscale_cpu_backend(void) { return &blockscale::cpu::backend(); }

const char* blockscale_cpu_isa(void) { return blockscale::cpu::simd_kernels().isa; }

BsStatus blockscale_load_cuda(const char* path, BsCudaLibrary* library) {
  using blockscale::failure;
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return failure(BS_FAILED, "load_cuda: cannot open the CUDA library: %s", dlerror());
  const auto backend = reinterpret_cast<const BsBackend* (*)(void)>(dlsym(handle, "blockscale_cuda_backend"));
  library->probe = reinterpret_cast<BsStatus (*)(int32_t)>(dlsym(handle, "blockscale_cuda_probe"));
  library->targets = reinterpret_cast<const char* (*)(void)>(dlsym(handle, "blockscale_cuda_targets"));
  library->check_codecs = reinterpret_cast<BsStatus (*)(unsigned long long*, const BsLaunch*)>(
      dlsym(handle, "blockscale_cuda_check_codecs"));
  if (!backend || !library->probe || !library->targets || !library->check_codecs)
    return failure(BS_FAILED, "load_cuda: %s lacks a symbol of this version. Reinstall blockscale.", path);
  library->backend = backend();
  if (library->backend->abi_version != BLOCKSCALE_ABI_VERSION)
    return failure(BS_FAILED,
                   "load_cuda: the CUDA library has ABI version %d; this build needs %d. Reinstall blockscale.",
                   library->backend->abi_version, BLOCKSCALE_ABI_VERSION);
  return blockscale::ok_status();
}

}  // extern "C"
