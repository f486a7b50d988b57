// SPDX-License-Identifier: Apache-2.0
// L1: the checks of an Adam step, before a byte is written.
#pragma once
#include "adam.h"
#include "status.h"

namespace blockscale {

inline int64_t adam_chunks(int64_t count) { return (count + BS_ADAM_CHUNK - 1) / BS_ADAM_CHUNK; }

// Chunks of all items together.
inline int64_t adam_chunks(const BsAdamProblem& p) {
  if (p.count == 0) return 0;
  const BsAdamItem& last = p.items[p.count - 1];
  return last.first_chunk + adam_chunks(last.count);
}

inline BsStatus check_adam(const BsAdamProblem& p) {
  const char* op = "adam";
  if (p.count < 0 || (p.count > 0 && !p.items)) return broken_rule(op, "items", "a non-null pointer", p.count);
  int64_t chunks = 0;
  for (int64_t i = 0; i < p.count; ++i) {
    const BsAdamItem& item = p.items[i];
    if (item.count < 0) return broken_rule(op, "count", "non-negative", item.count);
    if (item.count > 0 && !(item.master && item.exp_avg && item.exp_avg_sq && item.grad))
      return broken_rule(op, "items", "of non-null pointers, as is not the one at index", i);
    if (item.grad_dtype < BS_F32 || item.grad_dtype > BS_F16)
      return broken_rule(op, "grad_dtype", "float32, bfloat16 or float16", item.grad_dtype);
    if (item.copy && (item.copy_dtype < BS_F32 || item.copy_dtype > BS_F16))
      return broken_rule(op, "copy_dtype", "float32, bfloat16 or float16", item.copy_dtype);
    if (item.first_chunk != chunks) return broken_rule(op, "first_chunk", "the chunks before", item.first_chunk);
    if (!item.step && p.step < 1) return broken_rule(op, "step", "at least 1", p.step);
    chunks += adam_chunks(item.count);
  }
  return ok_status();
}

}  // namespace blockscale
