// SPDX-License-Identifier: Apache-2.0
#include "bind/primary.h"

namespace py = pybind11;
using py::arg;

namespace blockscale {
namespace {

using Address = uintptr_t;
template <class T>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);
}

BsShard make_shard(Address data, int32_t dtype, int32_t round_to, int64_t rows, int64_t k, int64_t start,
                   int64_t length) {
  return {pointer<const void>(data), rows, k, start, length, dtype, round_to};
}

void require_stage(const PrimaryList& list, int32_t stage) {
  if (list.stage != stage) throw py::value_error("PrimaryList: the item must be of the list's stage");
}

}  // namespace

BsPrimaryProblem PrimaryList::problem() const {
  const size_t count = partial_amax.size() + fused_scale.size() + partial_cast.size() + transpose.size();
  return {stage,
          static_cast<int64_t>(count),
          partial_amax.data(),
          fused_scale.data(),
          partial_cast.data(),
          transpose.data(),
          pointer<const void>(table)};
}

void add_primary_list(py::module_& m) {
  py::class_<PrimaryList>(m, "PrimaryList")
      .def(py::init([](int32_t stage) {
             PrimaryList list;
             list.stage = stage;
             return list;
           }),
           arg("stage").noconvert())
      .def_readwrite("table", &PrimaryList::table)
      .def("__len__", [](const PrimaryList& list) { return list.problem().count; })
      .def(
          "add_partial_amax",
          [](PrimaryList& list, Address shard, int32_t dtype, int32_t round_to, int64_t rows, int64_t k, int64_t start,
             int64_t length, Address tile_amax, Address amax) {
            require_stage(list, BS_PARTIAL_AMAX);
            list.partial_amax.push_back({make_shard(shard, dtype, round_to, rows, k, start, length),
                                         pointer<float>(tile_amax), pointer<float>(amax)});
          },
          arg("shard").noconvert(), arg("dtype").noconvert(), arg("round_to").noconvert(), arg("rows").noconvert(),
          arg("k").noconvert(), arg("start").noconvert(), arg("length").noconvert(), arg("tile_amax").noconvert(),
          arg("amax").noconvert())
      .def(
          "add_fused_scale",
          [](PrimaryList& list, Address tile_amax, Address amax, int64_t rows, int64_t k, Address tile_scales,
             Address block_scale, Address stored_amax, int64_t scale_rows, int64_t row_stride, int32_t layout,
             int32_t e4m3_max) {
            require_stage(list, BS_FUSED_SCALE);
            list.fused_scale.push_back({pointer<const float>(tile_amax), pointer<const float>(amax), rows, k,
                                        pointer<uint8_t>(tile_scales), pointer<uint8_t>(block_scale),
                                        pointer<float>(stored_amax), scale_rows, row_stride, layout, e4m3_max});
          },
          arg("tile_amax").noconvert(), arg("amax").noconvert(), arg("rows").noconvert(), arg("k").noconvert(),
          arg("tile_scales").noconvert(), arg("block_scale").noconvert(), arg("stored_amax").noconvert(),
          arg("scale_rows").noconvert(), arg("row_stride").noconvert(), arg("layout").noconvert(),
          arg("e4m3_max").noconvert())
      .def(
          "add_partial_cast",
          [](PrimaryList& list, Address shard, int32_t dtype, int32_t round_to, int64_t rows, int64_t k, int64_t start,
             int64_t length, Address tile_scales, Address amax, Address fragment, int32_t e4m3_max) {
            require_stage(list, BS_PARTIAL_CAST);
            list.partial_cast.push_back({make_shard(shard, dtype, round_to, rows, k, start, length),
                                         pointer<const uint8_t>(tile_scales), pointer<const float>(amax),
                                         pointer<uint8_t>(fragment), e4m3_max});
          },
          arg("shard").noconvert(), arg("dtype").noconvert(), arg("round_to").noconvert(), arg("rows").noconvert(),
          arg("k").noconvert(), arg("start").noconvert(), arg("length").noconvert(), arg("tile_scales").noconvert(),
          arg("amax").noconvert(), arg("fragment").noconvert(), arg("e4m3_max").noconvert())
      .def(
          "add_transpose",
          [](PrimaryList& list, const BsOperand& x, const BsOperand& y) {
            require_stage(list, BS_TRANSPOSE);
            list.transpose.push_back({x, y});
          },
          arg("x"), arg("y"));
}

}  // namespace blockscale
