"""What holds for all tests."""

import gc

import pytest


@pytest.fixture(autouse=True)
def release_models(request):
    """Free the engines of a test with real weights at once: they lie in cycles, and a cache is large."""
    yield
    if request.node.get_closest_marker("weights"):
        gc.collect()


@pytest.fixture(autouse=True, scope="module")
def release_module():
    """Free what a module's fixtures held."""
    yield
    gc.collect()
