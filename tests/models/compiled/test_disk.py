"""Machine code on disk: found again, made anew when it should be, never mixed up between processes."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from numba import njit

from paceline.models.cache_use import DAY, unused
from paceline.models.compiled.disk import keep_on_disk


def add_one(values):
    total = values[0] * 0
    for value in values:
        total += value + 1
    return total


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "kernel.py"
    path.write_text("one")
    return path


@pytest.fixture
def arrays():
    import numpy as np

    return {dtype: np.arange(4, dtype=dtype) for dtype in ("int64", "float64", "float32")}


def fresh(source: Path):
    """As another process would make it: nothing compiled yet."""
    return keep_on_disk(njit(add_one), [source])


def compilations(function) -> int:
    return sum(function.stats.cache_misses.values())


def files(source: Path) -> list[Path]:
    return sorted((source.parent / "cache" / "kernels").glob("*.nbc"))


def test_code_is_compiled_once_for_each_type_and_found_again(source, arrays):
    first, second = fresh(source), fresh(source)
    assert [first(array) for array in arrays.values()] == [10, 10.0, 10.0]
    assert [second(array) for array in arrays.values()] == [10, 10.0, 10.0]
    assert (compilations(first), compilations(second)) == (3, 0)
    assert len(files(source)) == 3


def test_a_changed_source_is_compiled_and_the_old_code_stays(source, arrays):
    fresh(source)(arrays["int64"])
    source.write_text("two")
    changed = fresh(source)
    changed(arrays["int64"])
    source.write_text("one")
    back = fresh(source)
    back(arrays["int64"])
    assert (compilations(changed), compilations(back)) == (1, 0)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-7], lambda data: data[:40] + b"x" + data[41:], lambda data: b""]
)
def test_damaged_code_is_made_again(source, arrays, damage):
    fresh(source)(arrays["int64"])
    (path,) = files(source)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    healed = fresh(source)
    assert healed(arrays["int64"]) == 10
    assert compilations(healed) == 1
    assert files(source) == [path] and len(path.read_bytes()) == len(whole)


def test_whoever_comes_second_waits_for_the_first(source, arrays):
    """The second asks while the first compiles, and loads what the first has written."""
    first, second = fresh(source), fresh(source)
    asked = threading.Event()
    signature = (first.typeof_pyval(arrays["int64"]),)
    assert first._cache.load_overload(signature, first.targetctx) is None  # it is the first one's turn

    def ask():
        asked.set()
        found.append(second._cache.load_overload(signature, second.targetctx))

    found: list[object] = []
    thread = threading.Thread(target=ask)
    thread.start()
    asked.wait()
    first(arrays["int64"])
    thread.join(30)
    assert found[0] is not None


def test_a_folder_that_cannot_be_written_costs_the_cache_and_nothing_else(source, arrays, monkeypatch):
    source.with_name("file").write_text("not a folder")
    monkeypatch.setenv("PACELINE_CACHE", str(source.with_name("file")))
    assert fresh(source)(arrays["int64"]) == 10


CLOSURES = """
import sys
from pathlib import Path
import numpy as np
from numba import njit, types
from numba.extending import overload
from paceline.models.cache_use import DAY, unused
from paceline.models.compiled.disk import keep_on_disk

def make(unit):
    @njit
    def grown(n):  # calls itself twice, so that no compiler dissolves it into its caller
        return unit if n < 2 else grown(n - 1) + grown(n - 2)
    return grown

ONE, TEN = make(1), make(10)

def choose(values): ...

@overload(choose)
def _choose(values):
    chosen = ONE if values.dtype == types.int64 else TEN
    return lambda values: chosen(len(values))

@njit
def outer(values):
    return choose(values)

keep_on_disk(outer, [Path(__file__)])
print(*[outer(np.zeros(20, dtype)) for dtype in sys.argv[1:]], sum(outer.stats.cache_misses.values()))
"""


def test_closures_that_two_processes_compiled_are_kept_apart_in_a_third(source):
    program = source.with_name("closures.py")
    program.write_text(CLOSURES)

    def says(*dtypes):
        command = [sys.executable, str(program), *dtypes]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert says("int64") == ["10946", "1"]
    assert says("float64") == ["109460", "1"]
    assert says("int64", "float64") == ["10946", "109460", "0"]
    assert says("float64", "int64") == ["109460", "10946", "0"]


FORKED = """
import os, sys
import numpy as np
from pathlib import Path
from paceline.models.cache_use import DAY, unused
from paceline.models.compiled.disk import keep_on_disk
import kernels as own

def run(name):
    values = np.zeros(1, np.int64)
    keep_on_disk(getattr(own, name), [Path(own.__file__)])(values)
    return int(values[0])

if sys.argv[1:]:
    print(run("both"))
else:
    for name in ("first", "second"):
        child = os.fork()
        if not child:
            run(name)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
"""
KERNELS = """
from paceline.models.compiled.kernel import entry, kernel

def make(number):
    @kernel
    def tile(values):
        values[0] += number
    return tile

one, two = make(1), make(10)

@entry
def first(values):
    one(values)

@entry
def second(values):
    two(values)

@entry
def both(values):
    one(values)
    two(values)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_kernels_that_forked_processes_lowered_are_kept_apart_in_a_third(tmp_path):
    """Both count on from the same number otherwise, and a caller of both gets one of them twice."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "run.py").write_text(FORKED)
    own = os.environ | {"PACELINE_CACHE": str(tmp_path / "cache")}
    for arguments in ([], ["third"]):
        command = [sys.executable, str(tmp_path / "run.py"), *arguments]
        done = subprocess.run(command, env=own, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["11"]


def test_a_full_disk_leaves_no_file_behind(source, arrays, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("paceline.models.compiled.disk.os.replace", full)
    assert fresh(source)(arrays["int64"]) == 10
    assert [path.suffix for path in (source.parent / "cache" / "kernels").iterdir()] == [".lock"]


def test_code_that_is_used_is_no_old_code(source, arrays):
    fresh(source)(arrays["int64"])
    (file,) = files(source)
    os.utime(file, (0, time.time() - 40 * DAY))
    assert file in unused(source.parent / "cache", 30)
    fresh(source)(arrays["int64"])
    assert unused(source.parent / "cache", 30) == []
