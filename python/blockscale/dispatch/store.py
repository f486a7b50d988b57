# SPDX-License-Identifier: Apache-2.0
"""The file of tuned choices: JSON, versioned, shared by processes.

Readers take no lock, because a file is only ever replaced as a whole. Writers lock, read again, merge and replace, so
that no choice of another process is lost. A choice is kept under kernel names; indices may move between versions.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import GemmConfig
from .device import DeviceKey
from .problem import ProblemClass

FORMAT = "blockscale gemm tuning"
VERSION = 1
"""Of the file. A reader ignores every other one, and a writer leaves it alone."""

Key = tuple[DeviceKey, ProblemClass]


class ForeignFileError(RuntimeError):
    """The file is of another version, so it is neither used nor replaced."""


@dataclass(frozen=True)
class TunedEntry:
    """A tuned choice.

    Attributes:
        device, problem: what it is for.
        config: the kernel and cluster.
        median_us: its median time in microseconds when it was tuned.
        m: the M for which it was tuned; the class has others.
    """

    device: DeviceKey
    problem: ProblemClass
    config: GemmConfig
    median_us: float
    m: int

    @property
    def key(self) -> Key:
        return self.device, self.problem


def default_path() -> Path:
    """gemm-tuning.json in $XDG_CACHE_HOME/blockscale, or in ~/.cache/blockscale. Read when asked, never in a GEMM."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return folder / "blockscale" / "gemm-tuning.json"


def read(path: Path) -> dict[Key, TunedEntry]:
    """The choices in a file; none where there is no file. What cannot be used is left out, with a warning."""
    try:
        raw = _read_raw(path)
    except ForeignFileError as error:
        warnings.warn(f"{error} It is ignored.", RuntimeWarning, stacklevel=2)
        return {}
    entries: dict[Key, TunedEntry] = {}
    broken = 0
    for item in raw.values():
        entry = _entry_of(item)
        if entry is None:
            broken += 1
        else:
            entries[entry.key] = entry
    if broken:
        warnings.warn(f"{path}: {broken} tuned choices are unusable and ignored.", RuntimeWarning, stacklevel=2)
    return entries


def merge(path: Path, entries: Iterable[TunedEntry]) -> None:
    """Adds choices to a file; those of other processes stay, one for the same problem is replaced.

    Raises:
        ForeignFileError: the file is of another version. OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f"{path.name}.lock")):
        raw = _read_raw(path)
        for entry in entries:
            item = _item_of(entry)
            raw[_raw_key(item)] = item
        _replace(path, {"format": FORMAT, "version": VERSION, "entries": list(raw.values())})


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock file at `path`; waits for it. The kernel drops it when the process ends, however it ends."""
    with open(path, "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def _read_raw(path: Path) -> dict[str, dict[str, Any]]:
    """The entries as they stand, by what they are for; entries of kernels that are unknown here stay in the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        return _unreadable(path, str(error))
    try:
        content = json.loads(text)
    except ValueError as error:
        return _unreadable(path, str(error))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return _unreadable(path, "it is no file of tuned choices")
    if content.get("version") != VERSION:
        raise ForeignFileError(f"{path} has version {content.get('version')!r}; this blockscale knows {VERSION}.")
    entries = content.get("entries")
    if not isinstance(entries, list):
        return _unreadable(path, "its entries are no list")
    return {_raw_key(item): item for item in entries if isinstance(item, dict)}


def _unreadable(path: Path, reason: str) -> dict[str, dict[str, Any]]:
    warnings.warn(f"{path} is unusable and taken as empty: {reason}", RuntimeWarning, stacklevel=4)
    return {}


def _raw_key(item: dict[str, Any]) -> str:
    return json.dumps([item.get("device"), item.get("problem")], sort_keys=True)


def _item_of(entry: TunedEntry) -> dict[str, Any]:
    return {
        "device": entry.device._asdict(),
        "problem": entry.problem._asdict(),
        "kernel": entry.config.kernel,
        "cluster": list(entry.config.plan[1:]),
        "median_us": entry.median_us,
        "m": entry.m,
    }


def _entry_of(item: dict[str, Any]) -> TunedEntry | None:
    """The entry that a JSON object holds; None if it holds none."""
    try:
        device = DeviceKey(**item["device"])
        problem = ProblemClass(**item["problem"])
        config = GemmConfig(item["kernel"], tuple(item["cluster"]))
        median_us, m = float(item["median_us"]), int(item["m"])
    except (KeyError, TypeError, ValueError):
        return None
    typed = zip((*device, *problem), (str, str, int, int, str, int, int, int, int, str, bool), strict=True)
    if any(type(value) is not kind for value, kind in typed) or config.output != problem.output:
        return None
    return TunedEntry(device, problem, config, median_us, m)


def _replace(path: Path, content: dict[str, Any]) -> None:
    """Writes a new file beside the old one and puts it in its place in one step."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".new")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
