# SPDX-License-Identifier: Apache-2.0
"""Metamorphic laws: relations between two casts that hold whatever the bytes are, so that no oracle can be wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockscale as bs
from tests.bits import assert_bits_equal, assert_same_operand
from tests.inputs import DTYPES, FORMATS, LINEAR, SWIZZLED, as_rowwise, make

ONE_D = {name: fmt for name, fmt in FORMATS.items() if "block" not in fmt}
LAYOUTS = pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)
EVERY_FORMAT = pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)


def _bytes(op: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return op.qdata, bs.unswizzle_scales(op).block_scale.view(torch.uint8)


def _codes(op: Any) -> torch.Tensor:
    """Nibbles (rows, K)."""
    return torch.stack([op.qdata & 15, op.qdata >> 4], dim=-1).flatten(1)


@EVERY_FORMAT
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("power", [-7, -1, 1, 5])
def test_a_power_of_two_changes_the_amax_only(
    power: int, dtype: torch.dtype, fmt: dict[str, Any], device: torch.device, gen: torch.Generator
) -> None:
    x = ((torch.randn(48, 80, generator=gen) * 64).round() / 64).to(device, dtype)  # exact in FP16 also after 2^-7
    scaled = x * 2.0**power
    assert_bits_equal(scaled * 2.0**-power, x, "the input itself")
    for orientation in ("rowwise", "columnwise"):
        p, q = (bs.quantize(v, orientation=orientation, **fmt) for v in (x, scaled))
        assert_bits_equal(q.qdata, p.qdata, "qdata")
        assert_bits_equal(q.block_scale, p.block_scale, "block_scale")
        assert_bits_equal(q.amax, p.amax * 2.0**power, "amax")
        assert_bits_equal(bs.dequantize(q), bs.dequantize(p) * 2.0**power, "values")


@EVERY_FORMAT
def test_negation_flips_the_sign_bits_only(fmt: dict[str, Any], device: torch.device, gen: torch.Generator) -> None:
    x = make("ties", 32, 80, gen).to(device)
    p, q = bs.quantize(x, **fmt), bs.quantize(-x, **fmt)
    assert_bits_equal(q.qdata, p.qdata ^ 0x88, "qdata")
    assert_bits_equal(q.block_scale, p.block_scale, "block_scale")
    assert_bits_equal(q.amax, p.amax, "amax")


@LAYOUTS
@pytest.mark.parametrize("fmt", ONE_D.values(), ids=ONE_D)
def test_rows_commute_with_the_cast(
    fmt: dict[str, Any], layout: Any, device: torch.device, gen: torch.Generator
) -> None:
    x = make("wide", 144, 80, gen).to(device)
    order = torch.randperm(len(x), generator=gen).to(device)
    p, q = bs.quantize(x, layout=layout, **fmt), bs.quantize(x[order], layout=layout, **fmt)
    for got, want in zip(_bytes(q), _bytes(p), strict=True):
        assert_bits_equal(got, want[order], "bytes")
    assert_bits_equal(q.amax, p.amax[order] if fmt.get("scaling") == "row" else p.amax, "amax")


@EVERY_FORMAT
@pytest.mark.parametrize("step", [16, 48, 128])
def test_rows_concatenated_are_outputs_concatenated(
    step: int, fmt: dict[str, Any], device: torch.device, gen: torch.Generator
) -> None:
    x = make("wide", 272, 80, gen).to(device)
    row = fmt.get("scaling") == "row"
    whole = bs.quantize(x, **fmt)
    pieces = [bs.quantize(part, amax=None if row else whole.amax, **fmt) for part in x.split(step)]
    assert_bits_equal(torch.cat([p.qdata for p in pieces]), whole.qdata, "qdata")
    scales = torch.cat([p.block_scale.view(torch.uint8) for p in pieces])
    assert_bits_equal(scales, whole.block_scale.view(torch.uint8), "block_scale")
    if row:
        assert_bits_equal(torch.cat([p.amax for p in pieces]), whole.amax, "amax")
    for start, piece in zip(range(0, 272, step), pieces, strict=True):
        assert_same_operand(whole[start : start + step], piece)


@pytest.mark.parametrize("fmt", [FORMATS["row"], FORMATS["row_256"]], ids=["row", "row_256"])
def test_row_scaling_is_each_row_alone(fmt: dict[str, Any], device: torch.device, gen: torch.Generator) -> None:
    x = make("nonfinite", 33, 64, gen).to(device)
    whole = bs.quantize(x, **fmt)
    plain = {key: value for key, value in fmt.items() if key != "scaling"}
    for m in range(len(x)):
        alone = bs.quantize(x[m : m + 1], **plain)
        assert_bits_equal(whole.qdata[m : m + 1], alone.qdata, f"qdata of row {m}")
        assert_bits_equal(whole.block_scale[m : m + 1], alone.block_scale, f"block_scale of row {m}")
        assert_bits_equal(whole.amax[m], alone.amax, f"amax of row {m}")


@LAYOUTS
@EVERY_FORMAT
@pytest.mark.parametrize(("m", "k"), [(16, 16), (48, 80), (144, 464), (128, 64), (0, 32), (32, 0)])
def test_law_1_columnwise_is_rowwise_of_the_transpose(
    m: int, k: int, fmt: dict[str, Any], layout: Any, device: torch.device, gen: torch.Generator
) -> None:
    for kind in ("wide", "ties", "nonfinite"):
        x = make(kind, m, k, gen).to(device)
        columnwise = bs.quantize(x, orientation="columnwise", layout=layout, **fmt)
        assert columnwise.orientation == "columnwise"
        assert columnwise.shape == (k, m)
        assert_same_operand(as_rowwise(columnwise), bs.quantize(x.t().contiguous(), layout=layout, **fmt))


@LAYOUTS
@EVERY_FORMAT
def test_law_3_both_is_two_calls(fmt: dict[str, Any], layout: Any, device: torch.device, gen: torch.Generator) -> None:
    for kind in ("wide", "nonfinite"):
        x = make(kind, 144, 464, gen, torch.bfloat16).to(device)
        row, column = bs.quantize_both(x, layout=layout, **fmt)
        assert_same_operand(row, bs.quantize(x, layout=layout, **fmt))
        assert_same_operand(column, bs.quantize(x, orientation="columnwise", layout=layout, **fmt))


def test_both_with_one_amax_of_the_pair(device: torch.device, gen: torch.Generator) -> None:
    x = make("wide", 32, 48, gen).to(device)
    rows, columns = bs.amax(x, "row") * 2, bs.amax(x, "column") * 0.5
    row, column = bs.quantize_both(x, scaling="row", amax=(rows, columns))
    assert_same_operand(row, bs.quantize(x, scaling="row", amax=rows))
    assert_same_operand(column, bs.quantize(x, scaling="row", orientation="columnwise", amax=columns))
    for given in (3.0, torch.tensor(3.0, device=device), torch.tensor([3.0], device=device)):
        pair = bs.quantize_both(x, amax=given)
        assert [op.amax.shape for op in pair] == [(), ()]
        assert_same_operand(pair[0], bs.quantize(x, amax=3.0))
        assert_same_operand(pair[1], bs.quantize(x, amax=3.0, orientation="columnwise"))
        assert pair[0].amax.data_ptr() != pair[1].amax.data_ptr()


@EVERY_FORMAT
def test_zeros_appended_change_nothing(fmt: dict[str, Any], device: torch.device, gen: torch.Generator) -> None:
    """Zero columns and rows: own amax, bytes of the old part, and zero bytes for the new one."""
    x = make("wide", 20, 48, gen).to(device)
    wide = torch.zeros(40, 112, device=device)
    wide[:20, :48] = x
    p, q = bs.quantize(x, **fmt), bs.quantize(wide, **fmt)
    assert_bits_equal(q.qdata[:20, :24].contiguous(), p.qdata, "qdata")
    assert_bits_equal(q.amax[:20] if q.amax.dim() else q.amax, p.amax, "amax")
    scale = q.block_scale.view(torch.uint8)
    assert_bits_equal(scale[:20, :3].contiguous(), p.block_scale.view(torch.uint8), "block_scale")
    assert (_codes(q)[20:] == 0).all()
    assert (_codes(q)[:, 48:] == 0).all()
    assert (scale[:, 3:] == 0).all()
    assert (scale[32:] == 0).all()


def test_dtypes_that_hold_the_same_values_give_the_same_bytes(device: torch.device, gen: torch.Generator) -> None:
    x = torch.randint(-60, 61, (48, 80), generator=gen).to(device)
    for fmt in FORMATS.values():
        wanted = bs.quantize(x.float(), **fmt)
        for dtype in (torch.bfloat16, torch.float16):
            assert_same_operand(bs.quantize(x.to(dtype), **fmt), wanted)


@EVERY_FORMAT
def test_twice_is_the_same(fmt: dict[str, Any], device: torch.device, gen: torch.Generator) -> None:
    x = make("wide", 272, 528, gen).to(device)
    first = bs.quantize_both(x, **fmt)
    for _ in range(5):
        for p, q in zip(bs.quantize_both(x, **fmt), first, strict=True):
            assert_same_operand(p, q)
