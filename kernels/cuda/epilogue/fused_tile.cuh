// SPDX-License-Identifier: Apache-2.0
// The fused epilogue of one output tile: accumulators in registers to t, the order of docs/numerics.md section 11.2.
// Three visitor nodes stand on this: float_node.cuh, nvfp4_row_node.cuh and nvfp4_quad_node.cuh.
//
// All coordinates here are those of D. A kernel that computes D^T (swap-AB: few tokens, along the N of the hardware)
// transposes its own coordinates once, in Site, and nothing else knows.
//
// What a row or a column has in common is prepared once a tile in shared memory, while the tensor cores still work on
// it: the decode factors of both second levels, and the bias in FP32. No kernel runs before the GEMM to make an alpha,
// and no pass over D follows it.
#pragma once
#include <cutlass/array.h>

#include <cute/tensor.hpp>

#include "cuda/cast/second_level.cuh"
#include "cuda/epilogue/fused_params.cuh"
#include "cuda/reduce.cuh"

namespace blockscale::cuda {

// kTileRows x kTileCols: the tile of D that a CTA computes. kThreads: those that run the epilogue together. kSwapped:
// the kernel computes D^T. kRun: columns of one row that stand side by side in a thread's registers, a multiple of 4;
// or 1.
template <int kTileRows_, int kTileCols_, int kThreads_, bool kSwapped_, int kRun_>
struct TileShape {
  static constexpr int kTileRows = kTileRows_;
  static constexpr int kTileCols = kTileCols_;
  static constexpr int kThreads = kThreads_;
  static constexpr bool kSwapped = kSwapped_;
  static constexpr int kRowRun = kRun_;
  static_assert(kRun_ == 1 || kRun_ % 4 == 0, "a run is loaded four factors at a time");
};

template <class Shape>
struct TileStorage {
  alignas(16) float a_decode[Shape::kTileRows];
  alignas(16) float b_decode[Shape::kTileCols];
  alignas(16) float bias[Shape::kTileCols];
  float encode[Shape::kTileRows];  // an NVFP4 output's
  uint32_t row_max[Shape::kTileRows];
};

struct Site {
  int row, col;
};

// A kernel's (m, n) as a place in D.
template <class Shape, class Coordinate>
CUTLASS_DEVICE Site site_of(const Coordinate& mn) {
  const int m = cute::get<0>(mn), n = cute::get<1>(mn);
  return Shape::kSwapped ? Site{n, m} : Site{m, n};
}

// One thread's view of a tile.
template <class Shape>
struct FusedTile {
  const FusedParams* p;
  TileStorage<Shape>* shared;
  Site tile;    // the tile's first element
  Site thread;  // this thread's first element, within the tile
  int index;    // of the thread, below kThreads
  float alpha;
  uint32_t largest;  // magnitude, of what this thread has seen

  CUTLASS_DEVICE FusedTile(const FusedParams* params, TileStorage<Shape>* storage, Site tile, Site thread, int index)
      : p(params), shared(storage), tile(tile), thread(thread), index(index), largest(0) {
    alpha = read_alpha(*p);
  }

  // Before the first element: fills the shared factors. All kThreads must meet between this and the first `finish`, and
  // between the last read and the next tile's `prepare`; the collective's barriers see to both.
  CUTLASS_DEVICE void prepare() {
    for (int i = index; i < Shape::kTileRows; i += Shape::kThreads) {
      const int row = tile.row + i;
      const float amax = p->a_per_row ? (row < p->m ? p->a_amax[row] : 0.0f) : *p->a_amax;
      shared->a_decode[i] = decode_scale(amax, p->a_e4m3_max);
      shared->row_max[i] = 0;
    }
    for (int i = index; i < Shape::kTileCols; i += Shape::kThreads) {
      const int col = tile.col + i;
      const float amax = p->b_per_row ? (col < p->n ? p->b_amax[col] : 0.0f) : *p->b_amax;
      shared->b_decode[i] = decode_scale(amax, p->b_e4m3_max);
      if (p->bias.data) shared->bias[i] = col < p->n ? load_element(p->bias, 0, col) : 0.0f;
    }
  }

  // The same for an NVFP4 output: the encode factors of its rows. The tiles of the first column store |out_amax|.
  CUTLASS_DEVICE void prepare_output() {
    for (int i = index; i < Shape::kTileRows; i += Shape::kThreads) {
      const int row = tile.row + i;
      const bool stores = tile.col == 0 && (p->out_per_row ? row < p->m : row == 0);
      const int place = p->out_per_row && row < p->m ? row : 0;
      const float amax = p->out_amax[place];
      shared->encode[i] = encode_scale(amax, p->out_range);
      if (stores) store_amax(p->stored_amax + place, amax);
    }
  }

  // Whether the output's block scales have a place for this element: the matrix and its padding to whole atoms.
  CUTLASS_DEVICE bool has_scale(Site in_d) const {
    return in_d.row < (p->m + kAtomRows - 1) / kAtomRows * kAtomRows && in_d.col < (p->n + 63) / 64 * 64;
  }

  // t of one fragment. at(i): element i relative to the thread's first one; a constant after unrolling.
  template <int kCount, class At>
  CUTLASS_DEVICE void finish(const cutlass::Array<float, kCount>& acc, const At& at, float (&t)[kCount]) const {
    constexpr int kStep = Shape::kRowRun >= 4 ? 4 : 1;
    static_assert(kCount % kStep == 0, "fragments are whole runs");
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; i += kStep) {
      const Site s = inside_tile(at(i));
      const float a = shared->a_decode[s.row];
      float b[kStep];
      load_factors(shared->b_decode + s.col, b);
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kStep; ++j) t[i + j] = apply_scales(acc[i + j], a, b[j], alpha);
    }
    if (p->beta != 0.0f) add_c(at, t);
    if (p->bias.data) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kCount; i += kStep) {
        float bias[kStep];
        load_factors(shared->bias + inside_tile(at(i)).col, bias);
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < kStep; ++j) t[i + j] = t[i + j] + bias[j];
      }
    }
    activate(p->activation, t);
  }

  CUTLASS_DEVICE Site inside_tile(Site relative) const {
    return {thread.row + relative.row, thread.col + relative.col};
  }
  CUTLASS_DEVICE Site in_output(Site relative) const {
    return {tile.row + thread.row + relative.row, tile.col + thread.col + relative.col};
  }
  CUTLASS_DEVICE bool exists(Site in_d) const { return in_d.row < p->m && in_d.col < p->n; }

  // return_amax: the largest magnitude of the elements that exist.
  template <int kCount, class At>
  CUTLASS_DEVICE void take_maximum(const float (&t)[kCount], const At& at) {
    if (p->return_kind == BS_AMAX_NONE) return;
    constexpr int kStep = Shape::kRowRun >= 4 ? Shape::kRowRun : 1;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; i += kStep) {
      uint32_t of_run = 0;
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kStep; ++j)
        if (exists(in_output(at(i + j)))) of_run = umax(of_run, magnitude_bits(t[i + j]));
      if (p->return_kind == BS_AMAX_ROW)
        atomicMax(shared->row_max + inside_tile(at(i)).row, of_run);
      else
        largest = umax(largest, of_run);
    }
  }

  // After the last element, and a barrier. to_stored: from the magnitude of t to that of what D holds; monotone.
  template <class ToStored>
  CUTLASS_DEVICE void return_maximum(const ToStored& to_stored) {
    if (p->return_kind == BS_AMAX_TENSOR) {
      const uint32_t of_warp = warp_max(largest);
      if (index % 32 == 0) atomicMax(p->returned, canonical_magnitude(to_stored(of_warp)));
    } else if (p->return_kind == BS_AMAX_ROW) {
      for (int i = index; i < Shape::kTileRows; i += Shape::kThreads)
        if (tile.row + i < p->m)
          atomicMax(p->returned + tile.row + i, canonical_magnitude(to_stored(shared->row_max[i])));
    }
  }

 private:
  CUTLASS_DEVICE static void load_factors(const float* from, float (&to)[4]) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  }
  CUTLASS_DEVICE static void load_factors(const float* from, float (&to)[1]) { to[0] = *from; }

  template <int kCount, class At>
  CUTLASS_DEVICE void add_c(const At& at, float (&t)[kCount]) const {
    constexpr int kStep = Shape::kRowRun % kRun == 0 ? kRun : 1;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; i += kStep) {
      const Site s = in_output(at(i));
      const int count = s.row < p->m ? min(kStep, p->n - s.col) : 0;
      float c[kStep];
      if constexpr (kStep == kRun) {
        load_run(p->c, s.row, s.col, max(count, 0), c);
      } else {
        c[0] = count > 0 ? load_element(p->c, s.row, s.col) : 0.0f;
      }
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kStep; ++j) t[i + j] = t[i + j] + p->beta * c[j];
    }
  }
};

}  // namespace blockscale::cuda
