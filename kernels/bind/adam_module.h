// SPDX-License-Identifier: Apache-2.0
// The binding of the Adam step: a list of items that Python keeps, uploads when an address changes, and hands to a
// call. Included by module.cpp.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <vector>

#include "bind/blockscale.h"
#include "contract/adam_checks.h"

namespace blockscale_bind {

namespace py = pybind11;

struct AdamItems {
  std::vector<BsAdamItem> items;

  template <class T>
  static T* at(uintptr_t address) {
    return reinterpret_cast<T*>(address);
  }

  void append(uintptr_t master, uintptr_t exp_avg, uintptr_t exp_avg_sq, uintptr_t grad, uintptr_t copy, uintptr_t step,
              int64_t count, int32_t grad_dtype, int32_t copy_dtype) {
    const int64_t first_chunk =
        items.empty() ? 0 : items.back().first_chunk + blockscale::adam_chunks(items.back().count);
    items.push_back({at<float>(master), at<float>(exp_avg), at<float>(exp_avg_sq), at<const void>(grad), at<void>(copy),
                     at<const float>(step), count, first_chunk, grad_dtype, copy_dtype});
  }

  // Whether an address changed, and so the copy on a device is old.
  bool set_grads(const std::vector<uintptr_t>& grads) {
    if (grads.size() != items.size()) throw py::value_error("adam: grads must be one for each item");
    bool changed = false;
    for (size_t i = 0; i < items.size(); ++i) {
      changed = changed || items[i].grad != at<const void>(grads[i]);
      items[i].grad = at<const void>(grads[i]);
    }
    return changed;
  }

  py::bytes bytes() const {
    return {reinterpret_cast<const char*>(items.data()), static_cast<py::ssize_t>(items.size() * sizeof(BsAdamItem))};
  }
};

inline BsAdamProblem make_adam(const AdamItems& items, uintptr_t device_items, double lr, double beta1, double beta2,
                               double eps, double weight_decay, int64_t step, bool maximize, bool decoupled,
                               uintptr_t lr_tensor, uintptr_t inv_scale, uintptr_t found_inf) {
  return {items.items.data(),
          AdamItems::at<const BsAdamItem>(device_items),
          static_cast<int64_t>(items.items.size()),
          lr,
          beta1,
          beta2,
          eps,
          weight_decay,
          step,
          maximize,
          decoupled,
          AdamItems::at<const float>(lr_tensor),
          AdamItems::at<const float>(inv_scale),
          AdamItems::at<const float>(found_inf)};
}

inline void bind_adam(py::module_& m) {
  using py::arg;
  py::class_<AdamItems>(m, "AdamItems")
      .def(py::init<>())
      .def("append", &AdamItems::append, arg("master").noconvert(), arg("exp_avg").noconvert(),
           arg("exp_avg_sq").noconvert(), arg("grad").noconvert(), arg("copy").noconvert(), arg("step").noconvert(),
           arg("count").noconvert(), arg("grad_dtype").noconvert(), arg("copy_dtype").noconvert())
      .def("set_grads", &AdamItems::set_grads, arg("grads"))
      .def("bytes", &AdamItems::bytes)
      .def("__len__", [](const AdamItems& items) { return items.items.size(); });
  py::class_<BsAdamProblem>(m, "AdamProblem")
      .def(py::init(&make_adam), arg("items"), arg("device_items").noconvert(), arg("lr").noconvert(),
           arg("beta1").noconvert(), arg("beta2").noconvert(), arg("eps").noconvert(), arg("weight_decay").noconvert(),
           arg("step").noconvert(), arg("maximize").noconvert(), arg("decoupled").noconvert(),
           arg("lr_tensor").noconvert(), arg("inv_scale").noconvert(), arg("found_inf").noconvert(),
           py::keep_alive<1, 2>());
}

}  // namespace blockscale_bind
