// SPDX-License-Identifier: Apache-2.0
// L1: which clusters a kernel of gemm_kernels.def can be launched with, for every architecture in one place: dispatch
// ranks legal plans only, and a backend can refuse the others by the same rule.
#pragma once
#include "gemm.h"

namespace blockscale {

// More than 8 CTAs in a cluster need an attribute that not every GPU partition can satisfy.
constexpr int32_t kMaxClusterCtas = 8;
// One multicast of block scales reaches at most 4 CTAs in each dimension.
constexpr int32_t kMaxClusterSide = 4;

inline bool is_power_of_two(int32_t x) { return x > 0 && (x & (x - 1)) == 0; }

inline bool is_legal_cluster(const BsGemmKernelInfo& kernel, int32_t cluster_m, int32_t cluster_n) {
  // The kernels of sm_90 are compiled for a cluster of 2 x 1; sm_120 has no multicast, so a cluster brings nothing.
  if (kernel.arch == 90) return cluster_m == 2 && cluster_n == 1;
  if (kernel.arch == 120) return cluster_m == 1 && cluster_n == 1;
  return is_power_of_two(cluster_m) && is_power_of_two(cluster_n) && cluster_m <= kMaxClusterSide &&
         cluster_n <= kMaxClusterSide && cluster_m * cluster_n <= kMaxClusterCtas && cluster_m % kernel.sms == 0;
}

}  // namespace blockscale
