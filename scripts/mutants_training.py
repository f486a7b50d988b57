# SPDX-License-Identifier: Apache-2.0
"""The mutants of gradients, optimizers and master casts, a part of the list in `mutants.py`."""

from __future__ import annotations

from mutant import Mutant

ADAM = "kernels/numerics/adam.h"
CAST_PLAN = "python/blockscale/distributed/cast_plan.py"

ADAM_TESTS = "tests/optim/test_adam_kernel.py"
OPTIMIZER_TESTS = "tests/optim/test_fused_adam.py"
CAST_BUGS = "tests/distributed/test_bugs_master_cast.py"

TRAINING: tuple[Mutant, ...] = (
    Mutant(
        "input_gradient_from_a_row_of_another_block",
        "python/blockscale/nn/functional.py",
        "return dy @ dequantize(columnwise).t()",
        "return dy @ dequantize(columnwise).t().roll(16, 0)",
        ("tests/nn/test_functional.py",),
    ),
    Mutant(
        "adam_bias_of_the_step_before",
        ADAM,
        "const double correction1 = 1.0 - adam_power(beta1, step);",
        "const double correction1 = 1.0 - adam_power(beta1, step + 1);",
        (ADAM_TESTS,),
    ),
    Mutant(
        "adam_without_decay", ADAM, "const F kept = old.master * f.keep;", "const F kept = old.master;", (ADAM_TESTS,)
    ),
    Mutant(
        "adam_square_of_the_unscaled_gradient",
        ADAM,
        "const F square = g * g;",
        "const F square = grad * grad;",
        (ADAM_TESTS,),
    ),
    Mutant(
        "adam_last_elements_left_out",
        "kernels/cpu/simd_adam.h",
        "if (i < end) adam_tail<Source>(item, i, end - i, grad_factor, factors);",
        "if (i + 1 < end) adam_tail<Source>(item, i, end - i - 1, grad_factor, factors);",
        (ADAM_TESTS,),
    ),
    Mutant(
        "adam_step_with_inf_is_taken",
        "kernels/cpu/adam.cpp",
        "if (p.found_inf && *p.found_inf != 0.0f) return ok_status();",
        "if (p.found_inf && *p.found_inf < 0.0f) return ok_status();",
        (ADAM_TESTS,),
    ),
    Mutant(
        "masters_through_the_dtype_of_the_parameter",
        "python/blockscale/optim/fused_adam.py",
        "name: value for name, value in state.items() if name in FLOAT_STATE",
        "name: value.bfloat16() for name, value in state.items() if name in FLOAT_STATE",
        (OPTIMIZER_TESTS,),
    ),
    Mutant(
        "old_addresses_of_gradients",
        "python/blockscale/optim/adam_list.py",
        "if self._items.set_grads([grad.data_ptr() for grad in grads]):",
        "if len(grads) != len(self._items):",
        (ADAM_TESTS,),
    ),
    Mutant(
        "tiles_are_not_reduced",
        CAST_PLAN,
        "        if tiles:\n",
        "        if not tiles:\n",
        ("tests/distributed/test_partial_equals_full.py",),
    ),
    Mutant(
        "amax_reduced_as_float",
        CAST_PLAN,
        "dist.all_reduce(self._amax_bits, op",
        "dist.all_reduce(self.amaxes, op",
        ("tests/distributed/test_partial_equals_full.py",),
    ),
    Mutant(
        "a_later_fault_is_silent",
        CAST_PLAN,
        "self._bits.fill_(NAN_AMAX_BITS)",
        "self._bits.fill_(0)",
        ("tests/distributed/test_faults.py",),
    ),
    Mutant(
        "verdicts_are_exchanged_always",
        "python/blockscale/distributed/verdicts.py",
        "_known.setdefault(operand, WeakSet()).add(group)",
        "_known.setdefault(operand, WeakSet())",
        ("tests/distributed/test_faults.py",),
    ),
    Mutant(
        "plan_of_another_start",
        CAST_PLAN,
        "            and list(starts) == self._starts\n",
        "",
        (CAST_BUGS,),
    ),
    Mutant(
        "old_columnwise_bytes_are_read",
        CAST_PLAN,
        "            each.state = stale\n",
        "            pass\n",
        (CAST_BUGS,),
    ),
)
