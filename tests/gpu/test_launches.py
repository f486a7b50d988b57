# SPDX-License-Identifier: Apache-2.0
"""What each operation launches, exactly: no fill, no copy, no elementwise pass. Bugs 94 and 99."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import blockscale as bs
from tests.gemm.operands import LINEAR, SWIZZLED, exact_operand
from tests.gpu.profiles import Launch, launches_of
from tests.inputs import FORMATS
from tests.memory import padding_bytes

pytestmark = pytest.mark.usefixtures("no_poison")


def counted(call: Callable[[], object], count: int) -> list[Launch]:
    launches = launches_of(call)
    assert len(launches) == count, launches
    assert all(launch.ours for launch in launches), launches
    return launches


@pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(("m", "k"), [(5, 48), (128, 1024), (256, 4096)])
def test_quantize(m: int, k: int, fmt: dict[str, Any], layout: Any, cuda: torch.device) -> None:
    """A given amax: 1. A tensor's own: 2. A row's own: 1, where the row stays on chip."""
    row = fmt.get("scaling") == "row"
    given = torch.ones((m,) if row else (), device=cuda)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(m, k, device=cuda).to(dtype)
        counted(lambda x=x: bs.quantize(x, amax=given, layout=layout, **fmt), 1)
        counted(lambda x=x: bs.quantize(x, layout=layout, **fmt), 1 if row else 2)
        if m % 16 == 0:
            columns = torch.ones(k, device=cuda) if row else given
            counted(lambda x=x, c=columns: bs.quantize(x, amax=c, orientation="columnwise", layout=layout, **fmt), 1)
            pair = (given, columns) if row else given
            counted(lambda x=x, p=pair: bs.quantize_both(x, amax=p, layout=layout, **fmt), 1)
            if not row:
                counted(lambda x=x: bs.quantize_both(x, layout=layout, **fmt), 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_other_casts(dtype: Any, cuda: torch.device) -> None:
    x = torch.randn(256, 1024, device=cuda).to(dtype)
    for layout in (LINEAR, SWIZZLED):
        op = bs.quantize(x, block=(16, 16), layout=layout)
        counted(lambda op=op: bs.dequantize(op, dtype), 1)
        counted(lambda op=op: bs.transpose(op), 1)
    linear = bs.quantize(x)
    swizzled = bs.swizzle_scales(linear)
    counted(lambda: bs.swizzle_scales(linear), 1)
    counted(lambda: bs.unswizzle_scales(swizzled), 1)
    assert not launches_of(lambda: (bs.swizzle_scales(swizzled), bs.unswizzle_scales(linear)))


def test_a_number_as_amax_costs_one_fill(cuda: torch.device) -> None:
    x = torch.randn(128, 1024, device=cuda)
    launches = launches_of(lambda: bs.quantize(x, amax=1.5))
    assert [launch.ours for launch in launches] == [False, True], launches


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_bug_99_padding_costs_no_fill(fmt: dict[str, Any], cuda: torch.device) -> None:
    """Memory that held 7F is handed out again; the cast alone writes the padding."""
    x = torch.randn(5, 48, device=cuda)
    stale = [torch.full((1 << n,), 0x7F, dtype=torch.uint8, device=cuda) for n in range(6, 12)]
    del stale
    made: list[Any] = []
    launches = launches_of(lambda: made.append(bs.quantize(x, layout=SWIZZLED, **fmt)))
    assert not [launch for launch in launches if launch.moves_or_fills], launches
    for op in made:
        assert (padding_bytes(op) == 0).all()
    weight = bs.quantize(torch.randn(32, 48, device=cuda), layout=SWIZZLED)
    outputs: list[Any] = []
    given = torch.ones((), device=cuda)
    launches = launches_of(lambda: outputs.append(bs.gemm(made[0], weight, out_format=bs.NVFP4(), out_amax=given)))
    assert not [launch for launch in launches if "fill" in launch.name.lower()], launches  # torch's mm may use a memset
    for op in outputs:
        assert (padding_bytes(op) == 0).all()


def epilogues() -> dict[str, dict[str, Any]]:
    return {
        "plain": {},
        "row-scaled, all terms": {"bias": True, "c": True, "alpha": 0.5, "beta": 2.0, "activation": "gelu"},
        "row amax": {"return_amax": "row"},
        "tensor amax": {"return_amax": "tensor"},
        "nvfp4": {"out_format": bs.NVFP4(), "out_amax": True},
        "nvfp4 and amax": {"out_format": bs.NVFP4(), "out_amax": True, "return_amax": "tensor", "bias": True},
    }


@pytest.mark.parametrize("name", epilogues())
@pytest.mark.parametrize("plain", [False, True], ids=["operand", "bfloat16"])
def test_bug_94_the_epilogue_is_one_pass(name: str, plain: bool, cuda: torch.device) -> None:
    """Of two operands: each decoded once (Hopper has no FP4), then one kernel, and a cleared word where an amax is
    returned. Of a plain activation: the weight decoded, torch's product with FP32 output, one epilogue kernel of ours
    and perhaps one more to finish an amax. No elementwise kernel in either.
    """
    gen = torch.Generator().manual_seed(1)
    m, n, k = 256, 512, 512
    a = exact_operand(m, k, gen, {"scaling": "row"}).to(cuda)
    w = exact_operand(n, k, gen).to(cuda)
    x = torch.randn(m, k, generator=gen).bfloat16().to(cuda)
    tensors = {
        "bias": torch.ones(n, device=cuda),
        "c": torch.ones(m, n, device=cuda),
        "out_amax": torch.ones((), device=cuda),
    }
    keywords = {key: tensors[key] if value is True else value for key, value in epilogues()[name].items()}
    launches = launches_of(lambda: bs.gemm(x if plain else a, w, **keywords))
    ours = [launch for launch in launches if launch.ours]
    finish = [launch for launch in ours if "finish_amax" in launch.name]
    decode = [launch for launch in ours if "dequantize" in launch.name]
    assert len(decode) == (1 if plain else 2), launches
    assert len(finish) <= (1 if "return_amax" in keywords else 0), launches
    assert len(ours) - len(finish) - len(decode) == 1, launches
    others = [launch.name for launch in launches if not launch.ours]
    if not plain:
        assert all("memset" in name.lower() for name in others), others
        assert len(others) <= (1 if "return_amax" in keywords else 0), others
        return
    assert others, "torch's product is the present fallback"
    wrong = [name for name in others if any(word in name.lower() for word in ("elementwise", "copy", "fill", "cast"))]
    assert not wrong, others
    assert launches[-1].ours, "the epilogue is the last pass"


def test_nothing_is_launched_for_an_empty_output(cuda: torch.device) -> None:
    a, none = (bs.quantize(torch.randn(rows, 64, device=cuda)) for rows in (16, 0))
    assert not launches_of(lambda: (bs.gemm(none, a), bs.gemm(a, none), bs.dequantize(none)))
