# SPDX-License-Identifier: Apache-2.0
"""`run_ranks`: a function on several ranks of a process group, with the fault of every rank in one message.

A started process imports torch, which takes seconds: put many checks into one call.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pickle
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

_GRACE_S = 10.0
"""What the other ranks get to finish after one has failed; then they count as left waiting."""


def run_ranks(
    world_size: int,
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    timeout: float = 120.0,
    backend: str = "gloo",
) -> list[Any]:
    """Runs ``function(rank, *args)`` in `world_size` new processes that form the default process group.

    Args:
        world_size: number of processes; 1 is allowed.
        function: a function at the top of a module, since spawned processes import it by name.
        args: arguments after the rank; pickled.
        timeout: seconds for all ranks together, start included. No process outlives the call.
        backend: "gloo"; or "nccl", which gives rank r the CUDA device r.

    Returns:
        What each rank returned, by rank (pickled; tensors must be on the CPU).

    Raises:
        AssertionError: a rank raised, died or was left waiting: what each of them did, tracebacks included.
    """
    folder = Path(tempfile.mkdtemp(prefix="blockscale-ranks-"))
    context = mp.get_context("spawn")  # forked children would inherit locked OpenMP pools
    try:
        with _one_thread_each():
            processes: list[BaseProcess] = [
                context.Process(target=_run, args=(rank, world_size, folder, function, tuple(args), timeout, backend))
                for rank in range(world_size)
            ]
            for process in processes:
                process.start()
        waiting = _join(processes, timeout)
        return _results(folder, processes, waiting)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def error_of(call: Callable[[], Any]) -> tuple[str, str] | None:
    """(type, message) of what a call raises, or None: a rank returns it, so that all ranks can be compared."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def _run(rank: int, world_size: int, folder: Path, function: Callable[..., Any], args: tuple[Any, ...],
         timeout: float, backend: str) -> None:  # fmt: skip
    """The body of a process: leaves (succeeded, result or traceback) in a file."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)  # new memory holds NaN and FF, as in tests/conftest.py
    outcome: tuple[bool, Any]
    try:
        if backend == "nccl":
            torch.cuda.set_device(rank)
        dist.init_process_group(
            backend,
            init_method=f"file://{folder}/rendezvous",
            rank=rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=timeout),
        )
        outcome = (True, pickle.dumps(function(rank, *args)))
    except BaseException:
        outcome = (False, traceback.format_exc())
    written = folder / f"{rank}.writing"
    written.write_bytes(pickle.dumps(outcome))
    written.rename(folder / f"{rank}.outcome")
    if not outcome[0]:
        sys.exit(1)
    dist.barrier()  # a rank that leaves early would break the connections of the others
    dist.destroy_process_group()


def _join(processes: list[BaseProcess], timeout: float) -> set[int]:
    """Waits for all; ends those that hang. Returns the ranks that had to be ended."""
    deadline = time.monotonic() + timeout
    while any(process.is_alive() for process in processes) and time.monotonic() < deadline:
        if any(process.exitcode for process in processes):
            deadline = min(deadline, time.monotonic() + _GRACE_S)
        time.sleep(0.02)
    waiting = {rank for rank, process in enumerate(processes) if process.is_alive()}
    for rank in waiting:
        processes[rank].kill()
    for process in processes:
        process.join()
    return waiting


def _results(folder: Path, processes: list[BaseProcess], waiting: set[int]) -> list[Any]:
    results, faults = [], []
    for rank, process in enumerate(processes):
        file = folder / f"{rank}.outcome"
        succeeded, value = pickle.loads(file.read_bytes()) if file.exists() else (False, "")
        if succeeded:
            results.append(pickle.loads(value))
        elif rank in waiting and not value:
            faults.append(f"rank {rank} was left waiting")
        else:
            faults.append(f"rank {rank}: {value or f'died with exit code {process.exitcode}'}")
    if faults:
        raise AssertionError("\n".join(faults))
    return results


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """OpenMP reads its variable once, when a process starts."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
