// SPDX-License-Identifier: Apache-2.0
// L3: what the heuristic assumes of each architecture, in bytes and products a clock. Published or deduced from
// published figures, not measured here: they order plans and predict no time. A constant without a source says so.
#pragma once
#include <cstdint>

namespace blockscale {
namespace dispatch {

struct Machine {
  int32_t arch;
  // FP4 products (sm_90: BF16) of one SM in a clock: dense peak / SMs / clock / 2.
  double products_per_clock;
  // Read bandwidth of the whole chip. L2: 5,120 B a clock is what the A100 white paper gives for one die; newer ones
  // are assumed to be no slower, and sm_100 and sm_103 have two.
  double l2_bytes_per_clock;
  double dram_bytes_per_clock;
  // Instructions that turn one FP4 element into BF16 before the MMA; an assumption.
  double decode_instructions;
};

constexpr Machine kMachines[] = {
    // H200: 989 TFLOP/s BF16 on 132 SMs at 1.83 GHz; 4.8 TB/s.
    {90, 2048, 5120, 2620, 2.0},
    // B200: 9 PFLOP/s on 148 SMs at 1.85 GHz; 8 TB/s.
    {100, 16384, 16384, 4320, 0.0},
    // B300: the instruction of K 64 is taken to be as fast as on sm_100; that of K 96 does half as much again in the
    // same time, which is how 9 become 13 to 14 PFLOP/s.
    {103, 16384, 16384, 4320, 0.0},
    // RTX 5090: 1,676 TFLOP/s on 170 SMs at 2.41 GHz; 1.79 TB/s.
    {120, 2048, 5120, 744, 0.0},
};

// Null for an architecture without kernels.
inline const Machine* machine_of(int32_t arch) {
  for (const Machine& machine : kMachines)
    if (machine.arch == arch) return &machine;
  return nullptr;
}

constexpr double kOperandBytes = 0.5625;  // of an element: half a byte of code and a sixteenth of block scale
constexpr double kCodeBytes = 0.5;
constexpr double kLanes = 128;        // FP32 lanes of an SM, on all four
constexpr double kSharedBytes = 128;  // shared memory of an SM, a clock; the MMA reads its codes from there
constexpr double kFillBytes = 128;    // what one SM can receive in a clock: assumed to be what its shared memory takes
constexpr int32_t kTensorMemoryColumns = 512;  // sm_100, sm_103: accumulators and block scales
constexpr int32_t kScaleColumns = 64;          // of these for block scales, at the least

}  // namespace dispatch
}  // namespace blockscale
