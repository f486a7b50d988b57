# SPDX-License-Identifier: Apache-2.0
"""out=: the caller's buffers keep their addresses, every byte of them is written, and none around them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.operand import NVFP4Operand, make_operand
from tests.bits import assert_bits_equal, assert_same_operand
from tests.inputs import FORMATS, LINEAR, SWIZZLED, make
from tests.memory import Guards, addresses, padding_bytes

SHAPES = ((1, 16), (5, 48), (16, 80), (48, 464), (129, 64), (0, 32), (16, 0), (144, 656))


@pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(("m", "k"), SHAPES)
def test_bug_70_out_keeps_its_addresses(
    m: int, k: int, fmt: dict[str, Any], layout: Any, device: torch.device, guards: Guards, gen: torch.Generator
) -> None:
    form = bs.NVFP4(**fmt)
    row = guards.operand((m, k), layout, form, device=device)
    column = guards.operand((k, m), layout, form, "columnwise", device) if m % 16 == 0 else None
    before = addresses(row) + (addresses(column) if column else [])
    for kind in ("wide", "ties"):  # the second call must not see the first one's bytes
        x = make(kind, m, k, gen).to(device)
        for op in filter(None, (row, column)):
            op.block_scale.view(torch.uint8).fill_(0x7F)
            got = bs.quantize(x, orientation=op.orientation, layout=layout, out=op, **fmt)
            assert got is op
            assert_same_operand(op, bs.quantize(x, orientation=op.orientation, layout=layout, **fmt))
        if column:
            for op in (row, column):
                op.qdata.fill_(0xEE)
                op.block_scale.view(torch.uint8).fill_(0x7F)
                op.amax.fill_(float("nan"))
            pair = bs.quantize_both(x, layout=layout, out=(row, column), **fmt)
            assert pair[0] is row
            assert pair[1] is column
            for op in (row, column):
                assert_same_operand(op, bs.quantize(x, orientation=op.orientation, layout=layout, **fmt))
    assert before == addresses(row) + (addresses(column) if column else [])


@pytest.mark.parametrize(("m", "k"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dequantize_into_out(m: int, k: int, dtype: torch.dtype, device: torch.device, guards: Guards) -> None:
    op = bs.quantize(torch.randn(m, k, device=device), layout=SWIZZLED)
    out = guards.empty((m, k), dtype, device)
    address = out.data_ptr()
    assert bs.dequantize(op, out=out) is out
    assert out.data_ptr() == address
    assert_bits_equal(out, bs.dequantize(op, dtype), "out")


def test_dequantize_into_a_strided_out(device: torch.device) -> None:
    op = bs.quantize(torch.randn(4, 3, 48, device=device))
    around = torch.full((12, 80), 7.5, device=device)
    view = around.view(4, 3, 80)[..., 16:64]
    bs.dequantize(op, out=view)
    assert_bits_equal(view.contiguous(), bs.dequantize(op), "out")
    assert (around[:, :16] == 7.5).all()
    assert (around[:, 64:] == 7.5).all()


@pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)
@pytest.mark.parametrize(("m", "k"), [(16, 16), (48, 64), (144, 464), (16, 0), (0, 16)])
def test_transpose_into_out(m: int, k: int, layout: Any, device: torch.device, guards: Guards) -> None:
    op = bs.quantize(torch.randn(m, k, device=device), block=(16, 16), layout=layout)
    out = guards.operand((k, m), layout, op.format, "columnwise", device)
    before = addresses(out)
    assert bs.transpose(op, out) is out
    assert before == addresses(out)
    assert_same_operand(out, bs.transpose(op))


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_bug_21_padding_is_written(fmt: dict[str, Any], device: torch.device, guards: Guards) -> None:
    x = torch.randn(5, 48, device=device)
    out = guards.operand((5, 48), SWIZZLED, bs.NVFP4(**fmt), device=device)
    assert out.block_scale.numel() == 512
    q = bs.quantize(x, layout=SWIZZLED, out=out, **fmt)
    fresh = bs.quantize(x, layout=SWIZZLED, **fmt)
    for op in (q, fresh, bs.swizzle_scales(bs.quantize(x, **fmt))):
        padding = padding_bytes(op)
        assert padding.numel() == 512 - 15
        assert (padding == 0).all()
    assert_same_operand(q, fresh)
    w = bs.quantize(torch.randn(24, 48, device=device))
    zeroed = guards.operand((5, 48), SWIZZLED, bs.NVFP4(**fmt), device=device, fill=0)
    d = bs.gemm(q, w, out_dtype=torch.float32)
    assert not d.isnan().any()
    assert_bits_equal(d, bs.gemm(bs.quantize(x, layout=SWIZZLED, out=zeroed, **fmt), w, out_dtype=torch.float32), "d")


@pytest.mark.parametrize("m", [1, 5, 32, 127, 128, 129])
def test_bug_22_scale_buffer_size(m: int, device: torch.device) -> None:
    x = torch.randn(m, 11008, device=device)
    q = bs.quantize(x, layout=SWIZZLED)
    wanted = -(-m // 128) * 128 * 688
    assert q.block_scale.numel() == wanted
    if m == 5:
        assert wanted == 88064
        assert int(q.block_scale.view(torch.uint8).flatten().nonzero().max()) == 87619
    rows = -(-m // 128) * 128
    for bad in ((m - 1, 688), (rows, 687), (rows - 1, 688)):
        small = torch.zeros(bad, dtype=torch.uint8, device=device)
        rule = rf"block_scale must be of shape \({rows}, 688\) .* got \({bad[0]}, {bad[1]}\)"
        with pytest.raises(ValueError, match=rule):
            NVFP4Operand(q.qdata, small, q.amax, (m, 11008), SWIZZLED)


def test_bug_22_out_made_around_the_checks(device: torch.device) -> None:
    x = torch.randn(5, 11008, device=device)
    q = bs.quantize(x, layout=SWIZZLED)
    small = torch.zeros(5, 688, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
    out = make_operand(q.qdata, small, q.amax, q.shape, SWIZZLED, q.format, "rowwise")
    with pytest.raises(ValueError, match=r"out\.block_scale must be of 88064 bytes; got 3440 bytes"):
        bs.quantize(x, layout=SWIZZLED, out=out)


def test_nothing_is_written_when_a_call_is_refused(device: torch.device, guards: Guards) -> None:
    """Every check comes before the first byte."""
    out = guards.operand((32, 32), LINEAR, device=device)
    column = guards.operand((32, 32), LINEAR, None, "columnwise", device)
    x = torch.randn(32, 32, device=device)
    bad = torch.full((), float("nan"), device=device)
    for call in (
        lambda: bs.quantize(x, out=out, amax=bad, nonfinite="raise"),
        lambda: bs.quantize(x / 0, out=out, nonfinite="raise"),
        lambda: bs.quantize(x, out=out, nonfinite="ignore"),
        lambda: bs.quantize(x[:, :16], out=out),
        lambda: bs.quantize_both(x, out=(out, out)),
        lambda: bs.quantize_both(x, out=(column, out)),
        lambda: bs.quantize_both(x / 0, out=(out, column), nonfinite="raise"),
    ):
        with pytest.raises(ValueError, match=r"^quantize"):
            call()
    for op in (out, column):
        for tensor in (op.qdata, op.block_scale, op.amax):
            assert (tensor.flatten().view(torch.uint8) == 0x7F).all()


def test_given_amax_may_be_the_stored_one(device: torch.device) -> None:
    """Re-quantizing with an operand's own amax into itself, as delayed scaling does."""
    x = torch.randn(16, 32, device=device)
    for fmt in ({}, {"scaling": "row"}):
        op = bs.quantize(x, **fmt)
        expected = bs.quantize(2 * x, amax=op.amax.clone(), **fmt)
        assert bs.quantize(2 * x, amax=op.amax, out=op, **fmt) is op
        assert_same_operand(op, expected)
        fresh = bs.quantize(x, amax=op.amax, **fmt)
        assert fresh.amax.data_ptr() != op.amax.data_ptr()
        kept = fresh.clone()
        op.amax.fill_(77.0)
        assert_same_operand(fresh, kept)
