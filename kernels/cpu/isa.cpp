// SPDX-License-Identifier: Apache-2.0
// Which copy of the inner loops runs: the widest instruction set that this processor has.
#include <atomic>

#include "cpu/simd_kernels.h"

namespace blockscale::cpu {

extern const SimdKernels simd_kernels_baseline;
#if defined(BS_X86_COPIES)
extern const SimdKernels simd_kernels_avx2;
extern const SimdKernels simd_kernels_avx512;
#endif

const SimdKernels* simd_kernels_at(int level) {
#if defined(BS_X86_COPIES)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (level == 1) return avx2 ? &simd_kernels_avx2 : nullptr;
  if (level == 2) return avx512 ? &simd_kernels_avx512 : nullptr;
#endif
  return level == 0 ? &simd_kernels_baseline : nullptr;
}

namespace {

const SimdKernels* best_kernels() {
  for (int level = 2; level > 0; --level)
    if (const SimdKernels* kernels = simd_kernels_at(level)) return kernels;
  return &simd_kernels_baseline;
}

std::atomic<const SimdKernels*> kernels_in_use{nullptr};

}  // namespace

const SimdKernels& simd_kernels() {
  const SimdKernels* kernels = kernels_in_use.load(std::memory_order_relaxed);
  if (!kernels) {
    kernels = best_kernels();
    kernels_in_use.store(kernels, std::memory_order_relaxed);
  }
  return *kernels;
}

bool use_simd_level(int level) {
  const SimdKernels* kernels = level < 0 ? best_kernels() : simd_kernels_at(level);
  if (kernels) kernels_in_use.store(kernels);
  return kernels != nullptr;
}

}  // namespace blockscale::cpu
