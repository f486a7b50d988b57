// SPDX-License-Identifier: Apache-2.0
// What D is in memory, and the visitor node that makes it: the last template argument of every GEMM.
#pragma once
#include "cuda/epilogue/float_node.cuh"
#include "cuda/epilogue/nvfp4_quad_node.cuh"
#include "cuda/epilogue/nvfp4_row_node.cuh"

namespace blockscale::cuda {

// BF16 or FP16: the kernel moves 16-bit words, FusedParams says which they are.
struct Output16Bit {
  using Element = cutlass::bfloat16_t;
  using Stored = Element;
  template <class Shape>
  using Callbacks = Visitor<Shape, Float16BitNode>;
};

struct Output32Bit {
  using Element = float;
  using Stored = Element;
  template <class Shape>
  using Callbacks = Visitor<Shape, Float32Node>;
};

// NVFP4 where a thread holds whole blocks; the collective stores the codes.
struct OutputNvfp4Rows {
  using Element = cutlass::float_e2m1_t;
  using Stored = Element;
  template <class Shape>
  using Callbacks = Visitor<Shape, Nvfp4RowNode>;
};

// NVFP4 where four threads share a block; the node stores the codes and the collective nothing.
struct OutputNvfp4Quads {
  using Element = uint8_t;
  using Stored = void;
  template <class Shape>
  using Callbacks = Visitor<Shape, Nvfp4QuadNode>;
};

}  // namespace blockscale::cuda
