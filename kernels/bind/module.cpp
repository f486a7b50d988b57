// SPDX-License-Identifier: Apache-2.0
// The Python module over the C ABI: names and exceptions, nothing else. Tensors arrive as addresses; no torch header.
// Every argument is .noconvert(): a one-element tensor passed where an address belongs is a TypeError.
#include <build_facts.h>
#include <pybind11/pybind11.h>

#include <cmath>
#include <memory>
#include <string>

#include "bind/adam_module.h"
#include "bind/blockscale.h"
#include "bind/gemm_module.h"
#include "bind/primary.h"
#include "contract/status.h"
#include "cpu/simd_kernels.h"
#include "numerics/bits.h"

namespace py = pybind11;
using py::arg;

namespace {

using Address = uintptr_t;
template <class T>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);
}

void raise_if_failed(const BsStatus& status) {
  switch (status.code) {
    case BS_OK:
      return;
    case BS_INVALID:
      throw py::value_error(status.message);
    case BS_NOT_OFFERED:
      PyErr_SetString(PyExc_NotImplementedError, status.message);
      throw py::error_already_set();
    default:
      throw std::runtime_error(status.message);
  }
}

struct Backend {
  const BsBackend* table;
};

BsMatrix make_matrix(Address data, int32_t dtype, int64_t rows, int64_t cols, int64_t row_stride) {
  return {pointer<void>(data), dtype, rows, cols, row_stride};
}

BsOperand make_operand(Address qdata, Address block_scale, Address amax, int64_t rows, int64_t k, int32_t layout,
                       int32_t scaling, int32_t e4m3_max) {
  return {pointer<uint8_t>(qdata),
          pointer<uint8_t>(block_scale),
          pointer<float>(amax),
          rows,
          k,
          layout,
          scaling,
          e4m3_max,
          1};
}

BsLaunch make_launch(Address stream, int32_t device, int32_t threads, Address workspace, int64_t workspace_bytes) {
  return {pointer<void>(stream), device, threads, pointer<void>(workspace), workspace_bytes};
}

// A double that float represents (Python has checked), also where the thread flushes subnormals to zero.
float narrow(double value) {
  if (std::fabs(value) >= 0x1p-126 || value == 0.0) return static_cast<float>(value);
  const uint32_t magnitude = static_cast<uint32_t>(std::fabs(value) * 0x1p149);
  return blockscale::float_of(magnitude | (std::signbit(value) ? 0x80000000u : 0u));
}

BsQuantizeProblem make_quantize(const BsMatrix& x, int32_t block_rows, Address rowwise_amax, Address columnwise_amax,
                                const BsOperand* rowwise, const BsOperand* columnwise) {
  BsQuantizeProblem p = {};
  p.x = x;
  p.block_rows = block_rows;
  p.rowwise_amax = pointer<const float>(rowwise_amax);
  p.columnwise_amax = pointer<const float>(columnwise_amax);
  if (rowwise) p.rowwise = *rowwise;
  if (columnwise) p.columnwise = *columnwise;
  return p;
}

BsEpilogueProblem make_epilogue(const BsMatrix& acc, Address acc_fixed, Address a_nan_rows, Address b_nan_rows,
                                bool acc_empty, Address a_amax, Address b_amax, int32_t a_scaling, int32_t b_scaling,
                                int32_t a_e4m3_max, int32_t b_e4m3_max, Address alpha_pointer, double alpha,
                                double beta, const BsMatrix* c, const BsMatrix* bias, int32_t activation,
                                const BsMatrix* d, const BsOperand* quantized, Address out_amax, int32_t return_kind,
                                Address returned_amax) {
  BsEpilogueProblem p = {};
  p.acc = acc;
  p.acc_fixed = pointer<const int64_t>(acc_fixed);
  p.a_nan_rows = pointer<const uint8_t>(a_nan_rows);
  p.b_nan_rows = pointer<const uint8_t>(b_nan_rows);
  p.acc_empty = acc_empty;
  p.a_amax = pointer<const float>(a_amax);
  p.b_amax = pointer<const float>(b_amax);
  p.a_scaling = a_scaling;
  p.b_scaling = b_scaling;
  p.a_e4m3_max = a_e4m3_max;
  p.b_e4m3_max = b_e4m3_max;
  p.alpha_pointer = pointer<const float>(alpha_pointer);
  p.alpha = narrow(alpha);
  p.beta = narrow(beta);
  if (c) p.c = *c;
  if (bias) p.bias = *bias;
  p.activation = activation;
  if (d) p.d = *d;
  if (quantized) p.quantized = *quantized;
  p.out_amax = pointer<const float>(out_amax);
  p.return_kind = return_kind;
  p.returned_amax = pointer<float>(returned_amax);
  return p;
}

// One function of the table: the interpreter lock is free while it runs.
template <class Problem>
void run(BsStatus (*function)(const Problem*, const BsLaunch*), const Problem& problem, const BsLaunch& launch) {
  BsStatus status;
  if (!function) {
    PyErr_SetString(PyExc_NotImplementedError, "this backend does not offer the function");
    throw py::error_already_set();
  }
  {
    const py::gil_scoped_release unlocked;
    status = function(&problem, &launch);
  }
  raise_if_failed(status);
}

BsStatus no_fused_gemm() { return blockscale::failure(BS_NOT_OFFERED, "gemm: this backend has no fused kernels."); }

struct CudaLibrary {
  BsCudaLibrary library;
};

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "blockscale's native library: backends as function tables over plain problems.";

  py::class_<BsMatrix>(m, "Matrix")
      .def(py::init(&make_matrix), arg("data").noconvert(), arg("dtype").noconvert(), arg("rows").noconvert(),
           arg("cols").noconvert(), arg("row_stride").noconvert());
  py::class_<BsOperand>(m, "Operand")
      .def(py::init(&make_operand), arg("qdata").noconvert(), arg("block_scale").noconvert(), arg("amax").noconvert(),
           arg("rows").noconvert(), arg("k").noconvert(), arg("layout").noconvert(), arg("scaling").noconvert(),
           arg("e4m3_max").noconvert());
  py::class_<BsLaunch>(m, "Launch")
      .def(py::init(&make_launch), arg("stream").noconvert(), arg("device").noconvert(), arg("threads").noconvert(),
           arg("workspace").noconvert(), arg("workspace_bytes").noconvert());

  py::class_<BsAmaxProblem>(m, "AmaxProblem")
      .def(py::init([](const BsMatrix& x, int32_t kind, Address amax) {
             return BsAmaxProblem{x, kind, pointer<float>(amax)};
           }),
           arg("x").noconvert(), arg("kind").noconvert(), arg("amax").noconvert());
  py::class_<BsQuantizeProblem>(m, "QuantizeProblem")
      .def(py::init(&make_quantize), arg("x").noconvert(), arg("block_rows").noconvert(),
           arg("rowwise_amax").noconvert(), arg("columnwise_amax").noconvert(), arg("rowwise").none(true),
           arg("columnwise").none(true));
  py::class_<BsDequantizeProblem>(m, "DequantizeProblem")
      .def(py::init([](const BsOperand& x, int64_t start_k, int64_t stop_k, bool units, Address nan_rows,
                       const BsMatrix& out) {
             return BsDequantizeProblem{x, start_k, stop_k, units, pointer<uint8_t>(nan_rows), out};
           }),
           arg("x").noconvert(), arg("start_k").noconvert(), arg("stop_k").noconvert(), arg("units").noconvert(),
           arg("nan_rows").noconvert(), arg("out").noconvert());
  py::class_<BsTransposeProblem>(m, "TransposeProblem")
      .def(py::init([](const BsOperand& x, const BsOperand& y) { return BsTransposeProblem{x, y}; }),
           arg("x").noconvert(), arg("y").noconvert());
  py::class_<BsRelayoutProblem>(m, "RelayoutProblem")
      .def(py::init([](Address source, Address target, int64_t rows, int64_t k, int32_t source_layout,
                       int32_t target_layout) {
             return BsRelayoutProblem{
                 pointer<const uint8_t>(source), pointer<uint8_t>(target), rows, k, source_layout, target_layout};
           }),
           arg("source").noconvert(), arg("target").noconvert(), arg("rows").noconvert(), arg("k").noconvert(),
           arg("source_layout").noconvert(), arg("target_layout").noconvert());
  py::class_<BsWidenProblem>(m, "WidenProblem")
      .def(py::init([](const BsMatrix& x, const BsMatrix& out) { return BsWidenProblem{x, out}; }),
           arg("x").noconvert(), arg("out").noconvert());
  py::class_<BsAccumulateProblem>(m, "AccumulateProblem")
      .def(py::init([](Address products, Address sums, int64_t count) {
             return BsAccumulateProblem{pointer<const double>(products), pointer<int64_t>(sums), count};
           }),
           arg("products").noconvert(), arg("sums").noconvert(), arg("count").noconvert());
  py::class_<BsEpilogueProblem>(m, "EpilogueProblem")
      .def(py::init(&make_epilogue), arg("acc").noconvert(), arg("acc_fixed").noconvert(),
           arg("a_nan_rows").noconvert(), arg("b_nan_rows").noconvert(), arg("acc_empty").noconvert(),
           arg("a_amax").noconvert(), arg("b_amax").noconvert(), arg("a_scaling").noconvert(),
           arg("b_scaling").noconvert(), arg("a_e4m3_max").noconvert(), arg("b_e4m3_max").noconvert(),
           arg("alpha_pointer").noconvert(), arg("alpha").noconvert(), arg("beta").noconvert(), arg("c").none(true),
           arg("bias").none(true), arg("activation").noconvert(), arg("d").none(true), arg("quantized").none(true),
           arg("out_amax").noconvert(), arg("return_kind").noconvert(), arg("returned_amax").noconvert());

  blockscale::add_primary_list(m);
  blockscale_bind::bind_adam(m);

  py::class_<BsGemmProblem>(m, "GemmProblem")
      .def(py::init([](const BsOperand& a, const BsOperand& b, const BsEpilogueProblem& epilogue) {
             return BsGemmProblem{a, b, epilogue};
           }),
           arg("a").noconvert(), arg("b").noconvert(), arg("epilogue").noconvert());

  py::class_<Backend>(m, "Backend")
      .def_property_readonly("name", [](const Backend& b) { return b.table->name; })
      .def(
          "amax_workspace_bytes",
          [](const Backend& b, const BsAmaxProblem& p) { return b.table->amax_workspace_bytes(&p); }, arg("problem"))
      .def(
          "quantize_workspace_bytes",
          [](const Backend& b, const BsQuantizeProblem& p) { return b.table->quantize_workspace_bytes(&p); },
          arg("problem"))
      .def(
          "epilogue_workspace_bytes",
          [](const Backend& b, const BsEpilogueProblem& p) { return b.table->epilogue_workspace_bytes(&p); },
          arg("problem"))
      .def(
          "amax", [](const Backend& b, const BsAmaxProblem& p, const BsLaunch& l) { run(b.table->amax, p, l); },
          arg("problem"), arg("launch"))
      .def(
          "quantize",
          [](const Backend& b, const BsQuantizeProblem& p, const BsLaunch& l) { run(b.table->quantize, p, l); },
          arg("problem"), arg("launch"))
      .def(
          "dequantize",
          [](const Backend& b, const BsDequantizeProblem& p, const BsLaunch& l) { run(b.table->dequantize, p, l); },
          arg("problem"), arg("launch"))
      .def(
          "transpose",
          [](const Backend& b, const BsTransposeProblem& p, const BsLaunch& l) { run(b.table->transpose, p, l); },
          arg("problem"), arg("launch"))
      .def(
          "relayout",
          [](const Backend& b, const BsRelayoutProblem& p, const BsLaunch& l) { run(b.table->relayout, p, l); },
          arg("problem"), arg("launch"))
      .def(
          "widen", [](const Backend& b, const BsWidenProblem& p, const BsLaunch& l) { run(b.table->widen, p, l); },
          arg("problem"), arg("launch"))
      .def(
          "accumulate",
          [](const Backend& b, const BsAccumulateProblem& p, const BsLaunch& l) { run(b.table->accumulate, p, l); },
          arg("problem"), arg("launch"))
      .def(
          "epilogue",
          [](const Backend& b, const BsEpilogueProblem& p, const BsLaunch& l) { run(b.table->epilogue, p, l); },
          arg("problem"), arg("launch"))
      .def(
          "primary_table_bytes",
          [](const Backend& b, const blockscale::PrimaryList& list) {
            const BsPrimaryProblem p = list.problem();
            return b.table->primary_table_bytes(&p);
          },
          arg("problem"))
      .def(
          "pack_primary_table",
          [](const Backend& b, const blockscale::PrimaryList& list, Address host_table) {
            const BsPrimaryProblem p = list.problem();
            raise_if_failed(b.table->pack_primary_table(&p, pointer<void>(host_table)));
          },
          arg("problem"), arg("host_table").noconvert())
      .def(
          "primary",
          [](const Backend& b, const blockscale::PrimaryList& list, const BsLaunch& l) {
            run(b.table->primary, list.problem(), l);
          },
          arg("problem"), arg("launch"))
      .def(
          "adam", [](const Backend& b, const BsAdamProblem& p, const BsLaunch& l) { run(b.table->adam, p, l); },
          arg("problem"), arg("launch"))
      .def(
          "gemm_built",
          [](const Backend& b, int32_t kernel) { return b.table->gemm_built && b.table->gemm_built(kernel); },
          arg("kernel").noconvert())
      .def(
          "gemm_check",
          [](const Backend& b, const BsGemmProblem& p, const BsGemmPlan& plan) {
            raise_if_failed(b.table->gemm_check ? b.table->gemm_check(&p, &plan) : no_fused_gemm());
          },
          arg("problem"), arg("plan"))
      .def(
          "gemm_workspace_bytes",
          [](const Backend& b, const BsGemmProblem& p, const BsGemmPlan& plan) {
            return b.table->gemm_workspace_bytes ? b.table->gemm_workspace_bytes(&p, &plan) : int64_t{0};
          },
          arg("problem"), arg("plan"))
      .def(
          "gemm",
          [](const Backend& b, const BsGemmProblem& p, const BsGemmPlan& plan, const BsLaunch& launch) {
            BsStatus status = no_fused_gemm();
            if (b.table->gemm) {
              const py::gil_scoped_release unlocked;
              status = b.table->gemm(&p, &plan, &launch);
            }
            raise_if_failed(status);
          },
          arg("problem"), arg("plan"), arg("launch"));

  py::class_<CudaLibrary>(m, "CudaLibrary")
      .def(py::init([](const std::string& path) {
             auto cuda = std::make_unique<CudaLibrary>();
             raise_if_failed(blockscale_load_cuda(path.c_str(), &cuda->library));
             return cuda;
           }),
           arg("path"))
      .def_property_readonly("backend", [](const CudaLibrary& c) { return Backend{c.library.backend}; })
      .def_property_readonly("targets", [](const CudaLibrary& c) { return c.library.targets(); })
      .def(
          "probe", [](const CudaLibrary& c, int32_t device) { raise_if_failed(c.library.probe(device)); },
          arg("device").noconvert())
      .def(
          "check_codecs",
          [](const CudaLibrary& c, Address mismatches, const BsLaunch& launch) {
            raise_if_failed(c.library.check_codecs(pointer<unsigned long long>(mismatches), &launch));
          },
          arg("mismatches").noconvert(), arg("launch"));

  blockscale::bind_gemm(m);

  m.def("cpu_backend", [] { return Backend{blockscale_cpu_backend()}; });
  m.def("cpu_isa", [] { return blockscale_cpu_isa(); });
  m.def(
      "set_cpu_isa_level", [](int level) { return blockscale::cpu::use_simd_level(level); },
      "For tests: use the inner loops of one instruction set; false where this processor lacks it.",
      arg("level").noconvert());
  m.attr("build_compiler") = BS_COMPILER;
  m.attr("build_python") = PY_VERSION;
  m.attr("build_cuda_archs") = BS_CUDA_ARCHS;
  m.attr("build_version") = BS_VERSION;
}
