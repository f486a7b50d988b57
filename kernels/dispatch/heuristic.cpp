// SPDX-License-Identifier: Apache-2.0
// The estimate of heuristic.h. Every constant here is a choice that orders plans; none was measured.
#include "dispatch/heuristic.h"

#include <algorithm>
#include <cstdio>

#include "contract/gemm_plan.h"
#include "dispatch/machine.h"

namespace blockscale {
namespace dispatch {
namespace {

struct Cluster {
  int32_t m, n;
};
// In the order of preference where nothing else tells two plans apart.
constexpr Cluster kClusters[] = {{1, 1}, {2, 1}, {1, 2}, {4, 1}, {2, 2}, {1, 4}, {4, 2}, {2, 4}};

// M for which a batch-invariant plan is chosen, whatever M is: between decoding and prefill.
constexpr int64_t kInvariantRows = 256;

// Instructions of the epilogue for one element: three scaling lines, bias, activation and the store; quantizing adds
// maxima, a division for each block and the codes. Reading C adds a load and two operations.
constexpr double kFloatEpilogue = 8, kNvfp4Epilogue = 24, kReadC = 3;

// Work that is not the bound still costs: arbitration, bank conflicts, power. This share of it.
constexpr double kInterference = 0.15;

// A ping-pong kernel gives up about 5 % of the cooperative one's speed where K is long (published for sm_120).
constexpr double kPingpongMath = 0.95;

constexpr double kLatency = 1000;     // clocks from a request to DRAM until it can be multiplied
constexpr double kClusterStart = 60;  // clocks a cluster waits for its members, for each of them
constexpr double kLockstep = 0.015;   // what each doubling of a cluster costs its main loop, whose stages it shares

// Stages of K 768 are few and large. Published tuning prefers K 256 where K is short, up to some 8,192 for a single
// row; this is what such a kernel must win back.
constexpr double kLongStage = 1500;

int64_t divide_up(int64_t x, int64_t y) { return (x + y - 1) / y; }

// Clusters that are resident at once. The SMs of a GPC, 16 to 20, seldom divide by 4, more seldom by 8: a sixteenth or
// an eighth is taken to idle.
int32_t cluster_slots(int32_t multiprocessors, int32_t ctas) {
  const int64_t idle = ctas <= 2 ? 0 : divide_up(multiprocessors, ctas == 4 ? 16 : 8);
  return std::max<int32_t>(1, static_cast<int32_t>(multiprocessors - idle) / ctas);
}

int32_t doublings(int32_t ctas) { return ctas <= 1 ? 0 : ctas <= 2 ? 1 : ctas <= 4 ? 2 : 3; }

// Legal, and not larger than the device or so large that half of it would have no work. The smallest always fits.
bool fits(const GemmQuestion& q, const BsGemmKernelInfo& kernel, Cluster cluster) {
  if (!is_legal_cluster(kernel, cluster.m, cluster.n)) return false;
  if (kernel.arch == 90) return true;  // there is no other
  if (cluster.m * cluster.n > q.multiprocessors) return false;
  const int64_t rows = kernel.swapped ? q.n : q.m, cols = kernel.swapped ? q.m : q.n;
  const bool idle_m = cluster.m > kernel.sms && rows <= int64_t{kernel.tile_m} / kernel.sms * (cluster.m / 2);
  const bool idle_n = cluster.n > 1 && cols <= int64_t{kernel.tile_n} * (cluster.n / 2);
  return !idle_m && !idle_n;
}

double output_bytes(int32_t output) { return output == BS_OUTPUT_16BIT ? 2 : output == BS_OUTPUT_32BIT ? 4 : 0.5625; }

// What is alike for all plans of a question.
struct Common {
  const Machine* machine;
  double dram_clocks;
  double epilogue_instructions;
};

Common common_of(const GemmQuestion& q) {
  Common common = {};
  common.machine = machine_of(q.arch);
  if (!common.machine) return common;
  const double m = q.m, n = q.n, k = q.k;
  const double written = m * n * (output_bytes(q.output) + (q.has_c ? 2 : 0));
  common.dram_clocks = ((m + n) * k * kOperandBytes + written) / common.machine->dram_bytes_per_clock;
  common.epilogue_instructions = q.output == BS_OUTPUT_NVFP4 ? kNvfp4Epilogue : kFloatEpilogue;
  if (q.has_c) common.epilogue_instructions += kReadC;
  return common;
}

// How much of the epilogues stands between main loops. Two accumulators in tensor memory hide all but the last one; a
// tile of 256 columns leaves room for one only, most of which is drained while the next tile starts; the block scales
// of K 768 take the columns that this needs.
double exposed_epilogues(const BsGemmKernelInfo& kernel, double rounds) {
  if (kernel.schedule == BS_PINGPONG) return 1;
  if (kernel.arch == 90 || kernel.arch == 120) return rounds;
  if (2 * kernel.tile_n + kScaleColumns <= kTensorMemoryColumns) return 1;
  return instruction_k(kernel) == 96 ? rounds : 1 + 0.25 * (rounds - 1);
}

GemmEstimate estimate(const GemmQuestion& q, const Common& common, int32_t index, Cluster cluster) {
  const BsGemmKernelInfo& kernel = kernel_at(index)->info;
  const Machine& machine = *common.machine;
  const int64_t rows = kernel.swapped ? q.n : q.m, cols = kernel.swapped ? q.m : q.n;
  const int32_t cta_m = kernel.tile_m / kernel.sms, ctas = cluster.m * cluster.n;
  const int64_t row_clusters = divide_up(rows, int64_t{cta_m} * cluster.m);
  const int64_t col_clusters = divide_up(cols, int64_t{kernel.tile_n} * cluster.n);

  GemmEstimate e = {};
  e.plan = {index, cluster.m, cluster.n};
  e.clusters = row_clusters * col_clusters;
  e.slots = cluster_slots(q.multiprocessors, ctas);
  e.rounds = divide_up(e.clusters, e.slots);
  e.waves = static_cast<double>(e.clusters) / e.slots;

  const double rounds = e.rounds, k = q.k;
  const double k_padded = divide_up(q.k, kernel.tile_k) * kernel.tile_k;
  const double tile = static_cast<double>(cta_m) * kernel.tile_n;  // outputs of one CTA
  const double real = static_cast<double>(q.m) * q.n * k;
  e.padding = 1 - real / (tile * ctas * e.clusters * k_padded);

  // Clocks of one SM over all its rounds.
  double rate = machine.products_per_clock;
  if (instruction_k(kernel) == 96) rate *= 1.5;
  if (kernel.schedule == BS_PINGPONG) rate *= kPingpongMath;
  const double math = rounds * tile * k_padded / rate;
  const double own_rows = cta_m, own_cols = static_cast<double>(kernel.tile_n) / kernel.sms;
  const bool tensor_memory = kernel.arch == 100 || kernel.arch == 103;  // elsewhere operands pass through registers
  const double shared = tensor_memory ? rounds * (own_rows + own_cols) * k_padded * kCodeBytes / kSharedBytes : 0;
  const double decode = rounds * (own_rows + own_cols) * k_padded * machine.decode_instructions / kLanes;
  // Rows that do not exist are not loaded. Multicast spares L2, not the SM that receives.
  const double loaded_rows = static_cast<double>(std::min<int64_t>(rows, cta_m));
  const double loaded_cols = static_cast<double>(std::min<int64_t>(cols, kernel.tile_n)) / kernel.sms;
  const double fill = rounds * (loaded_rows + loaded_cols) * k * kOperandBytes / kFillBytes;
  const double epilogue = tile * common.epilogue_instructions / kLanes;
  // Clocks of the chip.
  const double l2 = k * kOperandBytes *
                    (static_cast<double>(rows) * col_clusters + static_cast<double>(cols) * row_clusters) /
                    machine.l2_bytes_per_clock;

  const double costs[] = {math, shared, fill, decode, rounds * epilogue, l2, common.dram_clocks};
  const double exposed = exposed_epilogues(kernel, rounds);
  double worst = 0, sum = 0;
  for (int32_t i = 0; i < 7; ++i) {
    sum += costs[i];
    if (costs[i] <= worst) continue;
    worst = costs[i];
    e.bound = static_cast<Bound>(i);
  }
  const double main_loop = worst + kInterference * (sum - worst);
  const double start = kLatency + (instruction_k(kernel) == 96 ? kLongStage : 0) + kClusterStart * ctas;
  e.clocks = start + main_loop * (1 + kLockstep * doublings(ctas)) + exposed * epilogue;
  return e;
}

// The question whose answer is wanted: a batch-invariant one does not know M.
GemmQuestion without_m_if_invariant(GemmQuestion q) {
  if (q.batch_invariant) q.m = kInvariantRows;
  return q;
}

template <class Visit>
void for_each_plan(const GemmQuestion& q, Visit visit) {
  const Common common = common_of(q);
  if (!common.machine || q.multiprocessors < 1) return;
  for (int32_t index = 0; index < kernel_count(); ++index) {
    if (!is_candidate(q, index)) continue;
    for (const Cluster cluster : kClusters)
      if (fits(q, kernel_at(index)->info, cluster)) visit(estimate(q, common, index, cluster));
  }
}

}  // namespace

const char* name_of(Bound bound) {
  constexpr const char* kNames[] = {"tensor cores", "shared memory", "SM port", "decoding", "epilogue", "L2", "DRAM"};
  return kNames[static_cast<int32_t>(bound)];
}

bool is_batch_invariant(const BsGemmKernelInfo& kernel) {
  // 16 on sm_90 and 64 on the others: K 96 on sm_103 groups the products otherwise. A swapped kernel gives the MMA's
  // two operands each other's place, which no document says is without effect.
  return !kernel.swapped && instruction_k(kernel) == (kernel.arch == 90 ? 16 : 64);
}

bool is_candidate(const GemmQuestion& q, int32_t index) {
  const GemmKernel* kernel = kernel_at(index);
  if (!kernel || kernel->info.arch != q.arch || kernel->info.output != q.output) return false;
  if (!(q.built & set_of(index))) return false;
  if (q.output == BS_OUTPUT_NVFP4 && (q.n % 16 || kernel->info.swapped)) return false;
  return !q.batch_invariant || is_batch_invariant(kernel->info);
}

bool choose(const GemmQuestion& question, BsGemmPlan* plan) {
  bool found = false;
  double best = 0;
  for_each_plan(without_m_if_invariant(question), [&](const GemmEstimate& e) {
    if (found && e.clocks >= best) return;
    found = true;
    best = e.clocks;
    *plan = e.plan;
  });
  return found;
}

std::vector<GemmEstimate> rank(const GemmQuestion& question) {
  std::vector<GemmEstimate> ranked;
  for_each_plan(without_m_if_invariant(question), [&](const GemmEstimate& e) { ranked.push_back(e); });
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const GemmEstimate& x, const GemmEstimate& y) { return x.clocks < y.clocks; });
  return ranked;
}

std::string explain(const GemmEstimate& e) {
  char text[256];
  std::snprintf(text, sizeof text,
                "%s, cluster %dx%d: %lld clusters of work on %d slots, %.2f waves; %.0f %% padding; about %.0f clocks, "
                "bound by %s",
                kernel_at(e.plan.kernel)->info.name, e.plan.cluster_m, e.plan.cluster_n,
                static_cast<long long>(e.clusters), e.slots, e.waves, 100 * e.padding, e.clocks, name_of(e.bound));
  return text;
}

}  // namespace dispatch
}  // namespace blockscale
