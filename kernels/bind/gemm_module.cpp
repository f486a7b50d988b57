// SPDX-License-Identifier: Apache-2.0
// Kernels, plans and the heuristic in Python. The arguments of a question are positional: this is on the path of a
// call.
#include "bind/gemm_module.h"

#include <string>

#include "contract/gemm_plan.h"
#include "dispatch/heuristic.h"

namespace py = pybind11;
using py::arg;

namespace blockscale {
namespace {

using dispatch::GemmEstimate;
using dispatch::GemmKernel;
using dispatch::GemmQuestion;

struct Kernel {
  int32_t index;
  const GemmKernel* entry;
  const BsGemmKernelInfo& info() const { return entry->info; }
};

GemmQuestion make_question(int32_t arch, int32_t multiprocessors, uint64_t built, int64_t m, int64_t n, int64_t k,
                           int32_t output, bool has_c, bool batch_invariant) {
  return {arch, multiprocessors, built, m, n, k, output, has_c, batch_invariant};
}

void raise_if_unasked(const GemmQuestion& q) {
  if (q.m < 1 || q.n < 1 || q.k < 1) throw py::value_error("gemm: M, N and K must be positive; got a smaller one.");
}

py::object choose(int32_t arch, int32_t multiprocessors, uint64_t built, int64_t m, int64_t n, int64_t k,
                  int32_t output, bool has_c, bool batch_invariant) {
  const GemmQuestion q = make_question(arch, multiprocessors, built, m, n, k, output, has_c, batch_invariant);
  raise_if_unasked(q);
  BsGemmPlan plan;
  if (!dispatch::choose(q, &plan)) return py::none();
  return py::cast(plan);
}

py::list rank(int32_t arch, int32_t multiprocessors, uint64_t built, int64_t m, int64_t n, int64_t k, int32_t output,
              bool has_c, bool batch_invariant) {
  const GemmQuestion q = make_question(arch, multiprocessors, built, m, n, k, output, has_c, batch_invariant);
  raise_if_unasked(q);
  py::list ranked;
  for (const GemmEstimate& e : dispatch::rank(q)) ranked.append(py::cast(e));
  return ranked;
}

py::list kernels() {
  py::list all;
  for (int32_t i = 0; i < dispatch::kernel_count(); ++i) all.append(py::cast(Kernel{i, dispatch::kernel_at(i)}));
  return all;
}

bool legal_plan(const BsGemmPlan& plan) {
  const GemmKernel* kernel = dispatch::kernel_at(plan.kernel);
  return kernel && is_legal_cluster(kernel->info, plan.cluster_m, plan.cluster_n);
}

void bind_question(py::module_& m, const char* name,
                   py::object (*function)(int32_t, int32_t, uint64_t, int64_t, int64_t, int64_t, int32_t, bool, bool)) {
  m.def(name, function, arg("arch").noconvert(), arg("multiprocessors").noconvert(), arg("built").noconvert(),
        arg("m").noconvert(), arg("n").noconvert(), arg("k").noconvert(), arg("output").noconvert(),
        arg("has_c").noconvert(), arg("batch_invariant").noconvert());
}

}  // namespace

void bind_gemm(py::module_& m) {
  py::class_<Kernel>(m, "GemmKernel")
      .def_property_readonly("index", [](const Kernel& k) { return k.index; })
      .def_property_readonly("name", [](const Kernel& k) { return k.info().name; })
      .def_property_readonly("core", [](const Kernel& k) { return k.entry->core; })
      .def_property_readonly("arch", [](const Kernel& k) { return k.info().arch; })
      .def_property_readonly("tile_m", [](const Kernel& k) { return k.info().tile_m; })
      .def_property_readonly("tile_n", [](const Kernel& k) { return k.info().tile_n; })
      .def_property_readonly("tile_k", [](const Kernel& k) { return k.info().tile_k; })
      .def_property_readonly("instruction_k", [](const Kernel& k) { return dispatch::instruction_k(k.info()); })
      .def_property_readonly("sms", [](const Kernel& k) { return k.info().sms; })
      .def_property_readonly("swapped", [](const Kernel& k) { return k.info().swapped != 0; })
      .def_property_readonly("output", [](const Kernel& k) { return k.info().output; })
      .def_property_readonly("schedule", [](const Kernel& k) { return k.info().schedule; })
      .def_property_readonly("batch_invariant", [](const Kernel& k) { return dispatch::is_batch_invariant(k.info()); })
      .def("__repr__", [](const Kernel& k) { return "<GemmKernel " + std::string(k.info().name) + ">"; });

  py::class_<BsGemmPlan>(m, "GemmPlan")
      .def(py::init([](int32_t kernel, int32_t cluster_m, int32_t cluster_n) {
             return BsGemmPlan{kernel, cluster_m, cluster_n};
           }),
           arg("kernel").noconvert(), arg("cluster_m").noconvert(), arg("cluster_n").noconvert())
      .def_readonly("kernel", &BsGemmPlan::kernel)
      .def_readonly("cluster_m", &BsGemmPlan::cluster_m)
      .def_readonly("cluster_n", &BsGemmPlan::cluster_n)
      .def_property_readonly("legal", &legal_plan)
      .def("__repr__", [](const BsGemmPlan& p) {
        const GemmKernel* kernel = dispatch::kernel_at(p.kernel);
        return "<GemmPlan " + (kernel ? std::string(kernel->info.name) : std::to_string(p.kernel)) + " " +
               std::to_string(p.cluster_m) + "x" + std::to_string(p.cluster_n) + ">";
      });

  py::class_<GemmEstimate>(m, "GemmEstimate")
      .def_readonly("plan", &GemmEstimate::plan)
      .def_readonly("clocks", &GemmEstimate::clocks)
      .def_readonly("waves", &GemmEstimate::waves)
      .def_readonly("rounds", &GemmEstimate::rounds)
      .def_readonly("clusters", &GemmEstimate::clusters)
      .def_readonly("slots", &GemmEstimate::slots)
      .def_readonly("padding", &GemmEstimate::padding)
      .def_property_readonly("bound", [](const GemmEstimate& e) { return dispatch::name_of(e.bound); })
      .def("explain", &dispatch::explain);

  m.def("gemm_kernels", &kernels);
  bind_question(m, "choose_gemm", &choose);
  bind_question(m, "rank_gemm", [](auto... a) -> py::object { return rank(a...); });
}

}  // namespace blockscale
