# SPDX-License-Identifier: Apache-2.0
"""The Adam kernel: bits of the oracle, and within a derived bound of exact arithmetic as torch's own AdamW is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

import blockscale as bs
from blockscale.optim.adam_list import AdamItem, AdamList, AdamSettings
from tests.bits import assert_bits_equal
from tests.memory import Guards

SIZES = (0, 1, 3, 16, 17, 4095, 4096, 4097, 0, 20011)
GRAD_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ULP = 2.0**-24
"""Half a unit in the last place, relative: the error of one FP32 rounding."""


@dataclass
class Case:
    """A list of tensors before a step."""

    masters: list[torch.Tensor]
    exp_avgs: list[torch.Tensor]
    exp_avg_sqs: list[torch.Tensor]
    grads: list[torch.Tensor]

    def to(self, device: torch.device) -> Case:
        return Case(*([t.to(device, copy=True) for t in ts] for ts in vars(self).values()))


def make_case(gen: torch.Generator, sizes: tuple[int, ...] = SIZES, ugly: bool = False) -> Case:
    grads = [
        torch.randn(n, generator=gen).to(dtype) for n, dtype in zip(sizes, itertools.cycle(GRAD_DTYPES), strict=False)
    ]
    case = Case(
        [torch.randn(n, generator=gen) for n in sizes],
        [torch.randn(n, generator=gen) * 0.1 for n in sizes],
        [torch.rand(n, generator=gen) * 0.01 for n in sizes],
        grads,
    )
    if ugly:  # subnormals, zeros, overflow of the square, inf and NaN
        for grad, square in zip(case.grads, case.exp_avg_sqs, strict=True):
            values = torch.tensor([0.0, -0.0, 1e-40, 1e-30, -1e25, 6e4, float("inf"), float("nan")]).to(grad.dtype)
            count = min(len(values), len(grad))
            grad[:count] = values[:count]
            square[:count] = torch.tensor([0.0, 1e-45, 1e-40, 0.0, 1e30, 1e-38, 1.0, 1.0])[:count]
    return case


def run(case: Case, settings: AdamSettings, steps: list[int], copies: list[torch.Tensor] | None = None,
        inv_scale: torch.Tensor | None = None, found_inf: torch.Tensor | None = None) -> None:  # fmt: skip
    """One step in place; tensor i takes step steps[i]."""
    device = case.masters[0].device
    numbers = torch.tensor(steps, dtype=torch.float32, device=device)
    items = [
        AdamItem(master, mean, square, numbers[i], copies[i] if copies else None)
        for i, (master, mean, square) in enumerate(zip(case.masters, case.exp_avgs, case.exp_avg_sqs, strict=True))
    ]
    AdamList(items, case.grads).run(case.grads, settings, inv_scale, found_inf)


def expected(case: Case, settings: AdamSettings, steps: list[int], inv_scale: float = 1.0) -> Case:
    rows = [
        bs.reference.adam(
            master, mean, square, grad, step=step, lr=float(settings.lr), betas=settings.betas, eps=settings.eps,
            weight_decay=settings.weight_decay, adam_w_mode=settings.adam_w_mode, maximize=settings.maximize,
            inv_scale=inv_scale,
        )
        for master, mean, square, grad, step in zip(
            case.masters, case.exp_avgs, case.exp_avg_sqs, case.grads, steps, strict=True)
    ]  # fmt: skip
    masters, means, squares = ([row[i] for row in rows] for i in range(3))
    return Case(masters, means, squares, case.grads)


def assert_same(got: Case, want: Case) -> None:
    for name in ("masters", "exp_avgs", "exp_avg_sqs"):
        for i, (p, q) in enumerate(zip(getattr(got, name), getattr(want, name), strict=True)):
            assert_bits_equal(p, q, f"{name}[{i}]", nan_equal=True)


SETTINGS = {
    "AdamW": AdamSettings(1e-3, (0.9, 0.999), 1e-8, 0.01, False, True),
    "L2": AdamSettings(3e-4, (0.8, 0.95), 1e-10, 0.1, False, False),
    "maximize, no decay": AdamSettings(0.1, (0.0, 0.0), 0.0, 0.0, True, True),
    "L2 of nothing": AdamSettings(1e-2, (0.9, 0.99), 1e-6, 0.0, True, False),
    "factors that are subnormal": AdamSettings(1e-39, (0.9, 0.999), 1e-42, 1e-3, False, True),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("ugly", [False, True])
def test_bits_of_the_oracle(name: str, ugly: bool, device: torch.device, gen: torch.Generator) -> None:
    case = make_case(gen, ugly=ugly)
    steps = [1, 2, 3, 10, 100, 1000, 12345, 1, 1 << 20, 7]
    want = expected(case, SETTINGS[name], steps)
    got = case.to(device)
    run(got, SETTINGS[name], steps)
    assert_same(got, want)


def test_the_copy_is_the_master_rounded_once(device: torch.device, gen: torch.Generator, guards: Guards) -> None:
    case = make_case(gen)
    steps = [5] * len(SIZES)
    want = expected(case, SETTINGS["AdamW"], steps)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        got = case.to(device)
        copies = [guards.empty((n,), dtype, device) for n in SIZES]
        run(got, SETTINGS["AdamW"], steps, copies)
        assert_same(got, want)
        for copy, master in zip(copies, want.masters, strict=True):
            assert_bits_equal(copy, master.to(dtype), f"copy as {dtype}")


def test_arrays_that_are_not_aligned(device: torch.device, gen: torch.Generator) -> None:
    """Offsets of 1, 2, 3 elements: no wide load or store may assume more than the element's own alignment."""
    for shifts in ((1, 0, 0, 0), (0, 2, 0, 0), (0, 0, 3, 0), (0, 0, 0, 1), (1, 1, 1, 1)):
        case = make_case(gen, (5000, 4099))
        got = Case(*(
            [torch.cat([t[:shift], t]).to(device)[shift:] for t in ts]
            for ts, shift in zip(vars(case).values(), shifts, strict=True)
        ))  # fmt: skip
        run(got, SETTINGS["AdamW"], [1, 2])
        assert_same(got, expected(case, SETTINGS["AdamW"], [1, 2]))


def test_many_tensors_of_every_size_around_a_chunk(device: torch.device, gen: torch.Generator) -> None:
    sizes = tuple(int(n) for n in torch.randint(0, 9000, (70,), generator=gen))
    case = make_case(gen, sizes)
    steps = [1 + i % 5 for i in range(len(sizes))]
    got = case.to(device)
    run(got, SETTINGS["L2"], steps)
    assert_same(got, expected(case, SETTINGS["L2"], steps))


def test_learning_rate_inverse_scale_and_flag_on_the_device(device: torch.device, gen: torch.Generator) -> None:
    case = make_case(gen)
    steps = [9] * len(SIZES)
    rate = torch.tensor(1e-3, device=device)
    plain = SETTINGS["AdamW"]
    on_device = AdamSettings(rate, plain.betas, plain.eps, plain.weight_decay, False, True)
    host = AdamSettings(float(rate), plain.betas, plain.eps, plain.weight_decay, False, True)
    inverse, zero, one = (torch.tensor(v, device=device) for v in (0.37, 0.0, 1.0))
    got = case.to(device)
    run(got, on_device, steps, None, inverse, zero)
    assert_same(got, expected(case, host, steps, float(inverse)))
    untouched = case.to(device)
    run(untouched, on_device, steps, None, inverse, one)
    assert_same(untouched, case)


def test_written_gradients_are_read_again_and_moved_ones_found(device: torch.device, gen: torch.Generator) -> None:
    case = make_case(gen, (100, 5000)).to(device)
    numbers = torch.ones(2, device=device)
    items = [AdamItem(case.masters[i], case.exp_avgs[i], case.exp_avg_sqs[i], numbers[i]) for i in range(2)]
    adam = AdamList(items, case.grads)
    for _ in range(3):
        want = expected(case.to(torch.device("cpu")), SETTINGS["AdamW"], [1, 1])
        adam.run(case.grads, SETTINGS["AdamW"])
        assert_same(case, want)
        case.grads = [grad.clone() * 0.5 for grad in case.grads]


@pytest.fixture
def any_thread_state() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)
    assert bs._C.set_cpu_isa_level(-1)


@pytest.mark.usefixtures("any_thread_state")
def test_instruction_set_threads_and_flushing_change_no_bit(gen: torch.Generator) -> None:
    case = make_case(gen, (40000, 3, 70000), ugly=True)
    steps = [2, 3, 4]
    settings = SETTINGS["factors that are subnormal"]
    want = expected(case, settings, steps)
    for level in (0, 1, 2):
        if not bs._C.set_cpu_isa_level(level):
            continue
        for threads in (1, 2, 5):
            for flush in (False, True):
                torch.set_num_threads(threads)
                got = case.to(torch.device("cpu"))
                torch.set_flush_denormal(flush)
                run(got, settings, steps)
                torch.set_flush_denormal(False)
                assert_same(got, want)


# A step against exact arithmetic --------------------------------------------------------------------------------------


def _exact(case: Case, settings: AdamSettings, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The new master in FP64, and a bound on the error of FP32 evaluations of it.

    With u = 2^-24 to first order: m' has error 3u (|b1 m| + |(1 - b1) g|), factors included; sqrt(v') and the division
    by the corrected root have 3u of the ratio or less from each of six roundings; so |change| moves by
    step_size / d * (m' error) + 12u |change|. p * keep has 2u |p| and the difference u (|p| + |change|). torch's
    formulas are others with no more roundings; its root has two units instead of half a one: 4u more.
    """
    p, m, v, g = (torch.cat(list(ts)).double() for ts in vars(case).values())
    b1, b2 = settings.betas
    lr = float(settings.lr)
    mean, square = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    c1, c2 = 1 - b1**step, 1 - b2**step
    denominator = (square / c2).sqrt() + settings.eps
    change = lr / c1 * mean / denominator
    kept = p * (1 - lr * settings.weight_decay)
    mean_error = 3 * ULP * ((b1 * m).abs() + ((1 - b1) * g).abs())
    bound = lr / c1 / denominator * mean_error + 16 * ULP * change.abs() + ULP * (3 * kept.abs() + change.abs())
    return kept - change, bound


@pytest.mark.parametrize("step", [1, 10, 1000])
def test_within_the_bound_of_exact_arithmetic(step: int, device: torch.device, gen: torch.Generator) -> None:
    case = make_case(gen, (50000,))
    settings = SETTINGS["AdamW"]
    exact, bound = _exact(case, settings, step)
    got = case.to(device)
    run(got, settings, [step])
    error = (got.masters[0].cpu().double() - exact).abs()
    assert bool((error <= bound).all()), f"{float((error / bound).max())} of the bound"
    assert float((error / bound).max()) > 0.05, "the bound says nothing"


@pytest.mark.parametrize("foreach", [False, True])
def test_torch_adamw_is_within_the_same_bound(foreach: bool, gen: torch.Generator) -> None:
    case = make_case(gen, (50000,))
    settings = SETTINGS["AdamW"]
    exact, bound = _exact(case, settings, 10)
    p = torch.nn.Parameter(case.masters[0].clone())
    p.grad = case.grads[0].clone()
    torch_adam = torch.optim.AdamW([p], float(settings.lr), settings.betas, settings.eps, settings.weight_decay,
                                   foreach=foreach)  # fmt: skip
    torch_adam.state[p] = {"step": torch.tensor(9.0), "exp_avg": case.exp_avgs[0], "exp_avg_sq": case.exp_avg_sqs[0]}
    torch_adam.step()
    error = (p.detach().double() - exact).abs()
    assert bool((error <= bound).all()), f"{float((error / bound).max())} of the bound"


def test_bad_lists_are_refused_before_a_byte_is_written() -> None:
    items = bs._C.AdamItems()
    x = torch.ones(4)
    address = x.data_ptr()
    launch = bs._native.launch_on(torch.device("cpu"))

    def problem(step: int) -> object:
        return bs._C.AdamProblem(items, 0, 0.1, 0.9, 0.9, 0.0, 0.0, step, False, True, 0, 0, 0)

    items.append(address, address, address, address, 0, 0, 4, 0, 0)
    with pytest.raises(ValueError, match=r"adam: step must be at least 1; got 0\."):
        bs._native.CPU.adam(problem(0), launch)
    items.append(address, address, address, 0, 0, 0, 4, 0, 0)
    with pytest.raises(ValueError, match=r"adam: items must be of non-null pointers, as is not .* index; got 1"):
        bs._native.CPU.adam(problem(1), launch)
    with pytest.raises(ValueError, match="grads must be one for each item"):
        items.set_grads([address])
    assert x.tolist() == [1.0] * 4
