# SPDX-License-Identifier: Apache-2.0
"""One table of bad calls to every public function: exact exception type, and argument, rule and value in the text.

``python -m tests.contract.test_bad_calls`` runs the table without pytest; a test here does that under ``python -O``,
where ``assert`` is gone.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import blockscale as bs
from tests.cases import REFUSAL_CASES, RefusalCase
from tests.checks import check_refusal
from tests.contract.bad_casts import CAST_CALLS
from tests.contract.bad_dispatch import DISPATCH_CALLS, DISPATCH_ON_CPU
from tests.contract.bad_distributed import DISTRIBUTED_CALLS
from tests.contract.bad_gemms import GEMM_CALLS
from tests.contract.bad_others import CPU_ONLY, OTHER_CALLS
from tests.contract.bad_primary import PRIMARY_CALLS
from tests.contract.table import BadCall, problem_of

TABLE: tuple[BadCall, ...] = CAST_CALLS + OTHER_CALLS + GEMM_CALLS + PRIMARY_CALLS + DISPATCH_CALLS + DISTRIBUTED_CALLS

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_refused(case: BadCall, device: torch.device) -> None:
    problem = problem_of(case, device)
    assert not problem, problem


@pytest.mark.parametrize("case", CPU_ONLY + DISPATCH_ON_CPU, ids=str)
def test_refused_on_the_cpu(case: BadCall) -> None:
    problem = problem_of(case, "cpu")
    assert not problem, problem


@pytest.mark.parametrize("case", REFUSAL_CASES, ids=str)
def test_refused_like_the_reference(case: RefusalCase, device: torch.device) -> None:
    check_refusal(bs, case, device)


def test_every_public_function_is_in_the_table() -> None:
    public = {name: getattr(bs, name) for name in bs.__all__}
    callables = {name for name, value in public.items() if inspect.isfunction(value)}
    callables |= {"GemmConfig", "NVFP4", "NVFP4Operand", "Recipe"}
    assert {"quantize", "gemm", "amax"} <= callables
    assert callables == {case.function for case in TABLE}


def test_names_are_unique() -> None:
    names = [str(case) for case in TABLE + CPU_ONLY]
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)


def test_the_checker_sees_a_wrong_refusal() -> None:
    good = BadCall("amax", "int", lambda i: bs.amax(i.x(4).int()), TypeError, "amax: x must be float32")
    assert problem_of(good, "cpu") == ""
    for change, part in (
        ({"error": ValueError}, "raised TypeError"),
        ({"match": "amax: y"}, "the message is"),
        ({"call": lambda i: bs.amax(i.x(4))}, "was accepted"),
        ({"call": lambda i: _raise(TypeError("amax: x must be float32; got {dtype}."))}, "unformatted"),
    ):
        assert part in problem_of(BadCall(**{**vars(good), **change}), "cpu")


def _raise(error: Exception) -> None:
    raise error


def test_bug_59_the_table_holds_without_asserts() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, sys.path)])}
    command = [sys.executable, "-O", "-m", "tests.contract.test_bad_calls"]
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert f"optimize=1 calls={len(TABLE) + len(CPU_ONLY)}" in done.stdout, done.stdout + done.stderr
    expected = [problem for case in TABLE + CPU_ONLY if (problem := problem_of(case, "cpu"))]
    got = [line.removeprefix("BAD ") for line in done.stdout.splitlines() if line.startswith("BAD ")]
    assert [text.splitlines()[0] for text in expected] == got, "python -O refuses otherwise"


def main() -> int:
    """Prints what is wrong with each call that is not refused as the table says."""
    problems = [problem for case in TABLE + CPU_ONLY if (problem := problem_of(case, "cpu"))]
    for problem in problems:
        print("BAD", problem.splitlines()[0])
    print(f"optimize={sys.flags.optimize} calls={len(TABLE) + len(CPU_ONLY)} problems={len(problems)}")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
