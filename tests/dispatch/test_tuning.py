# SPDX-License-Identifier: Apache-2.0
"""`autotune` with times that are typed in: what is timed, what is chosen, what is kept, and where it refuses to run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import dispatch, gemm_ops, matmul, tuning
from blockscale.dispatch import choice, store
from blockscale.dispatch.problem import class_of
from blockscale.tuning import TuningError, candidates_to_time, facts_of_call, tune_with

from .fakes import B200, KEY, PAIR, SMALL, SWAPPED, FakeBench
from .kernels import BY_NAME


@pytest.fixture
def a() -> Any:
    return bs.quantize(torch.ones(200, 512))


@pytest.fixture
def b() -> Any:
    return bs.quantize(torch.ones(768, 512))


def ranking() -> Any:
    return bs.gemm_candidates(200, 768, 512, arch=100)


def test_the_fastest_is_chosen_kept_and_used(a: Any, b: Any, tmp_path: Path, b200: Any) -> None:
    path = tmp_path / "tuning.json"
    fake = FakeBench({SMALL: 10.0})
    tuned = tune_with(fake.bench(), a, b, {}, path)
    assert tuned.config == SMALL and tuned.timings[0].config == SMALL and tuned.timings[0].median_us == 10.0
    assert (tuned.entry.device, tuned.entry.m) == (KEY, 200)
    assert tuned.entry.problem == class_of(facts_of_call(a, b, {}))
    assert store.read(path) == {tuned.entry.key: tuned.entry}
    plan = dispatch.plan_for(facts_of_call(a, b, {}), b200)
    assert plan is not None and plan.kernel == SMALL.plan[0]
    text = str(tuned)
    assert (
        text.startswith(f"M up to 256, N 768, K 512, plain: {SMALL}\n") and text.count("\n") == len(tuned.timings) + 1
    )

    again = FakeBench({PAIR: 1.0})
    kept = tune_with(again.bench(), a, b, {}, path)
    assert kept.config == SMALL and not again.timed and not kept.timings, "the file has it"
    assert "from the file; 10.0 us when it was tuned, at M 200" in str(kept)
    anew = tune_with(again.bench(), a, b, {}, path, retune=True)
    assert anew.config == PAIR and again.timed
    dispatch.forget_tuned()
    third = FakeBench()
    assert tune_with(third.bench(), a, b, {}, path).config == PAIR and not third.timed


def test_what_is_timed() -> None:
    """The first of the ranking and the best plan of each kernel, in that order."""
    found = candidates_to_time(ranking(), 3)
    order = [c.config for c in ranking()]
    assert found[:3] == order[:3] and found == sorted(found, key=order.index)
    assert {c.kernel for c in found} == {c.kernel for c in order}
    assert len(found) <= 3 + len({c.kernel for c in order})
    assert candidates_to_time(ranking(), 1000) == order


def test_all_are_timed_together_on_cold_copies(a: Any, b: Any) -> None:
    fake = FakeBench()
    c = torch.ones(200, 768)
    tuned = tune_with(fake.bench(l2_bytes=1_000_000), a, b, {"c": c, "bias": torch.ones(768)}, None)
    assert len(fake.timed) == 1 and len(fake.timed[0]) == len(tuned.timings)
    one = sum(t.nbytes for op in (a, b) for t in (op.qdata, op.block_scale)) + 2 * 200 * 768 + c.nbytes
    assert fake.sets * one >= 3 * 1_000_000 > (fake.sets - 2) * one
    seen = [k for config, k in fake.calls if config == tuned.config]
    for part in ("a", "b"):
        assert len({k[part].qdata.data_ptr() for k in seen}) == fake.sets, part
        assert len({k[part].block_scale.data_ptr() for k in seen}) == fake.sets, part
    assert len({k["c"].data_ptr() for k in seen}) == fake.sets
    assert all(torch.equal(k["a"].qdata, a.qdata) and torch.equal(k["c"], c) for k in seen)
    assert len({k["bias"].data_ptr() for k in seen}) == 1


def test_the_heuristics_choice_stays_within_the_noise(a: Any, b: Any) -> None:
    """A tuned choice is never slower than the default beyond noise, and noise moves nothing."""
    first = ranking()[0].config
    assert first not in (SMALL, PAIR)
    for times, want in (
        ({first: 100.0, SMALL: 99.5}, first),
        ({first: 100.0, SMALL: 98.0}, SMALL),
        ({first: 200.0, SMALL: 50.0, PAIR: 49.9}, min((SMALL, PAIR), key=[c.config for c in ranking()].index)),
    ):
        assert tune_with(FakeBench(times).bench(), a, b, {}, None, retune=True).config == want


def test_the_median_decides(a: Any, b: Any) -> None:
    fake = FakeBench()

    def noisy(calls: Any, sets: int, rounds: int) -> Any:
        samples = {config: [100.0] * rounds for config in calls}
        samples[SMALL] = [60.0] * (rounds - 2) + [9e9] * 2  # two samples while something else ran
        samples[PAIR] = [1.0] * 2 + [90.0] * (rounds - 2)
        return samples

    bench = tuning.Bench(KEY, B200, 0, fake.gemm, noisy)
    assert tune_with(bench, a, b, {}, None, rounds=9).config == SMALL


def test_a_plan_that_does_not_take_the_problem_is_not_timed(a: Any, b: Any, b200: Any) -> None:
    fake = FakeBench({SMALL: 1.0}, refuse=lambda config, _: config.kernel == SMALL.kernel)
    tuned = tune_with(fake.bench(), a, b, {}, None)
    assert SMALL in tuned.refused and all(t.config.kernel != SMALL.kernel for t in tuned.timings)
    assert not any(config.kernel == SMALL.kernel for config in fake.timed[0])
    nothing = FakeBench(refuse=lambda config, _: True)
    with pytest.raises(TuningError, match=r"^autotune: no plan of \d+ takes this problem"):
        tune_with(nothing.bench(), a, b, {"activation": "relu"}, None)


def test_an_error_of_the_call_is_the_callers(a: Any, b: Any) -> None:
    class Failing(FakeBench):
        def gemm(self, a: Any, b: Any, *, config: Any = None, **keywords: Any) -> None:
            bs.gemm(a, b, **keywords)

    with pytest.raises(ValueError, match=r"^gemm: bias must be of shape \(768,\)"):
        tune_with(Failing().bench(), a, b, {"bias": torch.ones(3)}, None)


def test_batch_invariant_is_tuned_in_its_family_and_for_every_m(a: Any, b: Any, b200: Any) -> None:
    fake = FakeBench({SWAPPED: 1.0, PAIR: 2.0})
    tuned = tune_with(fake.bench(), a, b, {"batch_invariant": True}, None)
    assert tuned.config == PAIR and str(tuned).startswith("any M, ")
    assert all(BY_NAME[config.kernel].batch_invariant for config in fake.timed[0])
    f = facts_of_call(a, b, {"batch_invariant": True})
    plans = [dispatch.plan_for(f._replace(m=m), b200) for m in (1, 200, 9000)]
    assert all(plan is not None and plan.kernel == PAIR.plan[0] for plan in plans)
    assert choice.tuned_entry((KEY, class_of(facts_of_call(a, b, {})))) is None


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fp16": {"out_dtype": torch.float16},
    "fp32": {"out_dtype": torch.float32},
    "out": {"out": torch.empty(200, 768)},
    "c": {"c": torch.ones(200, 768)},
    "c not read": {"c": torch.ones(200, 768), "beta": 0.0},
    "c scaled": {"c": torch.ones(200, 768), "beta": 0.5},
    "activation": {"activation": "gelu_tanh", "bias": torch.ones(768), "alpha": 0.5},
    "amax": {"return_amax": "row"},
    "invariant": {"batch_invariant": True},
    "nvfp4": {"out_format": bs.NVFP4(), "out_amax": 1.0},
}


@pytest.mark.parametrize("name", CALLS)
def test_tuning_and_the_op_see_one_problem(name: str, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `autotune` files a choice under is what `gemm` looks for: the facts come from the op's own arguments."""
    seen: list[gemm_ops.Problem] = []
    for op_name in ("gemm", "gemm_out", "gemm_nvfp4"):
        op = getattr(gemm_ops, op_name)

        def spy(*arguments: Any, op: Any = op) -> Any:
            seen.append(gemm_ops.Problem(*arguments[: gemm_ops._COUNT]))
            return op(*arguments)

        monkeypatch.setattr(matmul.gemm_ops, op_name, spy)
    call = CALLS[name]
    d = bs.gemm(a, b, **call)
    d = d[0] if isinstance(d, tuple) else d
    output = 2 if isinstance(d, bs.NVFP4Operand) else int(d.dtype is torch.float32)
    assert seen[0].facts(output) == facts_of_call(a, b, call)


def test_out_is_not_written(a: Any, b: Any) -> None:
    fake = FakeBench()
    out = torch.full((200, 768), 7.0)
    tuned = tune_with(fake.bench(), a, b, {"out": out}, None)
    assert tuned.config.output == 1 and all("out" not in k and k["out_dtype"] is torch.float32 for _, k in fake.calls)
    assert torch.equal(out, torch.full((200, 768), 7.0))
    operand = bs.swizzle_scales(bs.quantize(torch.ones(200, 768), e4m3_max=256))
    tuned = tune_with(FakeBench().bench(), a, b, {"out": operand, "out_format": operand.format, "out_amax": 1.0}, None)
    assert tuned.config.output == 2


def test_a_file_that_cannot_be_written_costs_a_warning(a: Any, b: Any, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tuned = tune_with(FakeBench().bench(), a, b, {}, in_the_way / "tuning.json")
    assert [w for w in caught if "autotune: the choice is kept in this process only" in str(w.message)]
    assert choice.tuned_entry(tuned.entry.key) == tuned.entry
    foreign = tmp_path / "foreign.json"
    foreign.write_text('{"format": "blockscale gemm tuning", "version": 2}')
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tune_with(FakeBench().bench(), a, b, {"activation": "relu"}, foreign)
    assert [w for w in caught if "kept in this process only" in str(w.message)]
    assert foreign.read_text().endswith('"version": 2}')


def test_a_choice_of_a_kernel_that_is_not_built_is_measured_anew(a: Any, b: Any, tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    tune_with(FakeBench({PAIR: 1.0}).bench(), a, b, {}, path)
    without = B200._replace(built=B200.built & ~(1 << PAIR.plan[0]))
    fake = FakeBench({SMALL: 1.0})
    assert tune_with(fake.bench(device=without), a, b, {}, path).config == SMALL


def test_never_inside_torch_compile(a: Any, b: Any) -> None:
    def tuned(x: torch.Tensor) -> torch.Tensor:
        bs.autotune(a, b, save=False)
        return x + 1

    with pytest.raises(Exception, match=r"must run outside of torch\.compile"):
        torch.compile(tuned, backend="eager", fullgraph=True)(torch.ones(2))
    torch._dynamo.reset()


def test_never_inside_a_graph_capture(a: Any, b: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(TuningError, match=r"^autotune: it must run outside of a graph capture\. Tune first"):
        bs.autotune(a, b, save=False)
    assert issubclass(TuningError, RuntimeError)


@pytest.mark.gpu
def test_never_inside_a_real_graph_capture(cuda: torch.device) -> None:
    op = bs.quantize(torch.ones(32, 64, device=cuda))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(TuningError, match="outside of a graph capture"):
        bs.autotune(op, op, save=False)


@pytest.mark.gpu
def test_the_choice_is_the_fastest_on_this_gpu(cuda: torch.device, tmp_path: Path) -> None:
    """End to end where kernels are built: gemm then runs the choice, and gives what it gives when it is pinned."""
    a, b = (bs.quantize(torch.randn(n, 1024, device=cuda)) for n in (256, 512))
    try:
        tuned = bs.autotune(a, b, path=tmp_path / "tuning.json", rounds=5)
    except TuningError as error:
        pytest.skip(f"{error} Run where a kernel is built for the GPU.")
    plan = dispatch.plan_for(facts_of_call(a, b, {}), cuda)
    assert plan is not None and (plan.kernel, plan.cluster_m, plan.cluster_n) == tuned.config.plan
    assert torch.equal(bs.gemm(a, b), bs.gemm(a, b, config=tuned.config))
    assert min(t.median_us for t in tuned.timings) * 1.01 >= tuned.entry.median_us
