/* SPDX-License-Identifier: Apache-2.0
 * L1: primary weights (docs/numerics.md section 13): the stages that turn shards of FP32 master weights into NVFP4
 * weights. Every stage takes a list of items, of any number and any mix of shapes, in one call; a single weight is a
 * list of one. (One launch on a GPU; a partial amax that also wants weight amaxes has a tiny one before it.)
 *
 * A weight is a row-major (rows, k) matrix. A shard is its elements start .. start + length - 1, of the row-major
 * order. T = ceil(rows / 16) is the number of rows of 16 x 16 tiles.
 */
#ifndef BLOCKSCALE_CONTRACT_PRIMARY_H_
#define BLOCKSCALE_CONTRACT_PRIMARY_H_
#include "types.h"

typedef enum BsPrimaryStage {
  BS_PARTIAL_AMAX = 0,
  BS_FUSED_SCALE = 1,
  BS_PARTIAL_CAST = 2,
  BS_TRANSPOSE = 3
} BsPrimaryStage;

/* A shard and its place in the weight. Elements are rounded to `round_to` (nearest even) before they are used. */
typedef struct BsShard {
  const void* data; /* `length` consecutive elements */
  int64_t rows, k;  /* of the whole weight; k a multiple of 16 */
  int64_t start, length;
  int32_t dtype;    /* BsDtype: BS_F32, BS_BF16 or BS_F16 */
  int32_t round_to; /* the same, or BS_F32: as they are */
} BsShard;

/* tile_amax[i, j] = max |x| over the elements of tile (i, j) that the shard holds, 0 if there are none: every tile is
 * written. amax[0] = their maximum. */
typedef struct BsPartialAmaxItem {
  BsShard shard;
  float* tile_amax; /* (T, k / 16) */
  float* amax;      /* or null */
} BsPartialAmaxItem;

/* From reduced amaxes to the E4M3 scales of tiles, to the weight's block scales, and to its stored amax |G|. */
typedef struct BsFusedScaleItem {
  const float* tile_amax; /* (T, k / 16) */
  const float* amax;      /* G */
  int64_t rows, k;
  uint8_t* tile_scales; /* (T, k / 16) */
  uint8_t* block_scale; /* BS_LINEAR: (scale_rows, row_stride) bytes, zero outside (rows, k / 16) */
  float* stored_amax;
  int64_t scale_rows, row_stride; /* BS_LINEAR: at least rows and k / 16. BS_SWIZZLED_128X4: not read */
  int32_t layout;                 /* BsScaleLayout */
  int32_t e4m3_max;               /* 448 or 256 */
} BsFusedScaleItem;

/* The codes of a shard, into its fragment: bytes start >> 1 .. (start + length + 1) >> 1 of the weight's codes. A
 * nibble of an element that the shard does not hold keeps its value. Fragments of a list are disjoint. */
typedef struct BsPartialCastItem {
  BsShard shard;
  const uint8_t* tile_scales; /* (T, k / 16), finished: those of the whole weight */
  const float* amax;          /* G */
  uint8_t* fragment;
  int32_t e4m3_max;
} BsPartialCastItem;

typedef struct BsPrimaryProblem {
  int32_t stage; /* BsPrimaryStage: which one of the arrays is given */
  int64_t count;
  const BsPartialAmaxItem* partial_amax;
  const BsFusedScaleItem* fused_scale;
  const BsPartialCastItem* partial_cast;
  const BsTransposeProblem* transpose;
  /* Null; or, where primary_table_bytes() of the backend is not 0, that many bytes of device memory with what
   * pack_primary_table() wrote. A list that fits in the parameters of a kernel needs no table. The table stays valid
   * for as long as the addresses and shapes in the items do, so that a repeated call copies nothing. */
  const void* table;
} BsPrimaryProblem;

#endif
