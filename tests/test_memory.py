# SPDX-License-Identifier: Apache-2.0
"""The guards themselves: they must see a write outside, and fresh memory must be poisoned."""

import pytest
import torch

from tests.inputs import DTYPES, KINDS, make
from tests.memory import Guards


def test_new_memory_is_poisoned() -> None:
    assert torch.empty(64).isnan().all()
    assert torch.empty(3, 5, dtype=torch.bfloat16).isnan().all()
    assert (torch.empty(64, dtype=torch.uint8) == 0xFF).all()
    assert (torch.ones(2).new_empty((4, 4), dtype=torch.uint8) == 0xFF).all()


@pytest.mark.parametrize("offset", [-1, 7, 64 + 512 - 1, -512])
def test_guards_see_a_byte_outside(offset: int) -> None:
    guards = Guards()
    inside = guards.empty((4, 4), torch.float32)
    guards.check()
    inside.fill_(1.0)
    guards.check()
    start = inside.storage_offset() * 4
    inside.untyped_storage()[start + offset] = 0
    if 0 <= offset < 64:
        guards.check()
    else:
        with pytest.raises(AssertionError, match=rf"outside of a buffer of 64 were written, at offsets \[{offset}\]"):
            guards.check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_inputs_hold_what_they_say(dtype: torch.dtype, gen: torch.Generator) -> None:
    made = {kind: make(kind, 64, 96, gen, dtype) for kind in KINDS}
    for kind in ("wide", "ties", "tiny"):
        assert made[kind].isfinite().all(), kind
    for x in made.values():
        zero = x == 0
        assert zero.any()
        assert x[zero].signbit().any()
        assert not x[zero].signbit().all()
    assert made["nonfinite"].isnan().any()
    assert made["nonfinite"].isinf().any()
    assert made["nonfinite"].isfinite().all(dim=1).any()
    smallest_normal = torch.finfo(dtype).smallest_normal
    assert ((made["tiny"].abs() < smallest_normal) & (made["tiny"] != 0)).any()
    exponents = made["wide"].float().abs().clamp(min=2.0**-60).log2()
    assert exponents.max() - exponents.min() > 12
