// SPDX-License-Identifier: Apache-2.0
// The visitor node for an NVFP4 output where a thread's registers hold whole blocks of 16 columns of one row: sm_100's
// and sm_103's way of reading the tensor memory. Bytes are those of quantize(t, amax=out_amax) (docs/numerics.md
// section 12); the collective writes the codes with TMA, this node the block scales, with their padding, in
// SWIZZLED_128X4.
#pragma once
#include "cuda/cast/block.cuh"
#include "cuda/epilogue/visitor.cuh"

namespace blockscale::cuda {

template <class Shape, class Coordinates>
struct Nvfp4RowNode : Node<Shape, Coordinates> {
  static_assert(!Shape::kSwapped && Shape::kRowRun % 64 == 0, "four block scales of a row are stored at once");

  using Node<Shape, Coordinates>::Node;

  CUTLASS_DEVICE void begin() {
    this->tile.prepare();
    this->tile.prepare_output();
  }

  template <int kCount>
  CUTLASS_DEVICE auto visit(const cutlass::Array<float, kCount>& acc, int epi_v, int epi_m, int epi_n) {
    static_assert(kCount % 64 == 0);
    const auto at = this->places(epi_v * kCount, epi_m, epi_n);
    float t[kCount];
    this->tile.finish(acc, at, t);
    this->tile.take_maximum(t, at);
    cutlass::Array<cutlass::float_e2m1_t, kCount> codes;
    const float encode = this->tile.shared->encode[this->tile.inside_tile(at(0)).row];
    uint2* const packed = reinterpret_cast<uint2*>(codes.raw_data());
    CUTLASS_PRAGMA_UNROLL
    for (int group = 0; group < kCount / 64; ++group) {
      const Site s = this->tile.in_output(at(64 * group));
      uint32_t scales = 0;
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < 4; ++block) {
        const int first = 64 * group + 16 * block;
        Raw16<F32> x;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 16; ++i) x.word[i] = bits_of(t[first + i]);
        const QuantizedBlock quantized = quantize_block(x, x.max_magnitude(), encode);
        packed[first / 16] = quantized.codes;
        if (this->tile.exists({s.row, s.col + 16 * block})) scales |= quantized.scale << (8 * block);
      }
      store_scales(s, scales);
    }
    return codes;
  }

  CUTLASS_DEVICE void end() {
    this->tile.return_maximum([](uint32_t magnitude) { return magnitude; });
  }

 private:
  // Rows and columns up to the next atom are padding: zero, and written by whoever holds the place.
  CUTLASS_DEVICE void store_scales(Site s, uint32_t scales) const {
    if (!this->tile.has_scale(s)) return;
    const FusedParams& p = *this->tile.p;
    const int64_t offset = swizzled_offset(s.row, s.col / kBlock, ceil_div(p.n, kAtomBlocks * kBlock));
    *reinterpret_cast<uint32_t*>(p.block_scale + offset) = scales;
  }
};

}  // namespace blockscale::cuda
