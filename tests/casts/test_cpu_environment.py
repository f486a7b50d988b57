# SPDX-License-Identifier: Apache-2.0
"""What must not change a byte on the CPU: the instruction set, the number of threads, the caller's flush-to-zero."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.operand import NVFP4Operand
from tests.bits import assert_bits_equal, assert_same_operand, from_bits
from tests.inputs import DTYPES, FORMATS, KINDS, LINEAR, SWIZZLED, make, second_level

SHAPES = ((1, 16), (17, 48), (48, 80), (130, 528), (16, 4112))
Results = list[NVFP4Operand | torch.Tensor]


@pytest.fixture
def isa() -> Iterator[None]:
    yield
    assert bs._C.set_cpu_isa_level(-1)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def flush() -> Iterator[None]:
    """Flush-to-zero on in this thread."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no flush-to-zero mode")
    yield
    torch.set_flush_denormal(False)


def _inputs(gen: torch.Generator, shapes: tuple[tuple[int, int], ...] = SHAPES) -> list[Any]:
    """(x, fmt, given amaxes) over dtypes, kinds, formats and shapes, made before anything is changed."""
    cases: list[Any] = []
    for number, (name, fmt) in enumerate(FORMATS.items()):
        for dtype in DTYPES:
            for shape in shapes:
                kind = KINDS[(number + len(cases)) % len(KINDS)]
                x = make(kind, *shape, gen, dtype)
                scaling = fmt.get("scaling", "tensor")
                given = second_level(x, scaling, False, gen), second_level(x, scaling, True, gen)
                cases.append((x, fmt, given, f"{name} {dtype} {kind} {shape}"))
    return cases


def _everything(x: torch.Tensor, fmt: dict[str, Any], given: tuple[torch.Tensor, torch.Tensor]) -> Results:
    """Every cast function on an input."""
    made: Results = [bs.amax(x, scaling) for scaling in ("tensor", "row", "column")]
    ops = [bs.quantize(x, layout=SWIZZLED, **fmt), bs.quantize(x, amax=given[0], **fmt)]
    if len(x) % 16 == 0:
        ops += [bs.quantize(x, orientation="columnwise", amax=given[1], **fmt)]
        ops += bs.quantize_both(x, layout=SWIZZLED, **fmt)
        if fmt.get("block") == (16, 16):
            ops += [bs.transpose(ops[0]), bs.transpose(ops[1])]
    made += ops
    made += [bs.swizzle_scales(ops[1]), bs.unswizzle_scales(ops[0])]
    made += [bs.dequantize(op, dtype) for op in ops for dtype in DTYPES]
    return made


def _assert_same(got: Results, wanted: Results, what: str) -> None:
    for index, (p, q) in enumerate(zip(got, wanted, strict=True)):
        try:
            if isinstance(p, torch.Tensor):
                assert isinstance(q, torch.Tensor)
                assert_bits_equal(p, q, "tensor", nan_equal=True)
            else:
                assert isinstance(q, NVFP4Operand)
                assert_same_operand(p, q)
        except AssertionError as error:
            raise AssertionError(f"{what}, result {index}: {error}") from None


def test_level_0_always_runs(isa: None) -> None:
    assert bs._C.set_cpu_isa_level(0)
    assert bs._C.cpu_isa() == "baseline"
    assert not bs._C.set_cpu_isa_level(3)
    assert bs._C.cpu_isa() == "baseline"
    assert bs._C.set_cpu_isa_level(-1)


@pytest.mark.parametrize("level", [1, 2, -1])
def test_instruction_sets_write_the_same_bytes(level: int, isa: None, gen: torch.Generator) -> None:
    if not bs._C.set_cpu_isa_level(level):
        pytest.skip(f"this processor lacks instruction set level {level} (1: AVX2, 2: AVX-512)")
    name = bs._C.cpu_isa()
    for x, fmt, given, what in _inputs(gen):
        assert bs._C.set_cpu_isa_level(level)
        wide = _everything(x, fmt, given)
        assert bs._C.set_cpu_isa_level(0)
        _assert_same(wide, _everything(x, fmt, given), f"{name} against baseline: {what}")


@pytest.mark.parametrize("count", [2, 3, 4])
def test_thread_counts_write_the_same_bytes(count: int, threads: None, gen: torch.Generator) -> None:
    for x, fmt, given, what in _inputs(gen, ((272, 528), (16, 8208), (513, 512))):
        torch.set_num_threads(1)
        one = _everything(x, fmt, given)
        torch.set_num_threads(count)
        _assert_same(_everything(x, fmt, given), one, f"{count} threads: {what}")


def test_calls_from_several_host_threads(gen: torch.Generator) -> None:
    cases = _inputs(gen, ((48, 80), (17, 48)))
    wanted = [_everything(x, fmt, given) for x, fmt, given, _ in cases]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            results = pool.map(lambda case: _everything(*case[:3]), cases)
            for got, want, case in zip(results, wanted, cases, strict=True):
                _assert_same(got, want, f"concurrent: {case[3]}")


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("level", [0, -1])
def test_bug_06_flush_to_zero_changes_no_byte(
    level: int, count: int, threads: None, isa: None, gen: torch.Generator
) -> None:
    assert bs._C.set_cpu_isa_level(level)
    torch.set_num_threads(count)
    shapes = ((17, 48), (48, 80), (272, 528)) if count > 1 else ((17, 48), (48, 80))
    cases = _inputs(gen, shapes)
    tiny = [(make("tiny", 32, 48, gen, d), f, (torch.tensor(1e-40), torch.tensor(1e-40)), f"tiny {d}") for d in DTYPES
            for f in ({}, {"block": (16, 16)})]  # fmt: skip
    for x, fmt, given, what in cases + tiny:
        kept = _everything(x, fmt, given)
        assert torch.set_flush_denormal(True)
        try:
            flushed = _everything(x, fmt, given)
        finally:
            torch.set_flush_denormal(False)
        _assert_same(flushed, kept, f"flush-to-zero: {what}")


def test_the_callers_state_is_left_alone(flush: None) -> None:
    half = torch.full((1,), 2.0**-126)
    bs.dequantize(bs.quantize(torch.randn(16, 16)))
    assert int((half * 0.5).view(torch.int32)) == 0, "flush-to-zero was switched off for the caller"


def test_bug_06_subnormal_amax_as_a_number_under_flush_to_zero(flush: None) -> None:
    x = from_bits(*[0x000116C2] * 16).view(1, 16)
    given = from_bits(0x000116C2).view(())
    with_tensor = bs.quantize(x, amax=given)
    assert_bits_equal(with_tensor.amax, given, "amax")
    assert_same_operand(bs.quantize(x, amax=1e-40), with_tensor)


@pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)
def test_bug_06_subnormal_row(layout: Any, device: torch.device) -> None:
    x = torch.full((2, 16), 1e-40)
    x[1] = 1.0
    for flushing in (False, True):
        torch.set_flush_denormal(flushing)
        try:
            q = bs.quantize(x.to(device), scaling="row", layout=layout)
            y = bs.dequantize(q).cpu()
        finally:
            torch.set_flush_denormal(False)
        assert_bits_equal(q.amax, from_bits(0x000116C2, 0x3F800000), "amax")
        assert y.isfinite().all()
        assert (y[0] >= 0).all()
        assert (y[0] <= 1e-40).all()
        assert (y[1] == 1).all()
