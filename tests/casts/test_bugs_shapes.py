# SPDX-License-Identifier: Apache-2.0
"""What has gone wrong with shapes and objects in other NVFP4 libraries, as right values here."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import reference as ref
from tests.bits import assert_bits_equal, assert_same_operand
from tests.inputs import DTYPES, FORMATS, LINEAR, SWIZZLED, make
from tests.memory import padding_bytes

EVERY_FORMAT = pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)


@pytest.mark.parametrize("k", [16, 48, 80, 464, 656])
@EVERY_FORMAT
def test_bug_23_blocks_not_a_multiple_of_4(
    fmt: dict[str, Any], k: int, device: torch.device, gen: torch.Generator
) -> None:
    blocks = k // 16
    for m in (130, 40):
        x = make("wide", m, k, gen, torch.bfloat16)
        op = bs.quantize(x.to(device), layout=SWIZZLED, **fmt)
        linear = ref.quantize(x, **fmt).block_scale.view(torch.uint8)
        flat = op.block_scale.view(torch.uint8).flatten().cpu()
        columns = -(-blocks // 4) * 4
        assert tuple(op.block_scale.shape) == (-(-m // 128) * 128, columns)
        for r in (0, 1, 31, 32, m - 1):
            for b in (0, blocks // 2, blocks - 1):
                at = ((r // 128) * (columns // 4) + b // 4) * 512 + (r % 32) * 16 + (r % 128) // 32 * 4 + b % 4
                assert flat[at] == linear[r, b], (m, r, b)
        assert (padding_bytes(op) == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@EVERY_FORMAT
def test_bug_28_no_rows(fmt: dict[str, Any], dtype: Any, device: torch.device) -> None:
    x = torch.empty(0, 64, dtype=dtype, device=device)
    row = fmt.get("scaling") == "row"
    for layout in (LINEAR, SWIZZLED):
        q = bs.quantize(x, layout=layout, **fmt)
        assert tuple(q.qdata.shape) == (0, 32)
        assert q.block_scale.numel() == 0
        assert_bits_equal(q.amax, torch.zeros(0) if row else torch.tensor(0.0), "amax")
        assert tuple(bs.dequantize(q).shape) == (0, 64)
        column = bs.quantize_both(x, layout=layout, **fmt)[1]
        assert tuple(column.qdata.shape) == (64, 0)
        assert column.block_scale.numel() == 0
        assert_bits_equal(column.amax, torch.zeros(64) if row else torch.tensor(0.0), "columnwise amax")
    d = bs.gemm(bs.quantize(x, **fmt), bs.quantize(torch.randn(16, 64, device=device)))
    assert tuple(d.shape) == (0, 16)
    if device.type == "cuda":
        torch.cuda.synchronize()
        assert float(torch.ones(1, device=device)) == 1.0  # no sticky error
    given = torch.tensor(3.0, device=device)
    if not row:
        assert_bits_equal(bs.quantize(x, amax=given, **fmt).amax, torch.tensor(3.0), "given amax")


@pytest.mark.gpu
@pytest.mark.slow
def test_bug_31_more_than_2_31_elements(cuda: torch.device) -> None:
    rows, k = 2**17 + 1, 2**14
    if torch.cuda.get_device_properties(cuda).total_memory < 16 * 2**30:
        pytest.skip("needs a GPU with 16 GiB")
    x = torch.zeros(rows, k, dtype=torch.bfloat16, device=cuda)
    x[-1] = 3.0
    for layout in (LINEAR, SWIZZLED):
        q = bs.quantize(x, scaling="row", layout=layout)
        assert float(q.amax[-1]) == 3.0
        assert int((q.amax != 0).sum()) == 1
        assert (q.qdata[-1] == 0x77).all()
        assert not q.qdata[:-1].any()
        linear = bs.unswizzle_scales(q).block_scale.view(torch.uint8)
        assert (linear[-1] == 0x7E).all()
        assert not linear[:-1].any()
        last = bs.NVFP4Operand(q.qdata[-1:], linear[-1:], q.amax[-1:], (1, k), format=q.format)
        assert (bs.dequantize(last) == 3).all()
    tall = bs.quantize(x[: 2**17], scaling="row", orientation="columnwise")
    assert not tall.qdata.any()
    assert_bits_equal(bs.amax(x, "column"), torch.full((k,), 3.0), "column amax")
    assert float(bs.amax(x)) == 3.0


@EVERY_FORMAT
def test_bug_32_three_sizes_and_both_orientations(fmt: dict[str, Any], device: torch.device) -> None:
    x = torch.randn(64, 4, 128, device=device).bfloat16()
    for layout in (LINEAR, SWIZZLED):
        r, c = bs.quantize_both(x, layout=layout, **fmt)
        assert r.shape == (64, 4, 128)
        assert c.shape == (128, 256)
        assert tuple(r.qdata.shape) == (256, 64)
        assert tuple(c.qdata.shape) == (128, 128)
        flat = bs.quantize_both(x.view(256, 128), layout=layout, **fmt)
        assert_bits_equal(r.qdata, flat[0].qdata, "qdata")
        assert_same_operand(c, flat[1])
        bs.quantize_both(x * 2, layout=layout, out=(r, c), **fmt)  # the update works
        again = bs.quantize_both(x * 2, layout=layout, **fmt)
        assert_same_operand(r, again[0])
        assert_same_operand(c, again[1])
    w = bs.quantize(torch.randn(48, 128, device=device))
    d = bs.gemm(r, w, out_dtype=torch.float32)
    assert tuple(d.shape) == (64, 4, 48)
    exact = bs.dequantize(r).double() @ bs.dequantize(w).double().t()
    torch.testing.assert_close(d.double(), exact, rtol=1e-5, atol=1e-4)


def test_bug_32_the_size_of_the_issue(device: torch.device) -> None:
    r, c = bs.quantize_both(torch.ones(256, 4, 1024, device=device).bfloat16())
    assert r.shape == (256, 4, 1024)
    assert tuple(c.qdata.shape) == (1024, 1024 // 2)
    assert (c.qdata == 0x77).all()


@EVERY_FORMAT
@pytest.mark.parametrize("shape", [(33, 47), (4, 24), (4, 8), (1, 1), (2, 3, 40), (15,), (0, 8)])
def test_bug_40_k_is_a_multiple_of_16(shape: tuple[int, ...], fmt: dict[str, Any], device: torch.device) -> None:
    k = shape[-1]
    low = k // 16 * 16
    message = rf"x must be of K a multiple of 16; got {k}\. The nearest are {low} and {low + 16}\.$"
    for name, call in (("quantize", bs.quantize), ("quantize_both", bs.quantize_both)):
        with pytest.raises(ValueError, match=f"^{name}: {message}"):
            call(torch.ones(shape, device=device), **fmt)


@EVERY_FORMAT
@pytest.mark.parametrize("shape", [(33, 16), (1, 16), (16,), (1, 1, 1, 16)])
def test_bug_40_shapes_that_work_everywhere(shape: tuple[int, ...], fmt: dict[str, Any], device: torch.device) -> None:
    x = torch.ones(shape, device=device)
    assert_bits_equal(bs.dequantize(bs.quantize(x, **fmt)), torch.ones(shape), "values")


@EVERY_FORMAT
@pytest.mark.parametrize("m", [1, 15, 17, 40])
def test_bug_40_m_of_a_columnwise_operand(m: int, fmt: dict[str, Any], device: torch.device) -> None:
    x = torch.ones(m, 32, device=device)
    message = rf"x must be of M \(for a columnwise operand\) a multiple of 16; got {m}\."
    with pytest.raises(ValueError, match=f"^quantize: {message}"):
        bs.quantize(x, orientation="columnwise", **fmt)
    with pytest.raises(ValueError, match=f"^quantize_both: {message}"):
        bs.quantize_both(x, **fmt)
    if fmt.get("block") == (16, 16):
        with pytest.raises(ValueError, match=rf"^transpose: op must be of M a multiple of 16; got {m}\."):
            bs.transpose(bs.quantize(x, **fmt))


@EVERY_FORMAT
def test_bug_58_meta_gives_shapes_and_no_values(fmt: dict[str, Any]) -> None:
    x = torch.randn(2, 16, 48)
    made = [
        (bs.quantize(x.to("meta"), layout=SWIZZLED, **fmt), bs.quantize(x, layout=SWIZZLED, **fmt)),
        *zip(bs.quantize_both(x.to("meta"), **fmt), bs.quantize_both(x, **fmt), strict=True),
    ]
    for meta, real in made:
        assert (meta.shape, meta.layout, meta.format, meta.orientation) == (
            real.shape,
            real.layout,
            real.format,
            real.orientation,
        )
        for p, q in ((meta.qdata, real.qdata), (meta.block_scale, real.block_scale), (meta.amax, real.amax)):
            assert p.device.type == "meta"
            assert (p.shape, p.dtype, p.stride()) == (q.shape, q.dtype, q.stride())
    real_x = bs.quantize(torch.ones(16, 48))
    with pytest.raises(ValueError, match="gemm: a must be on cpu, where the other arguments are; got meta"):
        bs.gemm(bs.quantize(torch.ones(16, 48, device="meta")), real_x)


def test_bug_58_meta_has_no_values_to_look_at() -> None:
    x = torch.empty(16, 48, device="meta")
    for name, call in (("quantize", bs.quantize), ("quantize_both", bs.quantize_both)):
        with pytest.raises((ValueError, NotImplementedError), match=f"^{name}: .*meta"):
            call(x, nonfinite="raise")


@EVERY_FORMAT
def test_rows_of_an_operand(fmt: dict[str, Any], device: torch.device, gen: torch.Generator) -> None:
    """Slices keep the bytes where the layout allows it, and are refused elsewhere."""
    x = make("wide", 272, 80, gen).to(device)
    unit = fmt.get("block", (1, 16))[0]
    linear, swizzled = (bs.quantize(x, layout=layout, **fmt) for layout in (LINEAR, SWIZZLED))
    y = bs.dequantize(linear)
    for start, stop in ((0, 272), (16, 48), (256, 272), (32, 32), (-16, 272), (128, 1000)):
        part = linear[start:stop]
        assert_bits_equal(bs.dequantize(part), y[start:stop], f"rows {start}:{stop}")
        assert part.qdata.untyped_storage().data_ptr() == linear.qdata.untyped_storage().data_ptr()
    for start, stop in ((0, 128), (128, 256), (128, 272), (256, 272), (0, 272)):
        assert_bits_equal(bs.dequantize(swizzled[start:stop]), y[start:stop], f"swizzled rows {start}:{stop}")
    for op, start, stop, rule in (
        (swizzled, 16, 32, 128),
        (swizzled, 0, 100, 128),
        (linear, 3, 32, unit),
        (linear, 0, 17, unit),
    ):
        if rule == 1:
            assert_bits_equal(bs.dequantize(op[start:stop]), y[start:stop], f"rows {start}:{stop}")
            continue
        with pytest.raises(ValueError, match=f"rows must be bounded by multiples of {rule}; got {start}:{stop}"):
            op[start:stop]
    with pytest.raises(ValueError, match="index must be a slice with step 1; got 2"):
        linear[::2]
    with pytest.raises(TypeError, match="index must be a slice of rows; got int"):
        linear[0]


def test_sizes_are_logical(device: torch.device) -> None:
    op = bs.quantize(torch.ones(2, 8, 48, device=device), layout=SWIZZLED)
    assert (op.rows, op.k, op.shape, bool(op[:0])) == (16, 48, (2, 8, 48), True)
    assert op.nbytes == 16 * 24 + 128 * 4 + 4
    assert op.device == device
    assert math.prod(op.shape) == 2 * op.qdata.numel()
    assert "shape=(2, 8, 48)" in repr(op)
    assert "SWIZZLED_128X4" in repr(op)
