// SPDX-License-Identifier: Apache-2.0
// The floating-point environment of a worker: round to nearest, subnormals kept. Results must not depend on a caller
// who switched flush-to-zero on (torch.set_flush_denormal); docs/numerics.md section 0.
#pragma once
#if defined(__x86_64__)
#include <xmmintrin.h>
#elif defined(__aarch64__)
#include <cstdint>
#endif

namespace blockscale::cpu {

class KeepSubnormals {
 public:
#if defined(__x86_64__)
  // MXCSR: bit 15 flush to zero, bits 14-13 rounding mode (0: nearest even), bit 6 denormals are zero.
  KeepSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ & ~0xE040u); }
  ~KeepSubnormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  // FPCR: bit 24 flush to zero, bits 23-22 rounding mode, bit 19 flush halves, bit 0 flush inputs.
  KeepSubnormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(saved_ & ~uint64_t{0x1C80001}));
  }
  ~KeepSubnormals() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

 private:
  uint64_t saved_;
#endif
 public:
  KeepSubnormals(const KeepSubnormals&) = delete;
  KeepSubnormals& operator=(const KeepSubnormals&) = delete;
};

}  // namespace blockscale::cpu
