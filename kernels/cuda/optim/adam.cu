// SPDX-License-Identifier: Apache-2.0
// One Adam or AdamW step over a list of tensors (docs/numerics.md section 18) in one launch: a CTA takes a run of the
// list's chunks and finds its first item by bisection. Bound by memory: 28 to 30 bytes an element.
#include "contract/adam_checks.h"
#include "cuda/launch.cuh"
#include "cuda/load.cuh"
#include "cuda/narrow.cuh"
#include "numerics/adam.h"

namespace blockscale::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kCtasPerMultiprocessor = 4;
constexpr int kVector = 4;  // elements of a thread at a time: 16 bytes of each FP32 array

struct Params {
  BsAdamProblem problem;  // its host pointer is not read
  int64_t chunks;
};

__device__ __forceinline__ int64_t item_of(const Params& p, int64_t chunk) {
  int64_t low = 0, high = p.problem.count;  // the last item that starts at or before the chunk is in low..high - 1
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (p.problem.device_items[middle].first_chunk <= chunk)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// Four elements; `count` of them exist.
template <class Tag>
__device__ __forceinline__ void load_grad(const void* base, int64_t at, int64_t count, bool vector, float (&out)[4]) {
  using Element = typename Tag::Element;
  const Element* from = static_cast<const Element*>(base) + at;
  alignas(16) Element raw[kVector] = {};
  if (vector && count >= kVector) {
    if constexpr (kIsF32<Tag>)
      *reinterpret_cast<uint4*>(raw) = __ldg(reinterpret_cast<const uint4*>(from));
    else
      *reinterpret_cast<uint2*>(raw) = __ldg(reinterpret_cast<const uint2*>(from));
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      if (i < count) raw[i] = __ldg(from + i);
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) out[i] = widen<Tag>(raw[i]);
}

__device__ __forceinline__ void load_floats(const float* from, int64_t count, bool vector, float (&out)[4]) {
  if (vector && count >= kVector) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    out[0] = four.x, out[1] = four.y, out[2] = four.z, out[3] = four.w;
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i) out[i] = i < count ? from[i] : 0.0f;
  }
}

__device__ __forceinline__ void store_floats(float* to, int64_t count, bool vector, const float (&values)[4]) {
  if (vector && count >= kVector) {
    *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      if (i < count) to[i] = values[i];
  }
}

template <class Tag>
__device__ __forceinline__ void store_copy(void* base, int64_t at, int64_t count, bool vector,
                                           const float (&values)[4]) {
  using Element = typename Tag::Element;
  Element* to = static_cast<Element*>(base) + at;
  Element narrowed[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) narrowed[i] = narrow<Tag>(values[i]);
  if (vector && count >= kVector) {
    if constexpr (kIsF32<Tag>)
      *reinterpret_cast<uint4*>(to) = make_uint4(narrowed[0], narrowed[1], narrowed[2], narrowed[3]);
    else
      *reinterpret_cast<uint2*>(to) = make_uint2(narrowed[0] | static_cast<uint32_t>(narrowed[1]) << 16,
                                                 narrowed[2] | static_cast<uint32_t>(narrowed[3]) << 16);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      if (i < count) to[i] = narrowed[i];
  }
}

__device__ __forceinline__ bool starts_on(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// Elements first..end of an item. A chunk starts on a multiple of kVector, so alignment is that of the arrays.
__device__ void adam_chunk(const BsAdamItem& item, int64_t first, int64_t end, float grad_factor,
                           const AdamFactors& factors) {
  const bool vector = starts_on(item.master, 16) && starts_on(item.exp_avg, 16) && starts_on(item.exp_avg_sq, 16) &&
                      starts_on(item.grad, item.grad_dtype == BS_F32 ? 16 : 8) &&
                      starts_on(item.copy, item.copy_dtype == BS_F32 ? 16 : 8);
#pragma unroll 2
  for (int64_t at = first + threadIdx.x * kVector; at < end; at += kThreads * kVector) {
    const int64_t count = end - at;
    float master[kVector], exp_avg[kVector], exp_avg_sq[kVector], grad[kVector];
    load_floats(item.master + at, count, vector, master);
    load_floats(item.exp_avg + at, count, vector, exp_avg);
    load_floats(item.exp_avg_sq + at, count, vector, exp_avg_sq);
    if (item.grad_dtype == BS_F32)
      load_grad<F32>(item.grad, at, count, vector, grad);
    else if (item.grad_dtype == BS_BF16)
      load_grad<Bf16>(item.grad, at, count, vector, grad);
    else
      load_grad<F16>(item.grad, at, count, vector, grad);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const AdamElement<float> next =
          adam_element(AdamElement<float>{master[i], exp_avg[i], exp_avg_sq[i]}, grad[i], grad_factor, factors);
      master[i] = next.master, exp_avg[i] = next.exp_avg, exp_avg_sq[i] = next.exp_avg_sq;
    }
    store_floats(item.master + at, count, vector, master);
    store_floats(item.exp_avg + at, count, vector, exp_avg);
    store_floats(item.exp_avg_sq + at, count, vector, exp_avg_sq);
    if (!item.copy) continue;
    if (item.copy_dtype == BS_F32)
      store_copy<F32>(item.copy, at, count, vector, master);
    else if (item.copy_dtype == BS_BF16)
      store_copy<Bf16>(item.copy, at, count, vector, master);
    else
      store_copy<F16>(item.copy, at, count, vector, master);
  }
}

// What the threads of a CTA share: the item of the chunk at hand and its step's factors.
struct Shared {
  BsAdamItem item;
  AdamFactors factors;
};

__global__ void __launch_bounds__(kThreads, kCtasPerMultiprocessor) adam_kernel(const __grid_constant__ Params p) {
  __shared__ Shared shared;
  const BsAdamProblem& problem = p.problem;
  if (problem.found_inf && *problem.found_inf != 0.0f) return;
  const float inv_scale = problem.inv_scale ? *problem.inv_scale : 1.0f;
  const float grad_factor = problem.maximize ? -inv_scale : inv_scale;
  const int64_t begin = p.chunks * blockIdx.x / gridDim.x, end = p.chunks * (blockIdx.x + 1) / gridDim.x;
  int64_t index = -1, known_step = 0;  // thread 0's
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    __syncthreads();  // the chunk before is done with `shared`
    if (threadIdx.x == 0) {
      const int64_t before = index;
      if (index < 0) index = item_of(p, chunk);
      while (index + 1 < problem.count && problem.device_items[index + 1].first_chunk <= chunk) ++index;
      if (index != before) {
        shared.item = problem.device_items[index];
        const int64_t step = shared.item.step ? static_cast<int64_t>(*shared.item.step) : problem.step;
        if (step != known_step) {
          const double lr = problem.lr_tensor ? static_cast<double>(*problem.lr_tensor) : problem.lr;
          shared.factors = adam_factors(lr, problem.beta1, problem.beta2, problem.eps, problem.weight_decay,
                                        problem.decoupled != 0, step);
          known_step = step;
        }
      }
    }
    __syncthreads();
    const int64_t first = (chunk - shared.item.first_chunk) * BS_ADAM_CHUNK;
    adam_chunk(shared.item, first, min(first + BS_ADAM_CHUNK, shared.item.count), grad_factor, shared.factors);
  }
}

}  // namespace

BsStatus adam(const BsAdamProblem& problem, const Context& context) {
  const Params params = {problem, adam_chunks(problem)};
  if (params.chunks == 0) return ok_status();
  if (!problem.device_items) return broken_rule("adam", "device_items", "a non-null pointer", 0);
  return launch(adam_kernel, one_wave(params.chunks, kCtasPerMultiprocessor, context), kThreads, context, params);
}

}  // namespace blockscale::cuda
