// SPDX-License-Identifier: Apache-2.0
// The Python class of a list of primary-weight items (contract/primary.h): it owns the items, so that a call that is
// repeated every step crosses from Python once.
#pragma once
#include <pybind11/pybind11.h>

#include <vector>

#include "contract/backend.h"

namespace blockscale {

struct PrimaryList {
  int32_t stage;
  uintptr_t table = 0;
  std::vector<BsPartialAmaxItem> partial_amax;
  std::vector<BsFusedScaleItem> fused_scale;
  std::vector<BsPartialCastItem> partial_cast;
  std::vector<BsTransposeProblem> transpose;

  BsPrimaryProblem problem() const;
};

void add_primary_list(pybind11::module_& m);

}  // namespace blockscale
