// SPDX-License-Identifier: Apache-2.0
// L4: the part of the Python module that is about choosing GEMM kernels. module.cpp calls it.
#pragma once
#include <pybind11/pybind11.h>

namespace blockscale {

void bind_gemm(pybind11::module_& m);

}  // namespace blockscale
