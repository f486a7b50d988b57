# SPDX-License-Identifier: Apache-2.0
"""GemmConfig, gemm_candidates, and how `config` and `batch_invariant` reach the op. bad_dispatch.py has bad calls."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import gemm_ops, matmul
from blockscale.dispatch import config as configs
from tests.bits import assert_bits_equal

from .fakes import PAIR, SMALL
from .kernels import BY_NAME, CORE, KERNELS, chosen


def test_a_config_is_a_value() -> None:
    made = bs.GemmConfig("sm100_256x256x256_b16", cluster=(2, 1))
    assert repr(made) == "GemmConfig(kernel='sm100_256x256x256_b16', cluster=(2, 1))"
    assert eval(repr(made), {"GemmConfig": bs.GemmConfig}) == made
    assert str(made) == "sm100_256x256x256_b16 2x1"
    assert made.plan == (BY_NAME["sm100_256x256x256_b16"].index, 2, 1) and (made.arch, made.output) == (100, 0)
    assert (
        len({made, bs.GemmConfig("sm100_256x256x256_b16", (2, 1)), bs.GemmConfig("sm100_256x256x256_b16", [2, 1])}) == 1
    )
    assert bs.GemmConfig("sm100_256x256x256_b16", (2, 2)) != made
    assert pickle.loads(pickle.dumps(made)).plan == made.plan
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.kernel = "x"  # type: ignore[misc]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_every_kernel_makes_a_config(kernel: Any) -> None:
    made = bs.GemmConfig(kernel.name)
    assert made.plan[0] == kernel.index and configs.native_plan(made).legal
    assert configs.config_of(configs.native_plan(made)) == made
    for cluster in configs.legal_clusters(kernel):
        assert bs.GemmConfig(kernel.name, cluster).cluster == cluster
    assert made.cluster == ((2, 1) if kernel.sms == 2 or kernel.arch == 90 else (1, 1))


def test_candidates_are_the_ranking_and_print() -> None:
    found = bs.gemm_candidates(512, 14336, 4096, arch=100)
    assert (found[0].config.kernel, *found[0].config.plan[1:]) == chosen(100, 512, 14336, 4096)
    assert [c.clocks for c in found] == sorted(c.clocks for c in found)
    text = str(found)
    assert text.splitlines()[0] == "512 x 14336 x 4096 to bfloat16 on sm_100a with 148 SMs"
    assert found[0].config.kernel in text.splitlines()[2] and f"and {len(found) - 10} more" in text
    assert text.endswith("an estimate from published figures, not a measurement")
    assert len(found.explain(limit=None).splitlines()) == len(found) + 3
    assert len(found[:3]) == 3


def test_candidates_of_sets_and_options() -> None:
    core = bs.gemm_candidates(512, 4096, 4096, arch=103, kernels="core")
    assert {c.config.kernel for c in core} <= {k.name for k in KERNELS if CORE >> k.index & 1}
    for keywords, output in (
        ({"out_dtype": torch.float32}, "f32"),
        ({"out_dtype": torch.float16}, "b16"),
        ({"out_format": bs.NVFP4()}, "nvfp4"),
    ):
        assert all(c.config.kernel.endswith(output) for c in bs.gemm_candidates(16, 64, 64, arch=120, **keywords))
    invariant = bs.gemm_candidates(16, 64, 64, arch=100, batch_invariant=True)
    assert invariant and not any("swapped" in c.config.kernel for c in invariant)
    assert bs.gemm_candidates(4096, 4096, 4096, arch=100, multiprocessors=4)[0].waves > 100


def test_candidates_without_a_device_say_what_to_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for keywords in ({}, {"arch": 100, "kernels": "built"}):
        with pytest.raises(RuntimeError, match=r"^gemm_candidates: no CUDA device .* Pass arch=100 for a B200"):
            bs.gemm_candidates(16, 16, 16, **keywords)


def _operands(device: str = "meta", m: int = 32) -> tuple[Any, Any]:
    return bs.quantize(torch.ones(m, 64)).to(device), bs.quantize(torch.ones(48, 64)).to(device)


def test_a_kernel_must_write_what_is_asked_for() -> None:
    """On meta tensors, which have a device that is not the CPU and run nothing."""
    a, b = _operands()
    f32, quantized = bs.GemmConfig("sm100_128x128x256_f32"), bs.GemmConfig("sm100_128x128x256_nvfp4")
    assert bs.gemm(a, b, config=SMALL).dtype is torch.bfloat16
    assert bs.gemm(a, b, config=SMALL, out_dtype=torch.float16).dtype is torch.float16
    assert bs.gemm(a, b, config=f32, out_dtype=torch.float32).dtype is torch.float32
    assert bs.gemm(a, b, config=quantized, out_format=bs.NVFP4(), out_amax=1.0).shape == (32, 48)
    out = torch.empty(32, 48, device="meta")
    assert bs.gemm(a, b, config=f32, out=out) is out
    for keywords, rule in (
        ({"config": f32}, "a kernel that writes bfloat16 or float16"),
        ({"config": f32, "out_dtype": torch.float16}, "a kernel that writes bfloat16 or float16"),
        ({"config": SMALL, "out": out}, "a kernel that writes float32"),
        ({"config": SMALL, "out_format": bs.NVFP4(), "out_amax": 1.0}, "a kernel that writes NVFP4"),
        ({"config": quantized}, "a kernel that writes bfloat16 or float16"),
    ):
        with pytest.raises(ValueError, match=rf"^gemm: config must be {rule}; got sm100_128x128x256_"):
            bs.gemm(a, b, **keywords)
    plain = torch.ones(4, 64, dtype=torch.bfloat16, device="meta")
    with pytest.raises(ValueError, match=r"^gemm: config must be None with a plain a; got sm100_"):
        bs.gemm(plain, b, config=SMALL)


class _Spy:
    """Stands in for an op and keeps the problem that it was called with."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.problem: gemm_ops.Problem | None = None

    def __call__(self, *arguments: Any) -> Any:
        self.problem = gemm_ops.Problem(*arguments[: gemm_ops._COUNT])
        return self.op(*arguments)


def test_config_and_batch_invariant_reach_every_op(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = _operands()
    quantized = bs.GemmConfig("sm100_256x256x256_nvfp4", (4, 1))
    fmt: dict[str, Any] = {"out_format": bs.NVFP4(), "out_amax": 1.0}
    made = bs.gemm(a, b, **fmt)
    for name, config, keywords in (
        ("gemm", PAIR, {}),
        ("gemm_out", PAIR, {"out": torch.empty(32, 48, dtype=torch.bfloat16, device="meta")}),
        ("gemm_nvfp4", quantized, fmt),
        ("gemm_nvfp4_out", quantized, {**fmt, "out": made}),
    ):
        spy = _Spy(getattr(gemm_ops, name))
        monkeypatch.setattr(matmul.gemm_ops, name, spy)
        bs.gemm(a, b, **keywords)
        assert spy.problem is not None and (spy.problem.plan, spy.problem.batch_invariant) == ([], False)
        bs.gemm(a, b, config=config, batch_invariant=True, **keywords)
        assert (spy.problem.plan, spy.problem.batch_invariant) == (list(config.plan), True)


def test_batch_invariant_on_a_cpu_changes_nothing() -> None:
    a, b = (bs.quantize(torch.randn(24, 2048)), bs.quantize(torch.randn(40, 2048)))
    whole = bs.gemm(a, b, batch_invariant=True)
    assert_bits_equal(whole, bs.gemm(a, b), "as without")


def test_a_fallback_honours_neither() -> None:
    """What runs where no fused kernel is built is a library's product, which chooses by M."""
    _, b = _operands("cpu")
    fields = dict(zip(gemm_ops.Problem._fields, [None] * gemm_ops._COUNT, strict=True))
    fields.update(b_qdata=b.qdata, plan=[], batch_invariant=False)
    gemm_ops._refuse_choice(gemm_ops.Problem(**fields))
    for change, arg in (({"plan": list(SMALL.plan)}, "config"), ({"batch_invariant": True}, "batch_invariant")):
        with pytest.raises(
            NotImplementedError, match=rf"^gemm: {arg} must be .* This build has no fused kernel for it"
        ):
            gemm_ops._refuse_choice(gemm_ops.Problem(**{**fields, **change}))
