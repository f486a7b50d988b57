# SPDX-License-Identifier: Apache-2.0
"""Laws of the choice over a grid of shapes, devices and builds; nothing here depends on which kernel is best."""

from __future__ import annotations

import itertools
import math
import timeit

import pytest

from blockscale._native import _C

from .kernels import ALL, ARCHS, BY_NAME, CORE, FLOAT16, FLOAT32, KERNELS, QUANTIZED, ask, chosen, name_of

MS = (1, 2, 7, 16, 63, 64, 65, 128, 129, 256, 1000, 4096, 131072)
NS = (1, 7, 16, 100, 576, 1856, 4096, 12848, 57344)
KS = (16, 32, 48, 80, 464, 768, 4096, 16848, 1 << 20)
SMS = (1, 2, 3, 4, 7, 16, 84, 108, 132, 148, 160, 188)
SHAPES = list(itertools.product(MS, NS, KS))


@pytest.mark.parametrize("output", [FLOAT16, FLOAT32, QUANTIZED])
@pytest.mark.parametrize("arch", ARCHS)
def test_core_serves_every_shape_on_every_device(arch: int, output: int) -> None:
    """No cluster is illegal, no kernel is foreign or unbuilt, and there always is one."""
    seen = set()
    for number, (m, n, k) in enumerate(SHAPES):
        if output == QUANTIZED and n % 16:
            continue
        for built, invariant in ((CORE, False), (ALL, False), (CORE, True)):
            sms = SMS[number % len(SMS)]
            options = {"sms": sms, "built": built, "output": output, "batch_invariant": invariant}
            plan = _C.choose_gemm(*ask(arch, m, n, k, **options))
            assert plan is not None, (m, n, k, options)
            kernel = KERNELS[plan.kernel]
            assert plan.legal and built >> plan.kernel & 1
            assert (kernel.arch, kernel.output) == (arch, output)
            assert plan.cluster_m * plan.cluster_n <= max(sms, 2 if arch == 90 else 1)
            assert not invariant or kernel.batch_invariant
            seen.add(kernel.name)
    assert len(seen) > (1 if output == FLOAT16 else 0)


def test_what_cannot_be_served_has_no_plan() -> None:
    for arch in (0, 80, 89, 101, 107, 121):  # bug 84: sm_103 is not any 10.x, sm_121 is not sm_120
        assert _C.choose_gemm(*ask(arch, 128, 128, 128)) is None
        assert _C.rank_gemm(*ask(arch, 128, 128, 128)) == []
    assert _C.choose_gemm(*ask(100, 128, 128, 128, built=0)) is None
    foreign = sum(1 << kernel.index for kernel in KERNELS if kernel.arch != 100)
    assert _C.choose_gemm(*ask(100, 128, 128, 128, built=foreign)) is None
    assert _C.choose_gemm(*ask(100, 128, 24, 128, output=QUANTIZED)) is None
    assert _C.choose_gemm(*ask(100, 128, 128, 128, output=3)) is None
    assert _C.choose_gemm(*ask(100, 128, 128, 128, sms=0)) is None
    for shape in ((0, 16, 16), (16, 0, 16), (16, 16, 0), (-1, 16, 16)):
        with pytest.raises(ValueError, match=r"^gemm: M, N and K must be positive"):
            _C.choose_gemm(*ask(100, *shape))


def test_each_kernel_is_chosen_when_it_is_the_only_one() -> None:
    """A set that names one kernel is obeyed, also by every rank."""
    for kernel in KERNELS:
        question = ask(kernel.arch, 512, 512, 1536, built=1 << kernel.index, output=kernel.output)
        plan = _C.choose_gemm(*question)
        assert plan is not None and plan.kernel == kernel.index
        assert {estimate.plan.kernel for estimate in _C.rank_gemm(*question)} == {kernel.index}


@pytest.mark.parametrize("arch", ARCHS)
def test_the_choice_is_the_first_of_the_ranking(arch: int) -> None:
    for m, n, k in SHAPES[::7]:
        question = ask(arch, m, n, k)
        ranked = _C.rank_gemm(*question)
        clocks = [estimate.clocks for estimate in ranked]
        assert clocks == sorted(clocks) and all(math.isfinite(c) and c > 0 for c in clocks)
        assert name_of(_C.choose_gemm(*question)) == name_of(ranked[0].plan)
        plans = [name_of(estimate.plan) for estimate in ranked]
        assert len(set(plans)) == len(plans)
        assert plans == [name_of(estimate.plan) for estimate in _C.rank_gemm(*question)]  # the same each time


def _clocks(question: tuple[object, ...]) -> dict[tuple[str, int, int], float]:
    return {name_of(estimate.plan): estimate.clocks for estimate in _C.rank_gemm(*question)}  # type: ignore[arg-type]


@pytest.mark.parametrize("arch", ARCHS)
def test_more_work_never_takes_less_and_more_multiprocessors_never_longer(arch: int) -> None:
    """For each plan. 2 SMs more may be of no use; they do no harm."""
    for m, n, k in SHAPES[::11]:
        base = _clocks(ask(arch, m, n, k))
        for larger in ((m + 1, n, k), (m, n + 16, k), (m, n, k + 16), (2 * m, n, k), (m, 3 * n, k), (m, n, 2 * k)):
            more = _clocks(ask(arch, *larger))
            assert all(more[plan] >= clocks for plan, clocks in base.items()), (m, n, k, larger)
        small, large = _clocks(ask(arch, m, n, k, sms=100)), _clocks(ask(arch, m, n, k, sms=102))
        assert small.keys() == large.keys()
        assert all(large[plan] <= clocks for plan, clocks in small.items())
        c = _clocks(ask(arch, m, n, k, has_c=True))
        assert all(c[plan] >= clocks for plan, clocks in base.items())


@pytest.mark.parametrize("arch", ARCHS)
def test_batch_invariant_plans_do_not_know_m(arch: int) -> None:
    """One plan for every M; one instruction K, not swapped, over everything; other sizes may differ."""
    instruction = set()
    for output in (FLOAT16, FLOAT32, QUANTIZED):
        for n, k in itertools.product((16, 576, 4096, 57344), KS):
            plans = {chosen(arch, m, n, k, output=output, batch_invariant=True) for m in MS}
            assert len(plans) == 1, (n, k, plans)
            kernel = BY_NAME[plans.pop()[0]]
            assert not kernel.swapped and kernel.batch_invariant
            instruction.add(kernel.instruction_k)
            ranked = [
                [name_of(e.plan) for e in _C.rank_gemm(*ask(arch, m, n, k, output=output, batch_invariant=True))]
                for m in (1, 8192)
            ]
            assert ranked[0] == ranked[1]  # also where the first is refused and the next one is taken
    assert instruction == {16 if arch == 90 else 64}


def test_the_invariant_family() -> None:
    for kernel in KERNELS:
        assert kernel.batch_invariant is (not kernel.swapped and kernel.instruction_k != 96), kernel.name


def test_an_estimate_counts_what_it_says() -> None:
    """8192^3 in tiles of 256 x 256: 32 x 32 pairs of CTAs, 74 pairs at once on 148 SMs."""
    (estimate,) = (
        e for e in _C.rank_gemm(*ask(100, 8192, 8192, 8192)) if name_of(e.plan) == ("sm100_256x256x256_b16", 2, 1)
    )
    assert (estimate.clusters, estimate.slots, estimate.rounds) == (1024, 74, 14)
    assert estimate.waves == pytest.approx(1024 / 74)
    assert estimate.padding == 0 and estimate.bound == "tensor cores"
    # 2 * 8192^3 operations at 9 PFLOP/s and 1.85 GHz are 226,000 clocks; 14 rounds for 13.84 waves, and the rest.
    assert 226_000 < estimate.clocks < 400_000
    text = estimate.explain()
    assert text.startswith("sm100_256x256x256_b16, cluster 2x1: 1024 clusters of work on 74 slots, 13.84 waves; 0 % ")
    assert text.endswith("bound by tensor cores")


def test_padding_is_counted_in_the_kernels_own_axes() -> None:
    ranked = {name_of(e.plan): e for e in _C.rank_gemm(*ask(100, 16, 4096, 256))}
    assert ranked["sm100_128x128x256_b16", 1, 1].padding == pytest.approx(1 - 16 / 128)
    assert ranked["sm100_128x64x256_swapped_b16", 1, 1].padding == pytest.approx(1 - 16 / 64)
    assert ranked["sm100_128x64x256_swapped_b16", 1, 1].clusters == 32
    k = {name_of(e.plan): e for e in _C.rank_gemm(*ask(103, 256, 128, 1024))}
    assert k["sm103_256x128x768_b16", 2, 1].padding == pytest.approx(1 - 1024 / 1536)


@pytest.mark.parametrize("shape", [(1, 4096, 4096), (8192, 8192, 8192)])
def test_bug_93_choosing_costs_microseconds(shape: tuple[int, int, int]) -> None:
    """About 2 us on an idle machine, Python's call included; the bound leaves room for a busy one."""
    question = ask(100, *shape)
    best = min(timeit.repeat(lambda: _C.choose_gemm(*question), number=500, repeat=7)) / 500 * 1e6
    assert best < 20, f"{best:.1f} us"
