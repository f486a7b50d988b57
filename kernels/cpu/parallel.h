// SPDX-License-Identifier: Apache-2.0
// Work shared among threads. OpenMP, because torch already runs one pool of its threads in the process.
#pragma once
#include <algorithm>
#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "cpu/environment.h"

namespace blockscale::cpu {

// Elements below which a second thread costs more than it saves (a parallel region takes a few microseconds).
constexpr int64_t kGrainElements = 1 << 15;

// work(begin, end) over a partition of 0..count. `unit_elements` is what one index costs, in elements.
template <class Work>
void parallel_for(int64_t count, int64_t unit_elements, int threads, const Work& work) {
  if (count <= 0) return;
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, unit_elements));
  const int64_t useful = std::max<int64_t>(1, count / grain);
  const int team = static_cast<int>(std::min<int64_t>({count, useful, std::max(1, threads)}));
#if defined(_OPENMP)
  if (team > 1) {
#pragma omp parallel num_threads(team)
    {
      const KeepSubnormals keep;
      const int64_t size = omp_get_num_threads(), index = omp_get_thread_num();
      work(count * index / size, count * (index + 1) / size);
    }
    return;
  }
#endif
  const KeepSubnormals keep;
  work(int64_t{0}, count);
}

}  // namespace blockscale::cpu
