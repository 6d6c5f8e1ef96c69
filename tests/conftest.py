"""What holds for all tests, and how they share the machine when several processes run them."""

import gc
import os
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from typer.main import get_command

settings.register_profile("any_machine", settings(), deadline=None)
settings.load_profile("any_machine")
"""No example fails for its time: machines differ, and so does what else runs there. CI also fixes the examples, by
Hypothesis's own profile for it, which this one builds on."""

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""PyTorch's threads would spend most of their time waiting for each other over models as small as these."""

gc.set_threshold(50_000, *gc.get_threshold()[1:])
"""Numba's compiler and PyTorch make many objects that stay. After every 700 of them, as Python does by default, looking
for cycles among them took from 4 to 9 % of the time."""

LONGEST_WITHOUT_KERNELS = Path(__file__).parent / "models" / "cuda" / "test_compilation.py"


def pytest_configure(config):
    """Keep each worker of pytest-xdist to processors of its own: threads that wait for each other then never queue."""
    worker = getattr(config, "workerinput", None)
    if worker and hasattr(os, "sched_setaffinity"):
        mine = own_processors(sorted(os.sched_getaffinity(0)), int(worker["workerid"][2:]), worker["workercount"])
        os.sched_setaffinity(0, mine)


def own_processors(processors, index, count):
    """The share of worker `index` of `count`; never empty."""
    return set(processors[index % len(processors) :: count])


def pytest_collection_modifyitems(items):
    """Files with real weights take longest, so they come first and no worker is left alone with one at the end.

    The first of them compiles what all of them need; the second worker does not wait for that, but begins with the
    longest file without kernels of ours.
    """
    heavy = list(dict.fromkeys(item.path for item in items if item.get_closest_marker("weights")))
    order = {path: number for number, path in enumerate([*heavy[:1], LONGEST_WITHOUT_KERNELS, *heavy[1:]])}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.fixture(autouse=True, scope="session")
def one_command_line():
    """Build the tree of commands once; Typer's runner builds it anew for every call."""
    testing = pytest.MonkeyPatch()
    testing.setattr("typer.testing._get_command", cache(get_command))
    yield
    testing.undo()


@pytest.fixture(autouse=True)
def release_models(request):
    """Free the engines of a test with real weights at once: they lie in cycles, and a cache is large."""
    yield
    if request.node.get_closest_marker("weights"):
        gc.collect()


@pytest.fixture(autouse=True, scope="module")
def release_module():
    """Free what a module's fixtures held; what is left, libraries above all, need not be looked through again."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def eager(monkeypatch):
    """Passes are launched ahead whenever they can be."""
    from paceline.models.cuda_executor.gain import Gain

    monkeypatch.setattr(Gain, "begins", lambda self, _: self.assume(1.0, 1.0, 1.0))
