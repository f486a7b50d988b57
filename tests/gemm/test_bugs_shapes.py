# SPDX-License-Identifier: Apache-2.0
"""Wrong shapes, strides and scale layouts of GEMMs in other NVFP4 libraries. Numbers are those of the bug list."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import reference as ref
from tests.bits import assert_bits_equal, assert_same_operand
from tests.gemm.operands import A_FORMATS, DTYPES, LINEAR, SWIZZLED, decoded, on, true_product
from tests.memory import Guards, padding_bytes

F32 = torch.float32
EVERY_FORMAT = pytest.mark.parametrize("fmt", A_FORMATS.values(), ids=A_FORMATS)


def close(d: torch.Tensor, a: Any, b: Any, k: int) -> None:
    """FP32 d against the decoded operands, within the bound of the accumulator."""
    exact, magnitude = true_product(a, b)
    assert ((d.cpu().double() - exact).abs() <= 2.0**-24 * (8.01 * exact.abs() + k * magnitude)).all()


@EVERY_FORMAT
@pytest.mark.parametrize(("m", "k"), [(5, 48), (1, 16), (130, 80)])
def test_bug_21_padding_of_swizzled_scales_is_written(
    m: int, k: int, fmt: dict[str, Any], guards: Guards, device: torch.device, gen: torch.Generator
) -> None:
    x = torch.randn(m, k, generator=gen).to(device)
    w = bs.quantize(torch.randn(40, k, generator=gen).to(device), layout=SWIZZLED)
    out = guards.operand((m, k), SWIZZLED, bs.NVFP4(**fmt), device=device, fill=0x7F)
    q = bs.quantize(x, layout=SWIZZLED, out=out, **fmt)
    assert (padding_bytes(q) == 0).all()
    d = bs.gemm(q, w, out_dtype=F32)
    assert d.isfinite().all()
    clean = guards.operand((m, k), SWIZZLED, bs.NVFP4(**fmt), device=device, fill=0)
    assert_bits_equal(bs.gemm(bs.quantize(x, layout=SWIZZLED, out=clean, **fmt), w, out_dtype=F32), d, "zeroed")
    assert_bits_equal(bs.gemm(w, q, out_dtype=F32), bs.gemm(w, clean, out_dtype=F32), "as b")


@pytest.mark.parametrize("k", [16, 48, 80, 464, 656])
@EVERY_FORMAT
def test_bug_23_blocks_not_a_multiple_of_4(
    k: int, fmt: dict[str, Any], device: torch.device, gen: torch.Generator
) -> None:
    qx = bs.quantize(torch.randn(130, k, generator=gen).to(device), layout=SWIZZLED, **fmt)
    qw = bs.quantize(torch.randn(40, k, generator=gen).to(device), layout=SWIZZLED)
    close(bs.gemm(qx, qw, out_dtype=F32), qx, qw, k)
    close(bs.gemm(qw, qx, out_dtype=F32), qw, qx, k)


def test_bug_25_layout_and_bytes_stay_together(device: torch.device, gen: torch.Generator) -> None:
    q = bs.quantize(torch.randn(128, 64, generator=gen).to(device), layout=SWIZZLED)
    w = bs.quantize(torch.randn(128, 64, generator=gen).to(device))
    want = bs.gemm(q, w, out_dtype=F32)
    r = bs.checkpoint.from_parts(q.qdata, q.block_scale, amax=q.amax, layout=SWIZZLED)
    assert_same_operand(r, q)
    assert bs.swizzle_scales(r) is r
    with pytest.raises(AttributeError):
        r.layout = LINEAR  # type: ignore[misc]
    buffer = io.BytesIO()
    torch.save(q, buffer)
    buffer.seek(0)
    travelled = {
        "clone": q.clone(),
        "deepcopy": copy.deepcopy(q),
        "slice": q[0:128],
        "to": q.to("cpu").to(device),
        "file": torch.load(buffer, weights_only=True),
        "there and back": bs.swizzle_scales(bs.unswizzle_scales(q)),
        "linear": bs.unswizzle_scales(q),
    }
    for name, op in travelled.items():
        assert op.layout is (LINEAR if name == "linear" else SWIZZLED)
        assert_bits_equal(bs.gemm(op, w, out_dtype=F32), want, f"{name}, a")
        assert_bits_equal(bs.gemm(op, op, out_dtype=F32), bs.gemm(q, q, out_dtype=F32), f"{name}, both")
    wrong = bs.NVFP4Operand(q.qdata, q.block_scale, q.amax, q.shape, LINEAR)  # 128 rows: the shapes agree
    assert (bs.gemm(wrong, w, out_dtype=F32) != want).any(), "the flag decides"


@EVERY_FORMAT
def test_bug_28_no_rows(fmt: dict[str, Any], device: torch.device) -> None:
    w = bs.quantize(torch.randn(16, 64, device=device), layout=SWIZZLED)
    for layout in (LINEAR, SWIZZLED):
        q = bs.quantize(torch.empty(0, 64, dtype=torch.bfloat16, device=device), layout=layout, **fmt)
        for dtype in DTYPES:
            d = bs.gemm(q, w, out_dtype=dtype, bias=torch.ones(16, device=device))
            assert (tuple(d.shape), d.dtype) == ((0, 16), dtype)
        assert tuple(bs.gemm(w, q).shape) == (16, 0)
        op = bs.gemm(q, w, out_format=bs.NVFP4(), out_amax=1.0)
        assert (op.shape, tuple(op.qdata.shape), op.block_scale.numel()) == ((0, 16), (0, 8), 0)


@EVERY_FORMAT
def test_bug_29_no_k_and_no_columns(fmt: dict[str, Any], device: torch.device) -> None:
    a, b = (bs.quantize(torch.empty(rows, 0, device=device), **fmt) for rows in (4, 8))
    ones = torch.ones(4, 8, device=device)
    d = bs.gemm(a, b, bias=ones[0], beta=2.0, c=ones, out_dtype=F32)
    assert_bits_equal(d, torch.full((4, 8), 3.0), "no K")
    assert_bits_equal(bs.gemm(a, b), torch.zeros(4, 8, dtype=torch.bfloat16), "no K, no terms: +0")
    out = torch.full((4, 8), float("nan"), device=device)
    bs.gemm(a, b, out=out)
    assert_bits_equal(out, torch.zeros(4, 8), "written")
    e = bs.gemm(bs.quantize(torch.randn(4, 64, device=device)), bs.quantize(torch.empty(0, 64, device=device), **fmt))
    assert tuple(e.shape) == (4, 0)


@EVERY_FORMAT
def test_bug_32_three_sizes_of_a(fmt: dict[str, Any], device: torch.device, gen: torch.Generator) -> None:
    x = torch.randn(16, 4, 128, generator=gen).bfloat16().to(device)
    w = bs.quantize(torch.randn(48, 128, generator=gen).to(device), layout=SWIZZLED)
    r, c = bs.quantize_both(x, **fmt)
    d = bs.gemm(r, w, out_dtype=F32)
    assert tuple(d.shape) == (16, 4, 48)
    close(d.view(64, 48), r, w, 128)
    g = bs.quantize(torch.randn(64, 48, generator=gen).to(device), orientation="columnwise")
    wgrad = bs.gemm(g, c, out_dtype=F32)  # (48, 64) times (128, 64) transposed
    assert tuple(wgrad.shape) == (48, 128)
    close(wgrad, g, c, 64)


def test_bug_34_sizes_of_1_have_any_stride(device: torch.device, gen: torch.Generator) -> None:
    x = torch.randn(1, 64, generator=gen).to(device).as_strided((1, 64), (1, 1))
    w = torch.randn(64, 1, generator=gen).to(device).t()
    a, b = bs.quantize(x), bs.quantize(w)
    d = bs.gemm(a, b, out_dtype=F32)
    assert tuple(d.shape) == (1, 1)
    close(d, a, b, 64)
    want = bs.gemm(a, b, out_dtype=F32, c=torch.ones(1, 1, device=device))
    for strides in ((1, 1), (7, 1), (1, 9), (5, 5), (0, 0)):
        c = torch.ones(64, device=device).as_strided((1, 1), strides)
        assert_bits_equal(bs.gemm(a, b, out_dtype=F32, c=c), want, f"c {strides}")
        out = torch.zeros(64, device=device).as_strided((1, 1), strides)
        assert_bits_equal(bs.gemm(a, b, c=c, out=out), want, f"out {strides}")
    column = bs.quantize(torch.randn(5, 64, generator=gen).to(device))
    c = torch.ones(64, device=device).as_strided((5, 1), (1, 3))  # one column: its stride is nobody's
    assert_bits_equal(bs.gemm(column, b, c=c), bs.gemm(column, b, c=c.contiguous()), "one column")
    bias = torch.ones(64, device=device).as_strided((1,), (17,))
    assert_bits_equal(bs.gemm(a, b, bias=bias), bs.gemm(a, b, bias=bias.contiguous()), "bias")


def test_bug_37_a_second_wave_has_scales_of_its_own(device: torch.device) -> None:
    def halves(upper: float, lower: float, rows: int) -> torch.Tensor:
        return torch.cat((torch.full((rows, 128), upper), torch.full((rows, 128), lower))).to(device)

    right = torch.tensor([[256.0, 512.0], [512.0, 1024.0]])
    for rows, columns in ((128, 64), (64, 128), (256, 128)):
        expected = right.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        for fmt in A_FORMATS.values():
            a = bs.quantize(halves(2.0, 4.0, rows), layout=SWIZZLED, **fmt)
            w = bs.quantize(halves(1.0, 2.0, columns), layout=SWIZZLED)
            assert_bits_equal(bs.gemm(a, w, out_dtype=F32), expected, f"{rows}, {fmt}")
            assert_bits_equal(bs.gemm(w, a, out_dtype=F32), expected.T.contiguous(), f"{rows}, {fmt}, swapped")


@pytest.mark.parametrize("n", [1, 7, 16, 100, 576, 1856])
def test_bug_42_any_n(n: int, device: torch.device, gen: torch.Generator) -> None:
    qx = bs.quantize(torch.randn(3, 128, generator=gen).to(device))
    qw = bs.quantize(torch.randn(n, 128, generator=gen).to(device))
    d = bs.gemm(qx, qw, out_dtype=F32)
    assert tuple(d.shape) == (3, n)
    close(d, qx, qw, 128)
    close(bs.gemm(qw, qx, out_dtype=F32), qw, qx, 128)
    if n % 16:
        low = n // 16 * 16
        rule = rf"N \(for an NVFP4 output\) a multiple of 16; got {n}\. The nearest are {low} and {low + 16}"
        with pytest.raises(ValueError, match=f"^gemm: b must be of {rule}"):
            bs.gemm(qx, qw, out_format=bs.NVFP4(), out_amax=1.0)
    else:
        assert bs.gemm(qx, qw, out_format=bs.NVFP4(), out_amax=1.0).shape == (3, n)


SKEWED = ((1, 2000, 16), (2000, 1, 16), (16, 1284, 16), (1, 1, 16848), (3, 16, 16848), (2048, 129, 256))


@pytest.mark.parametrize(("m", "n", "k"), SKEWED)
def test_bug_44_skewed_sizes_small(m: int, n: int, k: int, device: torch.device) -> None:
    a, b = bs.quantize(torch.ones(m, k, device=device)), bs.quantize(torch.ones(n, k, device=device))
    assert (bs.gemm(a, b, out_dtype=F32) == k).all()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(("m", "n", "k"), [(16848, 160, 16848), (20480, 12840, 256), (16, 12840, 16)])
def test_bug_44_skewed_sizes(m: int, n: int, k: int, cuda: torch.device) -> None:
    a, b = bs.quantize(torch.ones(m, k, device=cuda)), bs.quantize(torch.ones(n, k, device=cuda))
    assert (bs.gemm(a, b, out_dtype=F32) == k).all()


def test_bug_66_operands_of_two_devices(device: torch.device) -> None:
    """With meta, everywhere; the message names the argument and both devices."""
    q = bs.quantize(torch.randn(16, 64, device=device))
    meta = torch.device("meta")
    for keywords, arg in (
        ({"bias": torch.ones(16, device=meta)}, "bias"),
        ({"alpha": torch.ones((), device=meta)}, "alpha"),
        ({"c": torch.ones(16, 16, device=meta)}, "c"),
        ({"out": torch.ones(16, 16, device=meta)}, "out"),
        ({"out_format": bs.NVFP4(), "out_amax": torch.ones((), device=meta)}, "out_amax"),
    ):
        message = f"^gemm: {arg} must be on {device}, where the other arguments are; got meta"
        with pytest.raises(ValueError, match=message):
            bs.gemm(q, q, **keywords)
    with pytest.raises(ValueError, match=f"^gemm: a must be on {device}.*got meta"):
        bs.gemm(torch.ones(16, 64, dtype=torch.bfloat16, device=meta), q)
    with pytest.raises(ValueError, match=f"amax must be on {device}, where qdata is; got meta"):
        bs.NVFP4Operand(q.qdata, q.block_scale, q.amax.to(meta), q.shape)
    assert tuple(bs.gemm(q, q, alpha=0.5).shape) == (16, 16)


def test_bug_77_a_broadcast_c(device: torch.device) -> None:
    a, w = bs.quantize(torch.ones(4, 16, device=device)), bs.quantize(torch.ones(8, 16, device=device))
    row, column = torch.ones(1, 8, device=device), torch.ones(4, 1, device=device)
    for c, strides in ((row.expand(4, 8), r"\(0, 1\)"), (column.expand(4, 8), r"\(1, 0\)")):
        with pytest.raises(ValueError, match=f"^gemm: c must be free of stride-0 axes; got strides {strides}"):
            bs.gemm(a, w, beta=1.0, c=c)
    with pytest.raises(ValueError, match=r"^gemm: bias must be contiguous; got strides \(0,\)"):
        bs.gemm(a, w, bias=torch.ones(1, device=device).expand(8))


@pytest.mark.parametrize(("m", "n", "k"), [(13, 640, 368), pytest.param(13, 5120, 2880, marks=pytest.mark.slow)])
def test_bug_77_bias_over_odd_sizes(m: int, n: int, k: int, device: torch.device) -> None:
    a, b = bs.quantize(torch.ones(m, k, device=device)), bs.quantize(torch.ones(n, k, device=device))
    d = bs.gemm(a, b, bias=torch.arange(float(n), device=device), out_dtype=F32)
    assert_bits_equal(d, (k + torch.arange(float(n))).expand(m, n).contiguous(), "d")


@pytest.mark.parametrize("orientations", [("rowwise", "rowwise"), ("rowwise", "columnwise"), ("columnwise",) * 2])
def test_the_three_products_of_a_linear_layer(
    orientations: tuple[Any, Any], device: torch.device, gen: torch.Generator
) -> None:
    x, w = torch.randn(48, 80, generator=gen), torch.randn(80, 80, generator=gen)
    left, right = orientations
    x = x if left == "rowwise" else x.T.contiguous()
    w = w if right == "rowwise" else w.T.contiguous()
    a, b = ref.quantize(x, orientation=left), ref.quantize(w, orientation=right, block=(16, 16))
    d = bs.gemm(on(device, a), on(device, b), out_dtype=F32)
    close(d, a, b, 80)
    assert decoded(a).shape == (48, 80)


def test_the_fourth_product_is_refused(device: torch.device) -> None:
    x = torch.ones(64, 64, device=device)
    with pytest.raises(ValueError, match=r"^gemm: a must be rowwise when b is rowwise; got a columnwise operand"):
        bs.gemm(bs.quantize(x, orientation="columnwise"), bs.quantize(x))
