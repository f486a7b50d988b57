# SPDX-License-Identifier: Apache-2.0
"""Tests that cannot fail: small mutants of the public functions, each of which must fail the test that is named.

The mutants are put into `blockscale` itself, and the very functions that pytest runs are called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import blockscale as bs
from tests.cases import EDGE_CASES, SHAPE_CASES, VECTOR_CASES
from tests.casts import test_amax as amaxes
from tests.casts import test_bugs_numerics as numerics
from tests.casts import test_dequantize as values
from tests.casts import test_laws as laws
from tests.casts import test_layouts as layouts
from tests.casts import test_out as outs
from tests.casts import test_tables as tables
from tests.golden import golden_cases
from tests.inputs import LINEAR, SWIZZLED
from tests.memory import Guards

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
_A, _B = VECTOR_CASES[:2]
_TIES = next(case for case in EDGE_CASES if case.name == "ties")
_GOLDEN_1D, _GOLDEN_2D = golden_cases("1d")[3], golden_cases("2d")[3]


def _gen() -> torch.Generator:
    return torch.Generator().manual_seed(60)


def _changed(name: str, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """A public function whose operand results are changed."""
    real = getattr(bs, name)

    def mutant(*args: Any, **keywords: Any) -> Any:
        result = real(*args, **keywords)
        return tuple(map(change, result)) if isinstance(result, tuple) else change(result)

    return mutant


def _bytes(op: Any) -> torch.Tensor:
    return op.block_scale.view(torch.uint8)


def _scales(op: Any, scales: torch.Tensor) -> Any:
    return dataclasses.replace(op, block_scale=scales.contiguous())


def _toward_zero(op: Any) -> Any:
    """Code magnitudes one lower, 0 kept: what truncation does to most values."""
    low, high = op.qdata & 15, op.qdata >> 4
    low, high = (torch.where((n & 7) > 0, n - 1, n) for n in (low, high))
    return dataclasses.replace(op, qdata=low | high << 4)


def _dirty(op: Any) -> Any:
    """0x7F in a byte that pads the scales, where there is one."""
    scales = _bytes(op).clone()
    if op.layout is SWIZZLED and op.rows % 128:
        scales.flatten()[-1] = 0x7F
    return _scales(op, scales)


def _flush_sign(op: Any) -> Any:
    """Code 8 becomes 0."""
    low, high = op.qdata & 15, op.qdata >> 4
    low, high = (torch.where(n == 8, n - 8, n) for n in (low, high))
    return dataclasses.replace(op, qdata=low | high << 4)


MUTANTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "zeros": (
        "quantize",
        _changed("quantize", lambda op: dataclasses.replace(_scales(op, _bytes(op) * 0), qdata=op.qdata * 0)),
    ),
    "nibbles swapped": (
        "quantize",
        _changed("quantize", lambda op: dataclasses.replace(op, qdata=(op.qdata & 15) << 4 | op.qdata >> 4)),
    ),
    "scale of block i+1": ("quantize", _changed("quantize", lambda op: _scales(op, _bytes(op).roll(1, dims=1)))),
    "scale one step up": ("quantize", _changed("quantize", lambda op: _scales(op, (_bytes(op) + 1).clamp(max=0x7E)))),
    "toward zero": ("quantize", _changed("quantize", _toward_zero)),
    "sign of zero lost": ("quantize", _changed("quantize", _flush_sign)),
    "NaN to 448": ("quantize", _changed("quantize", lambda op: _scales(op, _bytes(op).clamp(max=0x7E)))),
    "padding not written": ("quantize", _changed("quantize", _dirty)),
    "amax doubled": ("quantize", _changed("quantize", lambda op: dataclasses.replace(op, amax=op.amax * 2))),
    "2 % too large": ("dequantize", _changed("dequantize", lambda y: y * 1.02)),
    "an ulp too large": ("dequantize", _changed("dequantize", lambda y: y * (1 + 2.0**-22))),
    "amax without abs": ("amax", lambda x, scaling="tensor": x.float().amax({"row": 1, "column": 0}.get(scaling))
                         if scaling != "tensor" else x.float().max()),
    "scales not transposed": (
        "transpose",
        _changed("transpose", lambda op: _scales(op, _bytes(op).flip(0))),
    ),
    "swizzle of 4 and 32 swapped": (
        "swizzle_scales",
        _changed("swizzle_scales", lambda op: _scales(
            op, _bytes(op).view(-1, 32, 4, 4).transpose(1, 2).reshape(op.block_scale.shape))),
    ),
    "orientations swapped": ("quantize_both", lambda *a, _real=bs.quantize_both, **k: _real(*a, **k)[::-1]),
}  # fmt: skip

Check = Callable[[], None]
CHECKS: dict[str, Check] = {
    "known bytes A": lambda: tables.test_known_bytes(_A, CPU),
    "known bytes B": lambda: tables.test_known_bytes(_B, CPU),
    "known bytes ties": lambda: tables.test_known_bytes(_TIES, CPU),
    "shapes": lambda: tables.test_shapes(SHAPE_CASES[0], CPU),
    "golden 1d": lambda: tables.test_golden(_GOLDEN_1D, CPU),
    "golden 2d": lambda: tables.test_golden(_GOLDEN_2D, CPU),
    "ties": lambda: numerics.test_bug_11_ties_go_to_the_even_code(CPU),
    "zero block": lambda: numerics.test_bug_03_zero_block_in_a_tensor({}, 1.0, CPU),
    "NaN": lambda: numerics.test_bug_09_10_given_amax_takes_the_block(1, float("nan"), LINEAR, CPU),
    "NaN in a row": lambda: numerics.test_bug_09_10_row_scaling_takes_the_row(float("nan"), LINEAR, CPU),
    "negative zero": lambda: numerics.test_bug_15_negative_zero({}, torch.float32, CPU),
    "negative extreme": lambda: amaxes.test_bug_16_the_extreme_is_negative(torch.float32, CPU),
    "padding": lambda: outs.test_bug_21_padding_is_written({}, CPU, Guards()),
    "offsets": lambda: layouts.test_bug_24_absolute_offsets(CPU),
    "law 2": lambda: layouts.test_law_2_transpose(48, 64, 448, LINEAR, CPU, _gen()),
    "law 3": lambda: laws.test_law_3_both_is_two_calls({}, LINEAR, CPU, _gen()),
    "power of two": lambda: laws.test_a_power_of_two_changes_the_amax_only(1, torch.float32, {}, CPU, _gen()),
    "codes and scales": lambda: values.test_every_code_under_every_scale(0.37, 448, LINEAR, CPU),
    "error bound": lambda: values.test_quantization_error_is_within_half_a_step(CPU, _gen()),
}

MUST_FAIL: dict[str, set[str]] = {
    "zeros": {"known bytes A", "golden 1d", "golden 2d", "ties", "shapes", "error bound"},
    "nibbles swapped": {"known bytes A", "golden 1d", "golden 2d", "ties", "error bound"},
    "scale of block i+1": {"known bytes ties", "golden 1d", "ties", "error bound"},
    "scale one step up": {"known bytes B", "golden 1d", "golden 2d"},
    "toward zero": {"known bytes A", "golden 1d", "golden 2d", "ties"},
    "sign of zero lost": {"known bytes ties", "negative zero", "ties"},
    "NaN to 448": {"NaN", "NaN in a row"},
    "padding not written": {"padding"},
    "amax doubled": {"known bytes A", "golden 1d", "golden 2d", "shapes", "error bound"},
    "2 % too large": {"shapes", "codes and scales"},
    "an ulp too large": {"shapes", "codes and scales"},
    "amax without abs": {"negative extreme"},
    "scales not transposed": {"law 2"},
    "swizzle of 4 and 32 swapped": {"offsets"},
    "orientations swapped": {"law 3"},
}


def test_the_suite_passes_without_a_mutant() -> None:
    for check in CHECKS.values():
        check()
    assert MUST_FAIL.keys() == MUTANTS.keys()


@pytest.mark.parametrize("mutant", MUTANTS)
def test_bug_60_mutant_fails_a_named_check(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, broken = MUTANTS[mutant]
    monkeypatch.setattr(bs, name, broken)
    failed = set()
    for check_name, check in CHECKS.items():
        try:
            check()
        except (AssertionError, ValueError):
            failed.add(check_name)
    survived = MUST_FAIL[mutant] - failed
    assert not survived, f"{mutant} in {name} was not seen by {sorted(survived)}; seen by {sorted(failed)}"
