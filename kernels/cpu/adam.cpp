// SPDX-License-Identifier: Apache-2.0
// One Adam or AdamW step over a list of tensors (docs/numerics.md section 18): the list's chunks, shared among threads.
#include "numerics/adam.h"

#include "contract/adam_checks.h"
#include "contract/checks.h"
#include "cpu/backend.h"
#include "cpu/parallel.h"
#include "cpu/simd_kernels.h"

namespace blockscale::cpu {
namespace {

// The item that a chunk belongs to: the last one that does not start behind it and is not empty.
int64_t item_of(const BsAdamProblem& p, int64_t chunk) {
  const BsAdamItem* end = p.items + p.count;
  const BsAdamItem* after = std::upper_bound(
      p.items, end, chunk, [](int64_t wanted, const BsAdamItem& item) { return wanted < item.first_chunk; });
  return after - p.items - 1;
}

}  // namespace

BsStatus adam(const BsAdamProblem* problem, const BsLaunch* launch) {
  const BsAdamProblem& p = *problem;
  BS_RETURN_IF_BROKEN(check_adam(p));
  if (p.found_inf && *p.found_inf != 0.0f) return ok_status();
  const SimdKernels& simd = simd_kernels();
  parallel_for(adam_chunks(p), BS_ADAM_CHUNK, launch->threads, [&](int64_t begin, int64_t end) {
    // Here, where subnormals are kept: narrowing a factor must not flush it.
    const double lr = p.lr_tensor ? static_cast<double>(*p.lr_tensor) : p.lr;
    const float inv_scale = p.inv_scale ? *p.inv_scale : 1.0f;
    const float grad_factor = p.maximize ? -inv_scale : inv_scale;
    int64_t index = item_of(p, begin), known_step = 0;
    AdamFactors factors = {};
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      while (index + 1 < p.count && p.items[index + 1].first_chunk <= chunk) ++index;
      const BsAdamItem& item = p.items[index];
      const int64_t step = item.step ? static_cast<int64_t>(*item.step) : p.step;
      if (step != known_step)
        factors = adam_factors(lr, p.beta1, p.beta2, p.eps, p.weight_decay, p.decoupled != 0, known_step = step);
      const int64_t first = (chunk - item.first_chunk) * BS_ADAM_CHUNK;
      simd.adam_run(item, first, std::min<int64_t>(first + BS_ADAM_CHUNK, item.count), grad_factor, factors);
    }
  });
  return ok_status();
}

}  // namespace blockscale::cpu
