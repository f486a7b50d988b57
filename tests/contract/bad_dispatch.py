# SPDX-License-Identifier: Apache-2.0
"""Bad calls of what chooses kernels: GemmConfig, gemm_candidates, autotune."""

from __future__ import annotations

from typing import Any

import torch

import blockscale as bs

from .table import BadCall, misused, ruled

_kind = ruled("gemm_candidates", TypeError)
_value = ruled("gemm_candidates", ValueError)
_config_kind = ruled("GemmConfig", TypeError)
_config_value = ruled("GemmConfig", ValueError)
_tune_kind = ruled("autotune", TypeError)
_tune_value = ruled("autotune", ValueError)

NAME = "sm100_256x256x256_b16"


def _ranked(*sizes: Any, **keywords: Any) -> Any:
    keywords.setdefault("arch", 100)
    return lambda _: bs.gemm_candidates(*(sizes or (128, 128, 128)), **keywords)


def _made(*arguments: Any, **keywords: Any) -> Any:
    return lambda _: bs.GemmConfig(*arguments, **keywords)


def _tuned(**keywords: Any) -> Any:
    return lambda i: bs.autotune(i.op(), i.op(32), save=False, **keywords)


DISPATCH_CALLS: tuple[BadCall, ...] = (
    _kind("m_float", _ranked(1.0, 16, 16), "m", "an int", "float"),
    _kind("n_none", _ranked(1, None, 16), "n", "an int", "NoneType"),
    _kind("k_bool", _ranked(1, 16, True), "k", "an int", "bool"),
    _value("m_zero", _ranked(0, 16, 16), "m", "positive", "0"),
    _value("n_negative", _ranked(1, -16, 16), "n", "positive", "-16"),
    _value("k_24", _ranked(1, 16, 24), "k", "a multiple of 16", "24"),
    _kind("out_dtype", _ranked(out_dtype=torch.int8), "out_dtype", "torch.float32,...", "torch.int8"),
    _kind("out_format", _ranked(out_format="nvfp4"), "out_format", "an NVFP4", "str"),
    _value("n_of_nvfp4", _ranked(16, 24, 16, out_format=bs.NVFP4()), "n", "a multiple of 16...", "24"),
    *(_value(f"arch_{bad}", _ranked(arch=bad), "arch", "one of 90, 100, 103, 120", str(bad)) for bad in (80, 101, 121)),
    _value("arch_text", _ranked(arch="sm_100a"), "arch", "one of 90, 100, 103, 120", "sm_100a"),
    _value("multiprocessors", _ranked(multiprocessors=0), "multiprocessors", "a positive int", "0"),
    _value("multiprocessors_float", _ranked(multiprocessors=148.0), "multiprocessors", "a positive int", "148.0"),
    _value("kernels", _ranked(kernels="all"), "kernels", 'None, "built", "core" or "full"', "'all'"),
    misused("gemm_candidates", "two", lambda _: bs.gemm_candidates(1, 16), r"gemm_candidates\(\) missing 1 required"),
    _config_kind("int", _made(4), "kernel", "a name", "int"),
    _config_kind("cluster_int", _made(NAME, 2), "cluster", "a pair of ints or None", "2"),
    _config_kind("cluster_three", _made(NAME, (2, 1, 1)), "cluster", "a pair of ints or None", "(2, 1, 1)"),
    _config_kind("cluster_floats", _made(NAME, (2.0, 1.0)), "cluster", "a pair of ints or None", "(2.0, 1.0)"),
    _config_kind("cluster_bools", _made(NAME, (True, True)), "cluster", "a pair of ints or None", "(True, True)"),
    _config_value("name", _made("sm100_256x256x256"), "kernel", "the name of a kernel", "'sm100_256x256x256'"),
    _config_value("cluster_of_a_pair", _made(NAME, (1, 1)), "cluster", "one of (2, 1), ... for sm100_...", "(1, 1)"),
    _config_value("cluster_16", _made(NAME, (4, 4)), "cluster", "one of ...", "(4, 4)"),
    _config_value("cluster_3", _made(NAME, (2, 3)), "cluster", "one of ...", "(2, 3)"),
    _config_value(
        "cluster_sm120", _made("sm120_128x128x128_b16", (2, 1)), "cluster", "one of (1, 1) for sm120_...", "(2, 1)"
    ),
    _config_value("cluster_sm90", _made("sm90_128x128x64_b16", (1, 1)), "cluster", "one of (2, 1) for...", "(1, 1)"),
    _tune_kind("a_tensor", lambda i: bs.autotune(i.x(16, 32), i.op()), "a", "an NVFP4Operand", "Tensor"),
    _tune_kind("b_none", lambda i: bs.autotune(i.op(), None), "b", "an NVFP4Operand", "NoneType"),
    _tune_value("config", _tuned(config=bs.GemmConfig(NAME)), "config", "left out", f"{NAME} 2x1"),
    _tune_value("top", _tuned(top=0), "top", "a positive int", "0"),
    _tune_value("rounds", _tuned(rounds=2.5), "rounds", "a positive int", "2.5"),
    misused("autotune", "one", lambda i: bs.autotune(i.op()), r"autotune\(\) missing 1 required positional"),
)

DISPATCH_ON_CPU: tuple[BadCall, ...] = (
    _tune_value("cpu", _tuned(), "a", "on a CUDA device", "cpu"),
    ruled("gemm", ValueError)(
        "config_cpu",
        lambda i: i.gemm(config=bs.GemmConfig(NAME)),
        "config",
        "None on cpu",
        f"{NAME} 2x1",
    ),
)
