// SPDX-License-Identifier: Apache-2.0
// One step of Adam or AdamW on one element, docs/numerics.md section 18: FP32, one rounding a line. What a step's
// number decides (bias corrections) is computed once in FP64, on the host or on the device with the same bits.
#pragma once
#include <cmath>

#include "bits.h"

namespace blockscale {

// beta^step by squaring: FP64 products in an order that is part of the contract, since pow() differs among libraries.
BS_HD double adam_power(double beta, int64_t step) {
  double result = 1.0, square = beta;
  for (; step > 0; step >>= 1) {
    if (step & 1) result = result * square;
    square = square * square;
  }
  return result;
}

// What is the same for every element.
struct AdamFactors {
  float beta1, rest1, beta2, rest2, eps;
  float weight_decay;  // L2: added to the gradient, times the master; 0 with decoupled decay
  float keep;          // decoupled: what the master is multiplied by; 1 with L2
  float step_size;     // lr / (1 - beta1^step)
  float inv_root;      // 1 / sqrt(1 - beta2^step)
};

BS_HD AdamFactors adam_factors(double lr, double beta1, double beta2, double eps, double weight_decay, bool decoupled,
                               int64_t step) {
  const double correction1 = 1.0 - adam_power(beta1, step);
  const double correction2 = 1.0 - adam_power(beta2, step);
  const double decay = lr * weight_decay;
  AdamFactors f;
  f.beta1 = static_cast<float>(beta1);
  f.rest1 = static_cast<float>(1.0 - beta1);
  f.beta2 = static_cast<float>(beta2);
  f.rest2 = static_cast<float>(1.0 - beta2);
  f.eps = static_cast<float>(eps);
  f.weight_decay = decoupled ? 0.0f : static_cast<float>(weight_decay);
  f.keep = decoupled ? static_cast<float>(1.0 - decay) : 1.0f;
  f.step_size = static_cast<float>(lr / correction1);
  f.inv_root = static_cast<float>(1.0 / std::sqrt(correction2));
  return f;
}

BS_HD float square_root(float x) { return std::sqrt(x); }  // correctly rounded on every target

template <class F>
struct AdamElement {
  F master, exp_avg, exp_avg_sq;
};

// grad is widened exactly; grad_factor is 1 or the reciprocal of a loss scale, negative to maximize.
template <class F>
BS_HD AdamElement<F> adam_element(AdamElement<F> old, F grad, float grad_factor, const AdamFactors& f) {
  F g = grad * grad_factor;
  if (f.weight_decay != 0.0f) {
    const F penalty = old.master * f.weight_decay;
    g = g + penalty;
  }
  const F kept = old.master * f.keep;
  const F old_mean = old.exp_avg * f.beta1;
  const F new_mean = g * f.rest1;
  const F old_square = old.exp_avg_sq * f.beta2;
  const F square = g * g;
  const F new_square = square * f.rest2;
  AdamElement<F> next;
  next.exp_avg = old_mean + new_mean;
  next.exp_avg_sq = old_square + new_square;
  const F root = square_root(next.exp_avg_sq);
  const F corrected = root * f.inv_root;
  const F denominator = corrected + f.eps;
  const F ratio = next.exp_avg / denominator;
  const F change = ratio * f.step_size;
  next.master = kept - change;
  return next;
}

}  // namespace blockscale
