// SPDX-License-Identifier: Apache-2.0
// Which stage a problem asks for (docs/numerics.md section 13).
#include "cuda/primary/stages.h"

namespace blockscale::cuda {
namespace {

struct StageFunctions {
  BsStatus (*run)(const BsPrimaryProblem&, const Context&);
  int64_t (*table_bytes)(int64_t count);
  void (*pack)(const BsPrimaryProblem&, void* table);
};
constexpr StageFunctions kStages[] = {
    {partial_amax, partial_amax_table_bytes, pack_partial_amax},
    {fused_scale, fused_scale_table_bytes, pack_fused_scale},
    {partial_cast, partial_cast_table_bytes, pack_partial_cast},
    {transpose_list, transpose_table_bytes, pack_transpose},
};

}  // namespace

BsStatus primary(const BsPrimaryProblem& problem, const Context& context) {
  return kStages[problem.stage].run(problem, context);
}
int64_t primary_table_bytes(const BsPrimaryProblem& problem) {
  return kStages[problem.stage].table_bytes(problem.count);
}
void pack_primary_table(const BsPrimaryProblem& problem, void* host_table) {
  kStages[problem.stage].pack(problem, host_table);
}

BsStatus transpose(const BsTransposeProblem& problem, const Context& context) {
  BsPrimaryProblem list = {};
  list.stage = BS_TRANSPOSE;
  list.count = 1;
  list.transpose = &problem;
  return transpose_list(list, context);
}

}  // namespace blockscale::cuda
