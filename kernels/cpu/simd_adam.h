// SPDX-License-Identifier: Apache-2.0
// The Adam step on a run of elements, sixteen at a time. Included by simd_kernels.cpp only, inside its instruction set.
#pragma once
#include "contract/adam.h"
#include "numerics/adam.h"
#include "numerics/narrow.h"

namespace blockscale {

// Beside f32x16, where the template of numerics/adam.h looks for it.
BS_HD f32x16 square_root(const f32x16& x) {
  f32x16 result;
  for (int i = 0; i < f32x16::kParts; ++i) {
#if defined(__AVX512F__)
    result.part[i] = reinterpret_cast<f32x16::Part>(_mm512_sqrt_ps(reinterpret_cast<__m512>(x.part[i])));
#elif defined(__AVX2__)
    result.part[i] = reinterpret_cast<f32x16::Part>(_mm256_sqrt_ps(reinterpret_cast<__m256>(x.part[i])));
#elif defined(__SSE2__)
    result.part[i] = reinterpret_cast<f32x16::Part>(_mm_sqrt_ps(reinterpret_cast<__m128>(x.part[i])));
#else
    for (int j = 0; j < f32x16::kPartLanes; ++j) result.part[i][j] = std::sqrt(x.part[i][j]);
#endif
  }
  return result;
}

}  // namespace blockscale

namespace blockscale::cpu {
namespace {

// Elements begin..begin + 16 of every array.
template <class Source>
BS_INLINE void adam_sixteen(const BsAdamItem& item, int64_t begin, float grad_factor, const AdamFactors& factors) {
  const auto* grad = static_cast<const typename Source::Element*>(item.grad) + begin;
  const AdamElement<f32x16> old = {load_unaligned<f32x16>(item.master + begin),
                                   load_unaligned<f32x16>(item.exp_avg + begin),
                                   load_unaligned<f32x16>(item.exp_avg_sq + begin)};
  const AdamElement<f32x16> next = adam_element(old, Source::load(grad), grad_factor, factors);
  store_unaligned(item.master + begin, next.master);
  store_unaligned(item.exp_avg + begin, next.exp_avg);
  store_unaligned(item.exp_avg_sq + begin, next.exp_avg_sq);
  if (!item.copy) return;
  const u32x16 bits = bits_of(next.master);
  if (item.copy_dtype == BS_F32) return store_unaligned(static_cast<float*>(item.copy) + begin, next.master);
  store_u16(static_cast<uint16_t*>(item.copy) + begin,
            item.copy_dtype == BS_BF16 ? narrow_bf16_bits(bits) : narrow_f16_bits(bits));
}

// The last elements, fewer than sixteen, through arrays of sixteen: the lanes that do not exist compute on zeros.
template <class Source>
void adam_tail(const BsAdamItem& item, int64_t begin, int64_t count, float grad_factor, const AdamFactors& factors) {
  using Element = typename Source::Element;
  const int64_t copy_bytes = item.copy_dtype == BS_F32 ? 4 : 2;
  float master[kLanes] = {}, exp_avg[kLanes] = {}, exp_avg_sq[kLanes] = {}, copy[kLanes];
  Element grad[kLanes] = {};
  std::memcpy(master, item.master + begin, count * sizeof(float));
  std::memcpy(exp_avg, item.exp_avg + begin, count * sizeof(float));
  std::memcpy(exp_avg_sq, item.exp_avg_sq + begin, count * sizeof(float));
  std::memcpy(grad, static_cast<const Element*>(item.grad) + begin, count * sizeof(Element));
  BsAdamItem lanes = item;
  lanes.master = master, lanes.exp_avg = exp_avg, lanes.exp_avg_sq = exp_avg_sq, lanes.grad = grad;
  lanes.copy = item.copy ? copy : nullptr;
  adam_sixteen<Source>(lanes, 0, grad_factor, factors);
  std::memcpy(item.master + begin, master, count * sizeof(float));
  std::memcpy(item.exp_avg + begin, exp_avg, count * sizeof(float));
  std::memcpy(item.exp_avg_sq + begin, exp_avg_sq, count * sizeof(float));
  if (item.copy) std::memcpy(static_cast<char*>(item.copy) + begin * copy_bytes, copy, count * copy_bytes);
}

void adam_run(const BsAdamItem& item, int64_t begin, int64_t end, float grad_factor, const AdamFactors& factors) {
  with_source(item.grad_dtype, [&](auto source) {
    using Source = decltype(source);
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) adam_sixteen<Source>(item, i, grad_factor, factors);
    if (i < end) adam_tail<Source>(item, i, end - i, grad_factor, factors);
  });
}

}  // namespace
}  // namespace blockscale::cpu
