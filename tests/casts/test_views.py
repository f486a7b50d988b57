# SPDX-License-Identifier: Apache-2.0
"""Inputs that are not dense: the bytes of a view are those of its contiguous copy, or the view is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import blockscale as bs
from tests.bits import assert_bits_equal, assert_same_operand
from tests.inputs import DTYPES, FORMATS, make

NAN = float("nan")


def _cast_all(x: torch.Tensor, fmt: dict[str, Any]) -> list[Any]:
    """Every cast of a matrix that its shape allows."""
    made = [bs.quantize(x, **fmt)]
    if math.prod(x.shape[:-1]) % 16 == 0:
        made += [bs.quantize(x, orientation="columnwise", **fmt), *bs.quantize_both(x, **fmt)]
    return made


def _check_view(view: torch.Tensor, fmt: dict[str, Any]) -> None:
    copy = view.contiguous().clone(memory_format=torch.contiguous_format)
    for p, q in zip(_cast_all(view, fmt), _cast_all(copy, fmt), strict=True):
        assert_same_operand(p, q)
    for scaling in ("tensor", "row", "column"):
        assert_bits_equal(bs.amax(view, scaling), bs.amax(copy, scaling), f"amax {scaling}")


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bug_26_strided_rows(
    fmt: dict[str, Any], dtype: torch.dtype, device: torch.device, gen: torch.Generator
) -> None:
    big = make("wide", 64, 256, gen, dtype).to(device)
    cube = make("wide", 12 * 8, 80, gen, dtype).to(device).view(12, 8, 80)
    views = {
        "column slice": big[:, :128],
        "odd offset": big[:, 3:131],
        "other column slice": big[:, 128:],
        "every second row": big[::2],
        "rows repeated": big[:1].expand(32, 256),
        "three sizes": cube[:, :, 16:64],
        "leading slice": cube[2:6, :, :],
        "leading step of one row each": cube[::2, 3:4],
        "size-1 axis": cube[:, :1, :48],
        "transposed leading axes of size 1": cube[:1].transpose(0, 1),
        "one row": big[5],
    }
    for name, view in views.items():
        try:
            _check_view(view, fmt)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@pytest.mark.parametrize(
    ("view", "rule"),
    [
        (lambda x: x.t()[:128], "contiguous in its last dimension; got strides"),
        (lambda x: x[:, ::2], "contiguous in its last dimension; got strides"),
        (lambda x: x[:, :1].expand(64, 32), "contiguous in its last dimension; got strides"),
        (lambda x: x.view(4, 16, 256).transpose(0, 1), "evenly strided over its leading dimensions; got strides"),
        (lambda x: x.view(4, 16, 256)[::2], "evenly strided over its leading dimensions; got strides"),
        (lambda x: x.view(4, 16, 256)[:, :8], "evenly strided over its leading dimensions; got strides"),
        (lambda x: x[0, ::2], "contiguous in its last dimension; got strides"),
    ],
)
def test_bug_26_other_strides_are_refused(view: Any, rule: str, device: torch.device) -> None:
    x = view(torch.randn(64, 256, device=device))
    for name, call in (("quantize", bs.quantize), ("quantize_both", bs.quantize_both), ("amax", bs.amax)):
        with pytest.raises(ValueError, match=f"^{name}: x must be {rule}"):
            call(x)


def test_bug_26_strided_amax(device: torch.device) -> None:
    x = torch.randn(16, 32, device=device)
    amax = bs.amax(x, "row")
    strided = torch.stack([amax, torch.full_like(amax, NAN)], dim=1)[:, 0]
    with pytest.raises(ValueError, match=r"amax must be contiguous; got strides \(2,\)"):
        bs.quantize(x, scaling="row", amax=strided)
    assert_same_operand(bs.quantize(x, scaling="row", amax=strided.contiguous()), bs.quantize(x, scaling="row"))


def test_bug_26_strided_operand_parts(device: torch.device) -> None:
    op = bs.quantize(torch.randn(32, 64, device=device))
    wide = torch.zeros(32, 64, dtype=torch.uint8, device=device)
    for field, (qdata, scale) in {
        "qdata": (wide[:, :32], op.block_scale),
        "block_scale": (op.qdata, op.block_scale.view(torch.uint8).t().contiguous().t()),
    }.items():
        with pytest.raises(ValueError, match=rf"NVFP4Operand: {field} must be contiguous; got strides"):
            bs.NVFP4Operand(qdata, scale, op.amax, (32, 64))


@pytest.mark.parametrize("stride", [1, 2, 64, 1000])
def test_bug_34_stride_of_a_size_one_axis(stride: int, device: torch.device) -> None:
    data = torch.randn(64, device=device)
    w = torch.randn(64, 1, device=device)
    expected = bs.quantize(data.clone().view(1, 64))
    assert_same_operand(bs.quantize(data.as_strided((1, 64), (stride, 1))), expected)
    assert_same_operand(bs.quantize(w.t()), bs.quantize(w.t().contiguous()))
    cube = data.as_strided((1, 1, 64), (stride, 7, 1))
    assert_bits_equal(bs.quantize(cube).qdata, expected.qdata, "qdata")
    out = torch.full((3 * 64,), NAN, device=device).as_strided((1, 64), (stride, 1))
    assert_bits_equal(bs.dequantize(expected, out=out), bs.dequantize(expected), "out")
    d = bs.gemm(bs.quantize(data.as_strided((1, 64), (stride, 1))), bs.quantize(w.t()), out_dtype=torch.float32)
    left, right = bs.dequantize(expected).double(), bs.dequantize(bs.quantize(w.t())).double()
    # 64 additions of the accumulator, and a few roundings of the epilogue and of the dequantized values.
    bound = 72 * 2.0**-24 * float(left.abs() @ right.abs().t())
    torch.testing.assert_close(d.double(), left @ right.t(), rtol=0, atol=bound)


@given(st.data())
def test_any_strides(device: torch.device, data: st.DataObject) -> None:
    """A matrix or cube inside NaN: only its own elements are read, whatever the pitch and the offset."""
    m = data.draw(st.sampled_from([1, 2, 7, 15, 16, 31, 32, 48, 127, 128, 130, 144]), "m")
    k = 16 * data.draw(st.sampled_from([1, 2, 3, 4, 5, 33]), "k/16")
    dtype = data.draw(st.sampled_from(DTYPES), "dtype")
    fmt = data.draw(st.sampled_from(list(FORMATS.values())), "fmt")
    pitch = k + data.draw(st.integers(0, 40), "gap")
    offset = data.draw(st.integers(0, 9), "offset")
    split = data.draw(st.sampled_from([d for d in (1, 2, 3, 4, 8) if m % d == 0]), "split")
    gen = torch.Generator().manual_seed(m * 131 + k + offset)
    x = make(data.draw(st.sampled_from(["wide", "ties"]), "kind"), m, k, gen, dtype)
    memory = torch.full((offset + m * pitch + 40,), NAN, dtype=dtype)
    view = memory.as_strided((m, k), (pitch, 1), offset)
    view.copy_(x)
    memory = memory.to(device)
    shape = (split, m // split, k)
    cube = memory.as_strided(shape, (pitch * (m // split), pitch, 1), offset)
    want = x.to(device).view(shape)
    for p, q in zip(_cast_all(cube, fmt), _cast_all(want, fmt), strict=True):
        assert_same_operand(p, q)
    assert_bits_equal(bs.amax(cube, "column"), bs.amax(want, "column"), "amax")
