# SPDX-License-Identifier: Apache-2.0
"""`autotune`: measures the plans of one GEMM on the GPU that is here, and keeps the fastest for `gemm` and for others.

What is chosen is written to a file (dispatch/store.py) and told to `gemm` in this process (dispatch/choice.py). Nothing
is tuned unless it is asked for: `gemm` itself never measures.
"""

from __future__ import annotations

import fcntl
import os
import statistics
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ._codes import ACTIVATION_CODE
from ._gpu_timer import Call, Timer, time_on_gpu
from .dispatch import store
from .dispatch.candidates import Candidate, ranked
from .dispatch.choice import add_tuned, tuned_entry
from .dispatch.config import NVFP4_OUTPUT, GemmConfig, output_code
from .dispatch.device import DeviceFacts, DeviceKey, device_facts, device_key
from .dispatch.problem import GemmFacts, class_of
from .errors import type_error, value_error
from .matmul import gemm
from .operand import NVFP4Operand

_NAME = "autotune"

TOP = 12
"""Plans of the heuristic's ranking that are timed, beside the best plan of each kernel."""

ROUNDS = 25
"""Samples of each plan."""

NOISE = 0.01
"""The heuristic's choice stays unless another plan is faster by more than this share."""

_COLD_BYTES_OF_L2 = 3
_MAX_SETS = 32

_ONE_AT_A_TIME = threading.Lock()


class TuningError(RuntimeError):
    """Tuning is not possible here: in a graph capture, under torch.compile, or without kernels to choose from."""


@dataclass(frozen=True)
class Timing:
    """A plan and what was measured of it, in microseconds a call; with the heuristic's rank, from 0."""

    config: GemmConfig
    rank: int
    samples_us: tuple[float, ...]

    @property
    def median_us(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples_us)


@dataclass(frozen=True)
class Tuned:
    """What `autotune` found; `str()` is a table.

    Attributes:
        config: the choice, which `gemm` now makes by itself for problems of this class.
        entry: as it is kept in the file.
        timings: all that was measured, fastest first; empty if the choice was in the file.
        refused: plans that do not take this very problem.
    """

    config: GemmConfig
    entry: store.TunedEntry
    timings: tuple[Timing, ...]
    refused: tuple[GemmConfig, ...]

    def __str__(self) -> str:
        problem = self.entry.problem
        rows = "any M" if problem.batch_invariant else f"M up to {problem.m_bucket}"
        lines = [f"{rows}, N {problem.n}, K {problem.k}, {problem.epilogue}: {self.config}"]
        if not self.timings:
            return f"{lines[0]} (from the file; {self.entry.median_us:.1f} us when it was tuned, at M {self.entry.m})"
        lines.append(f"{'kernel':<34} cluster  median us  heuristic's rank")
        for t in self.timings:
            cluster = f"{t.config.plan[1]}x{t.config.plan[2]}"
            lines.append(f"{t.config.kernel:<34} {cluster:<7} {t.median_us:>10.2f}  {t.rank:>4}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Bench:
    """What tuning needs of a device; tests bring their own."""

    key: DeviceKey
    facts: DeviceFacts
    l2_bytes: int
    gemm: Callable[..., Any]
    timer: Timer[GemmConfig]


def autotune(
    a: NVFP4Operand,
    b: NVFP4Operand,
    *,
    path: str | os.PathLike[str] | None = None,
    save: bool = True,
    retune: bool = False,
    top: int = TOP,
    rounds: int = ROUNDS,
    **keywords: Any,
) -> Tuned:
    """Finds the fastest plan for `gemm(a, b, **keywords)` on this GPU, and makes `gemm` use it.

    Times the best plans of the heuristic's ranking and the best of each kernel, on copies of the operands that rotate
    through more memory than L2 holds, interleaved; the median decides, and the heuristic's own choice stays unless
    another is faster by more than 1 %. The choice serves the class of the problem: the same N, K, output and epilogue,
    M up to the next power of two; with batch_invariant=True every M. A choice that is in the file is taken from there.

    Args:
        a, b, keywords: as for `gemm`, without config. `out` says the kind of the output and is not written.
        path: the file to read and to add the choice to; None is `dispatch.default_path()`.
        save: whether to use a file at all.
        retune: measure again even if the file has a choice.
        top: plans of the ranking that are timed.
        rounds: samples of each.

    Raises:
        TuningError: inside a graph capture or torch.compile; no kernel is built for this GPU.
        TypeError, ValueError, NotImplementedError: what `gemm` raises for the call; operands that are not on a CUDA
            device; a config among the keywords.
    """
    _check_now()
    device = _checked_operands(a, b, keywords)
    for arg, count in (("top", top), ("rounds", rounds)):
        if type(count) is not int or count < 1:
            raise value_error(_NAME, arg, "a positive int", count)
    if device.type != "cuda":
        raise value_error(_NAME, "a", "on a CUDA device", device, "On a CPU there is one path and no choice.")
    facts = device_facts(device)
    if facts is None or not facts.built:
        raise TuningError(f"{_NAME}: this build has no GEMM kernel for {torch.cuda.get_device_name(device)}.")
    l2 = torch.cuda.get_device_properties(device).L2_cache_size
    with torch.cuda.device(device):
        bench = Bench(device_key(device), facts, l2, gemm, time_on_gpu)
        return tune_with(bench, a, b, keywords, _path(path, save), retune, top, rounds)


def tune_with(
    bench: Bench, a: NVFP4Operand, b: NVFP4Operand, keywords: dict[str, Any], path: Path | None,
    retune: bool = False, top: int = TOP, rounds: int = ROUNDS,
) -> Tuned:  # fmt: skip
    """`autotune` on a given bench. Of several processes with one file, one measures and the others take its choice."""
    call = {name: value for name, value in keywords.items() if value is not None}
    facts = facts_of_call(a, b, call)
    key = (bench.key, class_of(facts))
    with _ONE_AT_A_TIME, _alone_with(key, path):
        if not retune:
            found = _known(key, path, bench)
            if found is not None:
                return Tuned(found.config, found, (), ())
        timings, refused = _measure(bench, facts, a, b, call, top, rounds)
        best = _pick(timings)
        entry = store.TunedEntry(*key, best.config, best.median_us, facts.m)
        add_tuned([entry])
        if path is not None:
            _save(path, entry)
    return Tuned(best.config, entry, timings, refused)


def facts_of_call(a: NVFP4Operand, b: NVFP4Operand, call: dict[str, Any]) -> GemmFacts:
    """What `gemm(a, b, **call)` looks like to the choice of a kernel."""
    out = call.get("out")
    quantized = "out_format" in call or isinstance(out, NVFP4Operand)
    dtype = out.dtype if isinstance(out, Tensor) else call.get("out_dtype", torch.bfloat16)
    return GemmFacts(
        a.rows,
        b.rows,
        b.k,
        NVFP4_OUTPUT if quantized else output_code(dtype),
        call.get("c") is not None and call.get("beta", 1.0) != 0,
        ACTIVATION_CODE[call.get("activation")],
        call.get("return_amax") is not None,
        bool(call.get("batch_invariant", False)),
    )


def candidates_to_time(ranking: Sequence[Candidate], top: int) -> list[GemmConfig]:
    """The first `top` of a ranking and the best plan of each kernel, in the order of the ranking."""
    kernels: set[str] = set()
    chosen = []
    for rank, candidate in enumerate(ranking):
        if rank < top or candidate.config.kernel not in kernels:
            chosen.append(candidate.config)
        kernels.add(candidate.config.kernel)
    return chosen


def _check_now() -> None:
    if torch.compiler.is_compiling():
        raise TuningError(
            f"{_NAME}: it must run outside of torch.compile. Tune first; a compiled gemm uses the choice."
        )
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise TuningError(f"{_NAME}: it must run outside of a graph capture. Tune first; capture uses the choice.")


def _checked_operands(a: object, b: object, keywords: dict[str, Any]) -> torch.device:
    for arg, operand in (("a", a), ("b", b)):
        if not isinstance(operand, NVFP4Operand):
            raise type_error(_NAME, arg, "an NVFP4Operand", type(operand).__name__)
    if keywords.get("config") is not None:
        raise value_error(_NAME, "config", "left out", keywords["config"], "It is what autotune looks for.")
    return b.device  # type: ignore[attr-defined,no-any-return]


def _path(path: str | os.PathLike[str] | None, save: bool) -> Path | None:
    if not save:
        return None
    return store.default_path() if path is None else Path(path)


def _known(key: store.Key, path: Path | None, bench: Bench) -> store.TunedEntry | None:
    """A choice that is there already, in the file or in this process, and whose kernel is built here."""
    entry = store.read(path).get(key) if path is not None else None
    if entry is not None:
        add_tuned([entry])
    entry = entry or tuned_entry(key)
    return entry if entry is not None and bench.facts.built >> entry.config.plan[0] & 1 else None


def _measure(
    bench: Bench, facts: GemmFacts, a: NVFP4Operand, b: NVFP4Operand, call: dict[str, Any], top: int, rounds: int
) -> tuple[tuple[Timing, ...], tuple[GemmConfig, ...]]:
    bench.gemm(a, b, **_with_fresh_output(call))  # an error of the call itself is the caller's, not a candidate's
    configs = candidates_to_time(ranked(facts, bench.facts), top)
    calls: dict[GemmConfig, Call] = {}
    refused = []
    sets = _sets(a, b, call, bench.l2_bytes, facts)
    for config in configs:
        run = _call_of(bench, config, sets)
        try:
            run(0)  # a plan is checked against the very problem that it would run on
        except (ValueError, NotImplementedError):
            refused.append(config)
        else:
            calls[config] = run
    if not calls:
        raise TuningError(f"{_NAME}: no plan of {len(configs)} takes this problem.")
    samples = bench.timer(calls, len(sets), rounds)
    timings = [Timing(config, configs.index(config), tuple(samples[config])) for config in calls]
    return tuple(sorted(timings, key=lambda t: (t.median_us, t.rank))), tuple(refused)


def _pick(timings: Sequence[Timing]) -> Timing:
    """The fastest; of those within the noise of it, the one that the heuristic prefers."""
    limit = timings[0].median_us * (1 + NOISE)
    return min((t for t in timings if t.median_us <= limit), key=lambda t: t.rank)


_Set = tuple[NVFP4Operand, NVFP4Operand, dict[str, Any]]


def _sets(a: NVFP4Operand, b: NVFP4Operand, call: dict[str, Any], l2_bytes: int, facts: GemmFacts) -> list[_Set]:
    """Copies of what a call reads, as many as it takes to outgrow L2 three times."""
    c = call.get("c")
    one = sum(t.nbytes for op in (a, b) for t in (op.qdata, op.block_scale)) + 2 * facts.m * facts.n
    one += c.nbytes if isinstance(c, Tensor) else 0
    count = min(_MAX_SETS, 1 + -(-_COLD_BYTES_OF_L2 * l2_bytes // max(one, 1)))
    base = _with_fresh_output(call)
    sets: list[_Set] = []
    for index in range(count):
        copy = dict(base)
        if isinstance(c, Tensor) and index:
            copy["c"] = c.clone()
        sets.append((a, b, copy) if index == 0 else (a.clone(), b.clone(), copy))
    return sets


def _with_fresh_output(call: dict[str, Any]) -> dict[str, Any]:
    """The call without `out`, whose kind becomes out_dtype or out_format."""
    fresh = {name: value for name, value in call.items() if name != "out"}
    out = call.get("out")
    if isinstance(out, NVFP4Operand):
        fresh["out_format"] = out.format
    elif isinstance(out, Tensor):
        fresh["out_dtype"] = out.dtype
    return fresh


def _call_of(bench: Bench, config: GemmConfig, sets: Sequence[_Set]) -> Call:
    def run(index: int) -> object:
        a, b, call = sets[index]
        return bench.gemm(a, b, config=config, **call)

    return run


def _save(path: Path, entry: store.TunedEntry) -> None:
    try:
        store.merge(path, [entry])
    except (OSError, store.ForeignFileError) as error:
        text = f"{_NAME}: the choice is kept in this process only: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=4)


@contextmanager
def _alone_with(key: store.Key, path: Path | None) -> Iterator[None]:
    """Excludes other processes that tune this class with this file: a byte range of a lock file for each class."""
    if path is None:
        yield
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path.with_name(f"{path.name}.tuning"), "a", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError:
        yield  # a folder that cannot be written: saving will say so
        return
    with file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, zlib.crc32(repr(key).encode()))
        yield
