# SPDX-License-Identifier: Apache-2.0
"""The file of tuned choices: several processes, corrupt and foreign content, a write that fails half way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from blockscale import dispatch
from blockscale.dispatch import TunedEntry, choice, store
from blockscale.dispatch.problem import class_of

from .fakes import KEY, PAIR, SMALL, facts
from .worker import OWN, SHARED_N

ROOT = Path(__file__).parents[2]


def entry(n: int = 8192, config: Any = PAIR, **key: Any) -> TunedEntry:
    return TunedEntry(KEY._replace(**key), class_of(facts(n=n)), config, 12.5, 256)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "tuning.json"
    assert store.read(path) == {}
    first, second, other = entry(), entry(n=4096), entry(name="another GPU")
    store.merge(path, [first, second])
    store.merge(path, [other])
    assert store.read(path) == {e.key: e for e in (first, second, other)}
    faster = TunedEntry(first.device, first.problem, SMALL, 1.0, 200)
    store.merge(path, [faster])
    assert store.read(path)[first.key] == faster and len(store.read(path)) == 3
    content = json.loads(path.read_text())
    assert (content["format"], content["version"]) == ("blockscale gemm tuning", 1)
    assert content["entries"][0]["kernel"] == SMALL.kernel, "kernels are kept by name: an index moves between versions"
    assert sorted(p.name for p in path.parent.iterdir()) == ["tuning.json", "tuning.json.lock"]


def test_bug_91_four_processes_tune_into_one_file(tmp_path: Path) -> None:
    """All succeed, no choice is lost, and the problem that they share is measured once."""
    path = tmp_path / "tuning.json"
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.dispatch.worker", str(path), str(number), "4"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    try:
        done = [process.communicate(timeout=180) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * 4, done
    assert sum(int(out) for out, _ in done) == 4 * OWN + 1
    assert not any("Warning" in err for _, err in done), done
    sizes = {e.problem.n for e in store.read(path).values()}
    assert sizes == {SHARED_N} | {16 * (1 + i) for i in range(4 * OWN)}
    assert not list(tmp_path.glob("*.new"))
    with open(path, "w"):
        pass  # truncated by someone
    with pytest.warns(RuntimeWarning, match="unusable and taken as empty"):
        assert dispatch.load_tuned(path) == 0
    with pytest.warns(RuntimeWarning, match="unusable and taken as empty"):
        store.merge(path, [entry()])
    assert len(store.read(path)) == 1


GARBAGE = {
    "empty": b"",
    "cut": b'{"format": "blockscale gemm tuning", "version": 1, "entr',
    "bytes": bytes(range(128, 256)),
    "null": b"null",
    "a list": b"[]",
    "another format": b'{"version": 1, "entries": []}',
    "no entries": b'{"format": "blockscale gemm tuning", "version": 1}',
}


@pytest.mark.parametrize("name", GARBAGE)
def test_a_corrupt_file_is_empty_and_is_rebuilt(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    path.write_bytes(GARBAGE[name])
    with pytest.warns(RuntimeWarning, match=r"tuning\.json is unusable and taken as empty: "):
        assert dispatch.load_tuned(path) == 0
    with pytest.warns(RuntimeWarning, match="taken as empty"):
        store.merge(path, [entry()])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dispatch.load_tuned(path) == 1


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="taken as empty"):
        assert dispatch.load_tuned(tmp_path) == 0


BROKEN: dict[str, Any] = {
    "kernel": "sm100_1x1x1_b16",
    "cluster": [3, 1],
    "median_us": "fast",
    "m": None,
    "device": {"name": "B200"},
    "problem": {"m_bucket": 16.0, "n": 8192, "k": 8192, "output": 0, "epilogue": "plain", "batch_invariant": False},
}


@pytest.mark.parametrize("field", BROKEN)
def test_a_broken_entry_is_left_out_and_the_others_stay(field: str, tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    store.merge(path, [entry(), entry(n=4096)])
    content = json.loads(path.read_text())
    content["entries"][0][field] = BROKEN[field]
    content["entries"].append(17)
    path.write_text(json.dumps(content))
    with pytest.warns(RuntimeWarning, match="1 tuned choices are unusable and ignored"):
        found = store.read(path)
    assert set(found) == {entry(n=4096).key}
    store.merge(path, [entry(n=2048)])
    kept = json.loads(path.read_text())["entries"]
    assert content["entries"][0] in kept, "an entry that is unknown here may be known to another version"


def test_a_kernel_of_another_output_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    store.merge(path, [TunedEntry(KEY, class_of(facts(output=1)), SMALL, 1.0, 16)])
    with pytest.warns(RuntimeWarning, match="1 tuned choices"):
        assert store.read(path) == {}


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version_is_ignored_and_left_alone(version: Any, tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    text = json.dumps({"format": "blockscale gemm tuning", "version": version, "entries": {"of": "another shape"}})
    path.write_text(text)
    with pytest.warns(RuntimeWarning, match=r"has version .*; this blockscale knows 1\. It is ignored"):
        assert dispatch.load_tuned(path) == 0
    with pytest.raises(store.ForeignFileError, match="this blockscale knows 1"):
        store.merge(path, [entry()])
    assert path.read_text() == text


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuning.json"
    store.merge(path, [entry()])
    before = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match="No space left"):
                store.merge(path, [entry(n=4096)])
        assert path.read_bytes() == before
        assert not list(tmp_path.glob("*.new"))
    store.merge(path, [entry(n=4096)])  # and the lock is free again
    assert len(store.read(path)) == 2


def test_load_tuned_makes_choices_known(tmp_path: Path, b200: Any) -> None:
    path = tmp_path / "tuning.json"
    store.merge(path, [entry(config=SMALL), entry(name="another GPU", n=4096)])
    assert dispatch.load_tuned(str(path)) == 2
    plan = dispatch.plan_for(facts(), b200)
    assert plan is not None and plan.kernel == SMALL.plan[0]
    assert choice.tuned_entry(entry().key) == entry(config=SMALL)


def test_the_default_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert dispatch.default_path() == tmp_path / "blockscale" / "gemm-tuning.json"
    for value in ("", "relative/folder"):  # the rule of the XDG directories: a relative one is not used
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        monkeypatch.setenv("HOME", "/home/someone")
        assert dispatch.default_path() == Path("/home/someone/.cache/blockscale/gemm-tuning.json")
