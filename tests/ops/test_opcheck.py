# SPDX-License-Identifier: Apache-2.0
"""torch's own checks of every op: schema, mutation, fakes, tracing. A new op fails here until it has samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockscale as bs
from tests.bits import assert_bits_equal
from tests.ops.samples import MUTATED, SAMPLES, schemas

NAMES = sorted(SAMPLES)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, list):
        return [_moved(one, device) for one in value]
    return value.to(device) if isinstance(value, torch.Tensor) else value


def test_every_op_has_samples() -> None:
    assert bs.quantize is not None
    assert schemas().keys() == SAMPLES.keys(), "an op without samples here, or samples without an op"


def test_out_variants_say_what_they_write() -> None:
    for name in NAMES:
        schema = getattr(torch.ops.blockscale, name).default._schema
        written = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
        assert written == MUTATED.get(name, ()), name
        assert all(r.alias_info is None for r in schema.returns), f"{name}: outputs must not alias"


@pytest.mark.parametrize("name", NAMES)
def test_bug_71_opcheck(name: str, device: torch.device) -> None:
    op = getattr(torch.ops.blockscale, name).default
    count = 0
    for arguments in SAMPLES[name]():
        torch.library.opcheck(op, tuple(_moved(value, device) for value in arguments))
        count += 1
    assert count > 1


@pytest.mark.parametrize("name", NAMES)
def test_bug_71_the_fake_has_the_metadata_of_the_kernel(name: str, device: torch.device) -> None:
    """Shape, stride, dtype, device, and that nothing fresh is left unwritten: poisoned memory decides."""
    op = getattr(torch.ops.blockscale, name).default
    for arguments in SAMPLES[name]():
        real = [_moved(value, device) for value in arguments]
        meta = [_moved(value, torch.device("meta")) for value in arguments]
        got, fake = op(*real), op(*meta)
        for p, q in zip(_tensors(got), _tensors(fake), strict=True):
            assert (p.shape, p.stride(), p.dtype) == (q.shape, q.stride(), q.dtype)
            assert p.device == device
            assert q.device.type == "meta"
            if p.is_floating_point():
                assert not p.isnan().any(), "left unwritten"


@pytest.mark.parametrize("name", sorted(name for name in MUTATED if name.endswith("_out")))
def test_out_variants_equal_the_functional_form(name: str, device: torch.device) -> None:
    functional = getattr(torch.ops.blockscale, name.removesuffix("_out")).default
    written = len(MUTATED[name])
    for arguments in SAMPLES[name]():
        head, buffers = arguments[:-written], arguments[-written:]
        buffers = tuple(
            torch.full_like(b, 0x7F, device=device) if b.dtype is torch.uint8 else b.to(device) for b in buffers
        )
        head = tuple(_moved(value, device) for value in head)
        tail = (buffers[0].dtype,) if name in ("gemm_out", "dequantize_out") else ()
        getattr(torch.ops.blockscale, name).default(*head, *buffers)
        for got, want in zip(buffers, _tensors(functional(*head, *tail)), strict=False):
            assert_bits_equal(got, want, name)


def _tensors(result: Any) -> list[torch.Tensor]:
    if result is None:
        return []
    return list(result) if isinstance(result, tuple | list) else [result]
