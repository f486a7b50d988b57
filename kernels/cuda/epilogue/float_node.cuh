// SPDX-License-Identifier: Apache-2.0
// The visitor node for a float output: t rounded once to FP32, BF16 or FP16. The collective stages what it returns in
// shared memory and writes it with TMA. One kernel serves BF16 and FP16: TMA moves 16-bit words and does not look
// inside.
#pragma once
#include "cuda/epilogue/visitor.cuh"
#include "cuda/narrow.cuh"

namespace blockscale::cuda {

// What the memory of D is typed as: float, or any 16-bit type for both.
template <class Shape, class Element, class Coordinates>
struct FloatNode : Node<Shape, Coordinates> {
  using Node<Shape, Coordinates>::Node;

  template <int kCount>
  CUTLASS_DEVICE auto visit(const cutlass::Array<float, kCount>& acc, int epi_v, int epi_m, int epi_n) {
    const auto at = this->places(epi_v * kCount, epi_m, epi_n);
    float t[kCount];
    this->tile.finish(acc, at, t);
    this->tile.take_maximum(t, at);
    cutlass::Array<Element, kCount> d;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if constexpr (sizeof(Element) == 4)
        d[i] = t[i];
      else
        d[i] = Element::bitcast(narrowed(t[i]));
    }
    return d;
  }

  CUTLASS_DEVICE void end() {
    this->tile.return_maximum([this](uint32_t magnitude) {
      if constexpr (sizeof(Element) == 4) return magnitude;
      const uint16_t stored = narrowed(float_of(magnitude));
      return bits_of(is_bf16() ? widen<Bf16>(stored) : widen<F16>(stored));
    });
  }

 private:
  CUTLASS_DEVICE bool is_bf16() const { return this->tile.p->d_dtype == BS_BF16; }
  CUTLASS_DEVICE uint16_t narrowed(float t) const { return is_bf16() ? narrow<Bf16>(t) : narrow<F16>(t); }
};

template <class Shape, class Coordinates>
using Float32Node = FloatNode<Shape, float, Coordinates>;
template <class Shape, class Coordinates>
using Float16BitNode = FloatNode<Shape, cutlass::bfloat16_t, Coordinates>;

}  // namespace blockscale::cuda
