# SPDX-License-Identifier: Apache-2.0
"""The mutants of the choice of a GEMM kernel, a part of the list in `mutants.py`."""

from __future__ import annotations

from mutant import Mutant

HEURISTIC = "kernels/dispatch/heuristic.cpp"
CHOICE = "python/blockscale/dispatch/choice.py"
STORE = "python/blockscale/dispatch/store.py"
LAWS = "tests/dispatch/test_heuristic.py"
CHOICES = "tests/dispatch/test_choice.py"
STORES = "tests/dispatch/test_store.py"

DISPATCH: tuple[Mutant, ...] = (
    # Choice of a GEMM kernel
    Mutant("invariant_plan_looks_at_m", HEURISTIC, "if (q.batch_invariant) q.m = kInvariantRows;", "", (LAWS,)),
    Mutant(
        "invariant_family_takes_swapped",
        HEURISTIC,
        "return !kernel.swapped && instruction_k",
        "return instruction_k",
        (LAWS,),
    ),
    Mutant(
        "cluster_larger_than_the_device",
        HEURISTIC,
        "if (cluster.m * cluster.n > q.multiprocessors) return false;",
        "",
        (LAWS,),
    ),
    Mutant(
        "rounds_forget_the_last_wave",
        HEURISTIC,
        "e.rounds = divide_up(e.clusters, e.slots);",
        "e.rounds = e.clusters / e.slots;",
        (LAWS,),
    ),
    Mutant(
        "kernel_that_is_not_built",
        HEURISTIC,
        "if (!(q.built & set_of(index))) return false;",
        "",
        (LAWS,),
    ),
    Mutant(
        "remembered_plan_is_not_checked",
        CHOICE,
        "if known is not None and _takes(check, known):",
        "if known is not None:",
        (CHOICES,),
    ),
    Mutant(
        "new_choice_leaves_old_plans",
        CHOICE,
        "        _TUNED = {**_TUNED, **added}\n        _RESOLVED.clear()",
        "        _TUNED = {**_TUNED, **added}",
        (CHOICES,),
    ),
    Mutant(
        "class_without_the_epilogue",
        "python/blockscale/dispatch/problem.py",
        "facts.output, epilogue_class(facts), facts.batch",
        'facts.output, "plain", facts.batch',
        (CHOICES,),
    ),
    Mutant(
        "file_written_without_reading",
        STORE,
        "        raw = _read_raw(path)\n        for entry",
        "        raw: dict[str, dict[str, Any]] = {}\n        for entry",
        (STORES,),
    ),
    Mutant(
        "file_written_without_the_lock",
        STORE,
        "        fcntl.flock(file, fcntl.LOCK_EX)",
        "        fcntl.flock(file, fcntl.LOCK_UN)",
        (STORES,),
    ),
)
