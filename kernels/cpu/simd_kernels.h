// SPDX-License-Identifier: Apache-2.0
// The inner loops of the CPU backend, once for each instruction set. simd_kernels.cpp is compiled with several -m flags
// and each copy exports one table; isa.cpp picks the best that the processor has. The bytes are the same in all.
#pragma once
#include "contract/adam.h"
#include "contract/types.h"
#include "numerics/adam.h"

namespace blockscale::cpu {

// A tile of codes and scales under way: 16 rows of x by `cols` columns (a multiple of 16), see quantize_strip.
struct Strip {
  const void* x;  // first element
  int64_t row_stride, cols;
  int rows;                   // rows that exist, 1..16; the others count as zero
  const float* row_encode;    // Se of each column operand row = each column of x; null: `encode` for all
  float encode;               // the tensor's Se
  uint8_t* rowwise_qdata;     // of element (0, 0), or null
  int64_t rowwise_pitch;      // bytes
  uint8_t* columnwise_qdata;  // byte that holds the codes of rows 0 and 1 of column 0, or null
  int64_t columnwise_pitch;   // bytes
  uint8_t* scales;            // out: block (1,16): one byte a column; block (16,16): one byte a tile
};

struct SimdKernels {
  const char* isa;
  // Largest magnitude, as bits, of count consecutive elements.
  uint32_t (*amax_run)(const void* x, int32_t dtype, int64_t count);
  // maxima[i] = max(maxima[i], |x_i| as bits).
  void (*amax_fold)(const void* x, int32_t dtype, int64_t count, uint32_t* maxima);
  // One row, blocks of (1, 16): count / 2 code bytes and count / 16 scale bytes.
  void (*quantize_row)(const void* x, int32_t dtype, int64_t count, float encode, uint8_t* qdata, uint8_t* scales);
  // Sixteen rows, blocks of (1, 16) along the columns: the columnwise operand.
  void (*quantize_strip_columnwise)(const Strip& strip, int32_t dtype);
  // Sixteen rows, blocks of (16, 16): either orientation, or both.
  void (*quantize_strip_tiles)(const Strip& strip, int32_t dtype);
  // count values out[i] = val(code) * factors[i / 16].
  void (*decode_row)(const uint8_t* qdata, const float* factors, int64_t count, void* out, int32_t dtype);
  // count E4M3 bytes of blocks or tiles with these maxima.
  void (*block_scales)(const float* amaxes, int64_t count, float encode, uint8_t* scales);
  // factors[i] = what elements are multiplied by under scale byte i.
  void (*element_scales)(const uint8_t* scales, int64_t count, float encode, float* factors);
  // count (a multiple of 16) elements of a row to codes, factors[i / 16] each; rounded to `round_to` before. Every NaN
  // becomes code 7: the scales are given, and need not know of it.
  void (*cast_row)(const void* x, int32_t dtype, int32_t round_to, int64_t count, const float* factors, uint8_t* qdata);
  // A 16 x 16 tile of codes; pitches in bytes.
  void (*transpose_tile)(const uint8_t* in, int64_t in_pitch, uint8_t* out, int64_t out_pitch);
  // Elements begin..end of an item take one Adam step.
  void (*adam_run)(const BsAdamItem& item, int64_t begin, int64_t end, float grad_factor, const AdamFactors& factors);
};

const SimdKernels& simd_kernels();  // the best for this processor
// For tests: from now on use a level's copy (-1: the best again). False, and no change, where it cannot run here.
bool use_simd_level(int level);
const SimdKernels* simd_kernels_at(int level);  // 0 baseline, 1 AVX2, 2 AVX-512; null where it cannot run here

}  // namespace blockscale::cpu
