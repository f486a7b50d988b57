# SPDX-License-Identifier: Apache-2.0
"""What must not change a bit of gemm on the CPU: threads, instruction set, flush-to-zero; nor strays in an operand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import blockscale as bs
from tests.bits import assert_bits_equal, assert_same_operand, from_bits
from tests.gemm.operands import A_FORMATS, DTYPES, SWIZZLED, operand, random_operand

F32 = torch.float32
PROBLEMS = ((1, 16, 1040), (64, 208, 96), (300, 272, 2064))


@pytest.fixture
def isa() -> Iterator[None]:
    yield
    assert bs._C.set_cpu_isa_level(-1)


@pytest.fixture
def flush() -> Iterator[None]:
    """For tests that switch flush-to-zero on: off again afterwards, whatever happened."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no flush-to-zero mode")
    torch.set_flush_denormal(False)
    yield
    torch.set_flush_denormal(False)


def everything(gen: torch.Generator) -> list[Any]:
    """Results of gemm over problems, formats and outputs; the same inputs for the same state of the generator."""
    made: list[Any] = []
    for m, n, k in PROBLEMS:
        a, b = random_operand(m, k, gen, A_FORMATS["row"], SWIZZLED), random_operand(n, k, gen, A_FORMATS["tiles"])
        bias = torch.randn(n, generator=gen)
        for dtype in DTYPES:
            made += [*bs.gemm(a, b, out_dtype=dtype, bias=bias, activation="gelu", return_amax="row")]
            made += [*bs.gemm(a, b, out_dtype=dtype, alpha=1e-5, return_amax="tensor")]
        made += [*bs.gemm(a, b, out_format=bs.NVFP4(), out_amax=9e4, return_amax="tensor")]
    return made


def assert_all_same(got: list[Any], want: list[Any], what: str) -> None:
    for index, (p, q) in enumerate(zip(got, want, strict=True)):
        if isinstance(p, torch.Tensor):
            assert_bits_equal(p, q, f"{what}, result {index}", nan_equal=True)
        else:
            assert_same_operand(p, q)


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_thread_counts(threads: int) -> None:
    want = everything(torch.Generator().manual_seed(1))
    torch.set_num_threads(threads)  # conftest.py puts it back
    assert_all_same(everything(torch.Generator().manual_seed(1)), want, f"{threads} threads")


@pytest.mark.parametrize("level", [1, 2])
def test_instruction_sets(level: int, isa: None) -> None:
    assert bs._C.set_cpu_isa_level(0)
    want = everything(torch.Generator().manual_seed(2))
    if not bs._C.set_cpu_isa_level(level):
        pytest.skip(f"this processor lacks instruction set level {level} (1: AVX2, 2: AVX-512)")
    assert_all_same(everything(torch.Generator().manual_seed(2)), want, bs._C.cpu_isa())


def subnormals(**keywords: Any) -> list[torch.Tensor]:
    """Products and terms below 2^-126 in every line of the epilogue."""
    ones = torch.full((2, 16), 7, dtype=torch.uint8), torch.full((2, 1), 0x7E, dtype=torch.uint8)
    tiny, one = operand(*ones, 2688 * 2.0**-120), operand(*ones, 1.0)
    small = from_bits(0x00000001, 0x80012345)  # bits, so that making them is not flushed
    half = torch.tensor([[0x0001, -0x7FFF], [0x03FF, 0x0010]], dtype=torch.int16)
    made = [
        bs.gemm(tiny, tiny, out_dtype=F32),
        bs.gemm(tiny, one, out_dtype=F32, alpha=torch.tensor(2.0**-9), bias=small),
        bs.gemm(one, one, out_dtype=F32, alpha=0.0, bias=small),
        bs.gemm(one, one, out_dtype=torch.bfloat16, alpha=0.0, bias=small),
        bs.gemm(one, one, out_dtype=torch.float16, alpha=2.0**-27),
        bs.gemm(one, one, out_dtype=F32, alpha=0.0, c=half.view(torch.bfloat16), beta=0.5),
        bs.gemm(one, one, out_dtype=F32, alpha=0.0, c=half.view(torch.float16), beta=2.0**-20),
        *bs.gemm(one, one, out_dtype=F32, alpha=0.0, bias=small, return_amax="row", activation="silu"),
        bs.gemm(one, one, alpha=from_bits(0x00000123).view(()), out_dtype=F32),
    ]
    return [t.view(torch.int32 if t.dtype is F32 else torch.int16).clone() for t in made]


def test_bug_06_flush_to_zero_changes_no_bit(flush: None) -> None:
    kept = subnormals()
    torch.set_flush_denormal(True)
    flushed = subnormals()
    torch.set_flush_denormal(False)
    for index, (p, q) in enumerate(zip(flushed, kept, strict=True)):
        assert torch.equal(p, q), f"result {index}: {p.tolist()}, expected {q.tolist()}"
    assert kept[1].count_nonzero()
    assert kept[5].count_nonzero()


@pytest.mark.parametrize("name", ["alpha", "beta", "out_amax"])
def test_bug_06_a_subnormal_number_under_flush_to_zero(name: str, flush: None) -> None:
    """A Python float that FP32 can hold is taken, and means the same, whatever the mode of the caller."""
    big = operand(torch.full((1, 16), 7, dtype=torch.uint8), torch.full((1, 1), 0x7E, dtype=torch.uint8), 1e30)
    weight = operand(torch.full((16, 16), 7, dtype=torch.uint8), torch.full((16, 1), 0x7E, dtype=torch.uint8), 1.0)
    keywords: dict[str, Any] = {
        "alpha": {"alpha": 1e-40, "out_dtype": F32},
        "beta": {"beta": 1e-40, "c": torch.full((1, 16), 1e38), "alpha": 0.0, "out_dtype": F32},
        "out_amax": {"out_amax": 1e-40, "out_format": bs.NVFP4()},
    }[name]
    kept = bs.gemm(big, weight, **keywords)
    torch.set_flush_denormal(True)
    flushed = bs.gemm(big, weight, **keywords)
    torch.set_flush_denormal(False)
    if name == "out_amax":
        assert int(kept.amax.view(torch.int32)) == 0x000116C2
        assert_same_operand(flushed, kept)
    else:
        assert_bits_equal(flushed, kept, name)
        assert float(kept[0, 0]) != 0


def test_the_callers_modes_are_left_alone(flush: None) -> None:
    a, b = random_operand(5, 1040, torch.Generator().manual_seed(3)), random_operand(6, 1040, torch.Generator())
    threads = torch.get_num_threads()
    torch.set_flush_denormal(True)
    bs.gemm(a, b)
    still = int((torch.full((1,), 2.0**-126) * 0.5).view(torch.int32)) == 0
    torch.set_flush_denormal(False)
    assert still, "flush-to-zero was switched off for the caller"
    assert torch.get_num_threads() == threads


def test_inputs_are_not_written(gen: torch.Generator) -> None:
    for layout in (None, SWIZZLED):
        a, b = random_operand(9, 1040, gen, A_FORMATS["row"], layout or SWIZZLED), random_operand(16, 1040, gen)
        c, bias, alpha, out_amax = torch.ones(9, 16), torch.ones(16), torch.ones(()), torch.ones(())
        copies = [a.clone(), b.clone()], [t.clone() for t in (c, bias, alpha, out_amax)]
        bs.gemm(a, b, c=c, bias=bias, alpha=alpha, out_format=bs.NVFP4(), out_amax=out_amax, return_amax="row")
        for op, copy in zip((a, b), copies[0], strict=True):
            assert_same_operand(op, copy)
        for tensor, same in zip((c, bias, alpha, out_amax), copies[1], strict=True):
            assert torch.equal(tensor, same)
