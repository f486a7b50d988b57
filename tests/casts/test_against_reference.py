# SPDX-License-Identifier: Apache-2.0
"""Every cast on random data against `blockscale.reference`, which shares no code with it: all bytes, with padding.

On CUDA the same comparison: the reference runs on the CPU, so CPU and GPU bytes are equal.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import reference as ref
from blockscale.operand import NVFP4Operand
from tests.bits import assert_same_operand
from tests.inputs import DTYPES, FORMATS, KINDS, LINEAR, SWIZZLED, make, second_level

pytestmark = pytest.mark.usefixtures("one_thread")

# Edges of blocks, tiles, 4 and 128 of the swizzle, the CPU's patches (128 x 512) and row chunks (4096).
SHAPES = (
    (0, 0), (0, 16), (0, 464), (1, 16), (1, 80), (7, 0), (7, 48), (16, 0), (16, 16), (16, 464), (17, 32), (32, 48),
    (33, 16), (48, 80), (112, 64), (127, 96), (128, 64), (128, 656), (129, 48), (144, 112), (240, 16), (257, 32),
    (16, 528), (272, 528), (2, 4112), (16, 8208),
)  # fmt: skip


def _both(api_amax: torch.Tensor | None, columns: torch.Tensor | None, scaling: str) -> Any:
    """The amax argument of `quantize_both`."""
    return (api_amax, columns) if scaling == "row" and api_amax is not None else api_amax


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(("m", "k"), SHAPES, ids=lambda size: str(size))
def test_same_bytes(m: int, k: int, fmt: dict[str, Any], device: torch.device, gen: torch.Generator) -> None:
    big = m * k > 50_000
    scaling = fmt.get("scaling", "tensor")
    for index, dtype in enumerate(DTYPES):
        for kind in KINDS[index : index + 2] if big else KINDS:
            x = make(kind, m, k, gen, dtype)
            moved = x.to(device)
            for given in (False, True):
                rows = second_level(x, scaling, False, gen) if given else None
                columns = rows if scaling == "tensor" or not given else second_level(x, scaling, True, gen)
                what = f"{dtype} {kind} {'given' if given else 'own'} amax"
                wanted = _expected(x, rows, columns, fmt)
                _compare(moved, rows, columns, fmt, wanted, what)


def _expected(
    x: torch.Tensor, rows: torch.Tensor | None, columns: torch.Tensor | None, fmt: dict[str, Any]
) -> dict[str, NVFP4Operand]:
    wanted = {"rowwise": ref.quantize(x, amax=rows, **fmt)}
    if len(x) % 16 == 0:
        wanted["columnwise"] = ref.quantize(x, amax=columns, orientation="columnwise", **fmt)
    return wanted


def _compare(
    x: torch.Tensor,
    rows: torch.Tensor | None,
    columns: torch.Tensor | None,
    fmt: dict[str, Any],
    wanted: dict[str, NVFP4Operand],
    what: str,
) -> None:
    rows = rows.to(x.device) if rows is not None else None
    columns = columns.to(x.device) if columns is not None else None
    for layout in (LINEAR, SWIZZLED):
        laid = {name: op if layout is LINEAR else ref.swizzle_scales(op) for name, op in wanted.items()}
        try:
            assert_same_operand(bs.quantize(x, amax=rows, layout=layout, **fmt), laid["rowwise"])
            if "columnwise" not in laid:
                continue
            got = bs.quantize(x, amax=columns, orientation="columnwise", layout=layout, **fmt)
            assert_same_operand(got, laid["columnwise"])
            pair = bs.quantize_both(x, amax=_both(rows, columns, fmt.get("scaling", "tensor")), layout=layout, **fmt)
            assert_same_operand(pair[0], laid["rowwise"])
            assert_same_operand(pair[1], laid["columnwise"])
        except AssertionError as error:
            raise AssertionError(f"{what}, {layout.name}: {error}") from None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bf16_and_f16_value_and_a_sweep_of_fp32(dtype: torch.dtype, device: torch.device) -> None:
    """All 65,536 inputs of a 16-bit dtype (for FP32: all high halves, with a low half that breaks ties)."""
    words = torch.arange(1 << 16, dtype=torch.int32)
    x = words.to(torch.int16).view(dtype) if dtype.itemsize == 2 else ((words << 16) | (words & 1)).view(torch.float32)
    x = x.view(-1, 16)
    for amax in (None, 1.0, 2688.0, 3.3e38):
        expected = ref.quantize(x, amax=amax)
        assert_same_operand(bs.quantize(x.to(device), amax=amax), expected)
    assert_same_operand(bs.quantize(x.to(device), scaling="row"), ref.quantize(x, scaling="row"))


def test_every_block_amax_near_a_scale_rounding_boundary(device: torch.device) -> None:
    """Blocks whose scale lies within 3 ulp of each of the 126 boundaries between E4M3 bytes, for several amaxes."""
    values = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middle = (values[:-1] + values[1:]) / 2
    for amax in (1.0, 0.7, 3.0, 448.0, 1.46875, 2.0**-100):
        a = middle * 6 * amax / 2688
        near = (a.view(torch.int32)[:, None] + torch.arange(-3, 4, dtype=torch.int32)).view(torch.float32).flatten()
        x = torch.zeros(len(near), 16)
        x[:, 5] = near
        expected = ref.quantize(x, amax=amax)
        assert expected.block_scale.view(torch.uint8).unique().numel() > 100
        assert_same_operand(bs.quantize(x.to(device), amax=amax), expected)
