/* SPDX-License-Identifier: Apache-2.0
 * L1: the problem of one Adam or AdamW step over a list of tensors, docs/numerics.md section 18. One call, and on a GPU
 * one launch, for the whole list.
 */
#ifndef BLOCKSCALE_CONTRACT_ADAM_H_
#define BLOCKSCALE_CONTRACT_ADAM_H_
#include "types.h"

/* Elements that a CTA takes at a time. Items start on a new chunk. */
#define BS_ADAM_CHUNK 4096

/* One tensor: `count` elements, all arrays contiguous and in one order. */
typedef struct BsAdamItem {
  float* master;
  float* exp_avg;
  float* exp_avg_sq;
  const void* grad;
  void* copy;        /* the new master rounded to copy_dtype; null: not wanted */
  const float* step; /* number of this step, on the device; null: the problem's. A whole number of at least 1 */
  int64_t count;
  int64_t first_chunk; /* chunks of the items before this one; check_adam recomputes it */
  int32_t grad_dtype, copy_dtype;
} BsAdamItem;

typedef struct BsAdamProblem {
  const BsAdamItem* items;        /* on the host, also for CUDA: they are checked there */
  const BsAdamItem* device_items; /* CUDA: the same bytes on the device. CPU: not read */
  int64_t count;
  double lr, beta1, beta2, eps, weight_decay;
  int64_t step;           /* of items without their own, 1 for the first */
  int32_t maximize;       /* climb instead of descend */
  int32_t decoupled;      /* weight decay: 1 AdamW, 0 L2 */
  const float* lr_tensor; /* device scalar in place of lr, or null */
  const float* inv_scale; /* device scalar that gradients are multiplied by, or null */
  const float* found_inf; /* device scalar: nothing is written if it is not 0; or null */
} BsAdamProblem;

#endif
