// SPDX-License-Identifier: Apache-2.0
// The visitor node for an NVFP4 output where accumulators stand in registers as mma and wgmma leave them (sm_90,
// sm_120): the four threads of a quad share a row, and thread t of them has columns 2t, 2t+1, 2t+8 and 2t+9 of every
// block of sixteen. The quad finds the block's maximum and packs its eight bytes with shuffles. Bytes are those of
// quantize(t, amax=out_amax) (docs/numerics.md section 12). Codes and scales are stored from here; the collective
// stores nothing, because its staging moves whole elements of at least a byte.
#pragma once
#include "cuda/cast/block.cuh"
#include "cuda/epilogue/visitor.cuh"

namespace blockscale::cuda {

template <class Shape, class Coordinates>
struct Nvfp4QuadNode : Node<Shape, Coordinates> {
  static_assert(!Shape::kSwapped, "blocks run along the rows of D");
  using Node<Shape, Coordinates>::Node;
  static constexpr int kValues =
      decltype(cute::size(std::declval<Coordinates>()(cute::_, cute::_, cute::_, 0, 0)))::value;

  float values[kValues];  // t of a subtile, in the order of its coordinates

  CUTLASS_DEVICE void begin() {
    this->tile.prepare();
    this->tile.prepare_output();
  }

  template <int kCount>
  CUTLASS_DEVICE auto visit(const cutlass::Array<float, kCount>& acc, int epi_v, int epi_m, int epi_n) {
    const auto at = this->places(epi_v * kCount, epi_m, epi_n);
    float t[kCount];
    this->tile.finish(acc, at, t);
    this->tile.take_maximum(t, at);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) values[epi_v * kCount + i] = t[i];
    cutlass::Array<uint8_t, kCount> nothing;
    nothing.clear();
    return nothing;
  }

  // Once a subtile, after its last visit.
  template <class Buffer, class Synchronize, class Visited>
  CUTLASS_DEVICE void reduce(Buffer&&, const Synchronize&, int epi_m, int epi_n, bool, const Visited&) {
    const auto at = this->places(0, epi_m, epi_n);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kValues; ++i) {
      const Site first = at(i);
      if (first.col % kBlock != at(0).col % kBlock) continue;  // not the first of the thread's four
      float four[4] = {};
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kValues; ++j) {
        const int distance = at(j).col - first.col;
        if (at(j).row != first.row) continue;
        if (distance == 0) four[0] = values[j];
        if (distance == 1) four[1] = values[j];
        if (distance == 8) four[2] = values[j];
        if (distance == 9) four[3] = values[j];
      }
      store_block(first, four);
    }
  }

  CUTLASS_DEVICE void end() {
    this->tile.return_maximum([](uint32_t magnitude) { return magnitude; });
  }

 private:
  CUTLASS_DEVICE static uint32_t quad_max(uint32_t value) {
    value = umax(value, __shfl_xor_sync(kFullWarp, value, 1));
    return umax(value, __shfl_xor_sync(kFullWarp, value, 2));
  }
  CUTLASS_DEVICE static uint32_t quad_or(uint32_t value) {
    value |= __shfl_xor_sync(kFullWarp, value, 1);
    return value | __shfl_xor_sync(kFullWarp, value, 2);
  }

  CUTLASS_DEVICE void store_block(Site relative, const float (&four)[4]) const {
    const FusedParams& p = *this->tile.p;
    const int quad_thread = threadIdx.x & 3;
    const float encode = this->tile.shared->encode[this->tile.inside_tile(relative).row];
    uint32_t largest = 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) largest = umax(largest, magnitude_bits(four[i]));
    largest = quad_max(largest);
    const uint32_t scale = block_scale_byte(float_of(largest), encode);
    const float e = element_scale(scale, encode);
    uint32_t low = e2m1_byte_of_numbers(four[0] * e, four[1] * e) & 0xFFu;
    uint32_t high = e2m1_byte_of_numbers(four[2] * e, four[3] * e) & 0xFFu;
    if (scale == kE4m3NanByte) low = high = 0x77u;
    uint2 codes;
    codes.x = quad_or(low << (8 * quad_thread));
    codes.y = quad_or(high << (8 * quad_thread));
    if (quad_thread != 0) return;
    const Site s = this->tile.in_output(relative);  // thread 0 has the block's first column
    const bool exists = this->tile.exists(s);
    if (exists) *reinterpret_cast<uint2*>(p.qdata + (static_cast<int64_t>(s.row) * p.n + s.col) / 2) = codes;
    if (this->tile.has_scale(s))
      p.block_scale[swizzled_offset(s.row, s.col / kBlock, ceil_div(p.n, kAtomBlocks * kBlock))] =
          static_cast<uint8_t>(exists ? scale : 0u);
  }
};

}  // namespace blockscale::cuda
