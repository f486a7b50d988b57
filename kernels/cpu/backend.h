// SPDX-License-Identifier: Apache-2.0
// The functions of the CPU backend, one a file; backend.cpp gathers them. Start with quantize.cpp.
#pragma once
#include "contract/backend.h"

namespace blockscale::cpu {

BsStatus amax(const BsAmaxProblem* problem, const BsLaunch* launch);
BsStatus quantize(const BsQuantizeProblem* problem, const BsLaunch* launch);
BsStatus dequantize(const BsDequantizeProblem* problem, const BsLaunch* launch);
BsStatus transpose(const BsTransposeProblem* problem, const BsLaunch* launch);
BsStatus relayout(const BsRelayoutProblem* problem, const BsLaunch* launch);
BsStatus widen(const BsWidenProblem* problem, const BsLaunch* launch);
BsStatus accumulate(const BsAccumulateProblem* problem, const BsLaunch* launch);
BsStatus epilogue(const BsEpilogueProblem* problem, const BsLaunch* launch);
BsStatus primary(const BsPrimaryProblem* problem, const BsLaunch* launch);
BsStatus adam(const BsAdamProblem* problem, const BsLaunch* launch);

const BsBackend& backend();

}  // namespace blockscale::cpu
