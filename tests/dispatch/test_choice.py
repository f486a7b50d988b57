# SPDX-License-Identifier: Apache-2.0
"""`plan_for`: pinned before tuned before heuristic; what a choice is kept for; what it is checked against."""

from __future__ import annotations

import threading
import timeit
from typing import Any

import pytest
import torch

from blockscale import dispatch
from blockscale._native import _C
from blockscale.dispatch import GemmConfig, TunedEntry, choice
from blockscale.dispatch.device import DeviceFacts, arch_of, built_kernels
from blockscale.dispatch.problem import class_of, row_bucket

from .fakes import B200, KEY, PAIR, SMALL, SWAPPED, facts
from .kernels import ALL, CORE, KERNELS, ask, chosen, name_of


def planned(f: Any, device: torch.device, *arguments: Any) -> tuple[str, int, int] | None:
    plan = dispatch.plan_for(f, device, *arguments)
    return None if plan is None else name_of(plan)


def tune(f: Any, config: GemmConfig, key: Any = KEY) -> None:
    choice.add_tuned([TunedEntry(key, class_of(f), config, 1.0, f.m)])


def words(config: GemmConfig) -> tuple[str, int, int]:
    return config.kernel, *config.plan[1:]


def test_without_tuning_it_is_the_heuristic(b200: torch.device) -> None:
    for m in (1, 64, 256, 8192):
        for _ in range(2):  # made, and remembered
            assert planned(facts(m), b200) == chosen(100, m, 8192, 8192)
        invariant = facts(m, batch_invariant=True)
        assert planned(invariant, b200) == chosen(100, m, 8192, 8192, batch_invariant=True)


def test_pinned_before_tuned_before_heuristic(b200: torch.device) -> None:
    f = facts()
    heuristic = planned(f, b200)
    assert heuristic not in (words(SMALL), words(SWAPPED))
    tune(f, SMALL)
    assert planned(f, b200) == words(SMALL)  # the remembered plan is dropped
    assert planned(f, b200, SWAPPED.plan) == words(SWAPPED)
    assert planned(f, b200) == words(SMALL)
    dispatch.forget_tuned()
    assert planned(f, b200) == heuristic


def test_no_fused_kernel_no_plan(b200: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dispatch.plan_for(facts(), torch.device("cpu")) is None
    monkeypatch.setattr(choice, "device_facts", lambda device: B200._replace(built=0))
    assert dispatch.plan_for(facts(), b200) is None
    monkeypatch.setattr(choice, "device_facts", lambda device: None)  # a GPU that no kernel is written for
    assert dispatch.plan_for(facts(), b200) is None


def test_a_pinned_kernel_must_be_one_for_this_device_and_build(
    b200: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    hopper = GemmConfig("sm90_128x128x64_b16")
    with pytest.raises(ValueError, match=r"^gemm: config must be a kernel for sm_100a, which cuda:0 is; got sm90_"):
        dispatch.plan_for(facts(), b200, hopper.plan)
    with pytest.raises(NotImplementedError, match=r"^gemm: config must be None on cpu; got sm90_128x128x64_b16\."):
        dispatch.plan_for(facts(), torch.device("cpu"), hopper.plan)
    with pytest.raises(ValueError, match=r"^gemm: config must be a kernel and a cluster that it can have"):
        dispatch.plan_for(facts(), b200, (PAIR.plan[0], 1, 1))
    with pytest.raises(ValueError, match=r"^gemm: config must be a kernel and a cluster that it can have"):
        dispatch.plan_for(facts(), b200, (len(KERNELS), 1, 1))
    full = next(k for k in KERNELS if k.arch == 100 and not k.core)
    monkeypatch.setattr(choice, "device_facts", lambda device: B200._replace(built=CORE))
    with pytest.raises(
        NotImplementedError, match=rf"kernel of this build; got {full.name}\. Rebuild with BLOCKSCALE_G"
    ):
        dispatch.plan_for(facts(), b200, GemmConfig(full.name).plan)


class Refusing:
    """A backend's check that refuses some plans, and remembers what it was asked."""

    def __init__(self, *refused: tuple[str, int, int] | None, kind: type[Exception] = ValueError) -> None:
        self.refused, self.kind = refused, kind
        self.asked: list[tuple[str, int, int]] = []

    def __call__(self, plan: Any) -> None:
        self.asked.append(name_of(plan))
        if name_of(plan) in self.refused:
            raise self.kind("gemm: this plan does not take the problem")


def test_a_tactic_is_checked_against_the_problem_it_runs_on(b200: torch.device) -> None:
    """Tuned at another M of the class, remembered from another tensor: still asked, and passed over if refused."""
    tune(facts(200), SMALL)
    check = Refusing(words(SMALL))
    heuristic = chosen(100, 256, 8192, 8192)
    for kind in (ValueError, NotImplementedError):
        check = Refusing(words(SMALL), kind=kind)
        assert planned(facts(256), b200, (), check) == heuristic
        assert check.asked[-1] == heuristic
    check = Refusing()
    dispatch.forget_tuned()
    tune(facts(200), SMALL)
    for count in (1, 2):  # remembered, and asked again
        assert planned(facts(256), b200, (), check) == words(SMALL)
        assert len(check.asked) == count
    assert planned(facts(256), b200, (), Refusing(words(SMALL))) == heuristic


def test_every_plan_is_tried_before_there_is_none(b200: torch.device) -> None:
    ranking = [name_of(e.plan) for e in _C.rank_gemm(*ask(100, 256, 8192, 8192))]
    check = Refusing(*ranking[:-1])
    assert planned(facts(), b200, (), check) == ranking[-1]
    assert check.asked == ranking
    assert planned(facts(), b200, (), Refusing(*ranking)) is None


def test_a_refusal_of_a_pinned_plan_is_the_callers(b200: torch.device) -> None:
    with pytest.raises(ValueError, match="does not take the problem"):
        dispatch.plan_for(facts(), b200, SMALL.plan, Refusing(words(SMALL)))


def test_another_failure_of_the_check_is_not_swallowed(b200: torch.device) -> None:
    with pytest.raises(RuntimeError, match="does not take the problem"):
        dispatch.plan_for(facts(), b200, (), Refusing(chosen(100, 256, 8192, 8192), kind=RuntimeError))


def test_batch_invariant_ignores_what_was_tuned_for_some_m(b200: torch.device) -> None:
    for m in (1, 16, 256, 5000):
        tune(facts(m), SWAPPED)
    invariant = {planned(facts(m, batch_invariant=True), b200) for m in range(1, 600, 7)}
    assert invariant == {chosen(100, 1, 8192, 8192, batch_invariant=True)}
    tune(facts(7, batch_invariant=True), PAIR)
    assert {planned(facts(m, batch_invariant=True), b200) for m in (1, 7, 300, 9000)} == {words(PAIR)}
    refusing = Refusing(words(PAIR))
    assert len({planned(facts(m, batch_invariant=True), b200, (), refusing) for m in (1, 7, 300, 9000)}) == 1


def test_a_tuned_kernel_that_is_not_built_is_not_used(b200: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    full = GemmConfig(next(k.name for k in KERNELS if k.arch == 100 and not k.core and k.output == 0))
    tune(facts(), full)
    assert planned(facts(), b200) == words(full)
    dispatch.forget_tuned()
    tune(facts(), full)
    monkeypatch.setattr(choice, "device_facts", lambda device: B200._replace(built=CORE))
    assert planned(facts(), b200) == chosen(100, 256, 8192, 8192, built=CORE)


def test_bug_98_every_input_of_the_choice_is_in_the_key(b200: torch.device) -> None:
    """A choice for one problem on one device is used for no other."""
    f = facts()
    changes = {
        "m": 257, "n": 8208, "k": 8208, "output": 1, "has_c": True, "activation": 2, "returns_amax": True,
        "batch_invariant": True,
    }  # fmt: skip
    assert changes.keys() == set(f._fields), "a new field needs a row here"
    tune(f, SMALL)
    for field, value in changes.items():
        other = f._replace(**{field: value})
        assert class_of(other) != class_of(f), field
        assert planned(other, b200) != words(SMALL), field
    assert planned(f._replace(m=129), b200) == words(SMALL)  # the bucket of 256
    dispatch.forget_tuned()
    devices = {"name": "B300", "capability": "10.3", "multiprocessors": 147, "driver": 12090, "library": "0"}
    assert devices.keys() == set(KEY._fields)
    for field, value in devices.items():
        tune(f, SMALL, KEY._replace(**{field: value}))
    assert planned(f, b200) == chosen(100, 256, 8192, 8192)


def test_bug_98_two_devices_do_not_share_a_remembered_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {0: B200, 1: DeviceFacts(120, 170, ALL), 2: DeviceFacts(100, 20, ALL)}
    monkeypatch.setattr(choice, "device_facts", lambda device: found[device.index])
    for _ in range(2):
        plans = [planned(facts(256), torch.device("cuda", index)) for index in found]
        want = [chosen(f.arch, 256, 8192, 8192, sms=f.multiprocessors) for f in found.values()]
        assert plans == want and len(set(plans)) == 3


@pytest.mark.parametrize(
    ("m", "bucket"),
    [
        (1, 16),
        (15, 16),
        (16, 16),
        (17, 32),
        (32, 32),
        (33, 64),
        (1000, 1024),
        (1024, 1024),
        (1025, 2048),
        (10**6, 1 << 20),
    ],
)
def test_row_bucket(m: int, bucket: int) -> None:
    assert row_bucket(m) == bucket


def test_what_is_remembered_is_bounded(b200: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_MAX_RESOLVED", 10)
    for m in range(1, 200):
        assert planned(facts(m), b200) is not None
        assert len(choice._RESOLVED) <= 10


def test_many_threads_and_a_new_choice(b200: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """No exception, and after a choice has been added no thread keeps an older one."""
    monkeypatch.setattr(choice, "_MAX_RESOLVED", 20)
    errors: list[BaseException] = []
    stop = threading.Event()

    def ask_again() -> None:
        try:
            while not stop.is_set():
                for m in range(1, 40):
                    dispatch.plan_for(facts(m), b200)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask_again) for _ in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(50):
        for config in (SMALL, PAIR):
            tune(facts(1), config)
            assert planned(facts(1), b200) == words(config), turn
    stop.set()
    for thread in threads:
        thread.join(timeout=30)
    assert not errors
    assert planned(facts(1), b200) == words(PAIR)


def test_bug_84_architectures_are_exact() -> None:
    assert {cap: arch_of(cap) for cap in ((9, 0), (10, 0), (10, 3), (12, 0))} == {
        (9, 0): 90, (10, 0): 100, (10, 3): 103, (12, 0): 120,
    }  # fmt: skip
    for capability in ((8, 9), (9, 1), (10, 1), (10, 7), (11, 0), (12, 1), (1, 20)):
        assert arch_of(capability) is None, capability


def test_built_kernels_are_what_the_backend_says() -> None:
    class Backend:
        def gemm_built(self, kernel: int) -> int:
            return int(kernel in (0, 4, 34))

    assert built_kernels(Backend()) == 1 | 1 << 4 | 1 << 34
    assert built_kernels(object()) == 0  # a backend without fused kernels


def test_bug_93_a_call_pays_microseconds_for_its_plan(b200: torch.device) -> None:
    """Remembered: 0.5 us on an idle machine; a new M in a decode loop: 6 us. The bounds leave room for a busy one."""
    check = Refusing()
    f = facts()
    dispatch.plan_for(f, b200, (), check)
    known = min(timeit.repeat(lambda: dispatch.plan_for(f, b200, (), check), number=300, repeat=7)) / 300
    assert known < 20e-6, f"{known * 1e6:.1f} us"
    ms = iter(range(1000, 10**6))
    new = min(timeit.repeat(lambda: dispatch.plan_for(facts(next(ms)), b200, (), check), number=100, repeat=7)) / 100
    assert new < 100e-6, f"{new * 1e6:.1f} us"
