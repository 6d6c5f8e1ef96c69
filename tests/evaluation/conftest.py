"""The laboratory runs on the engine tests' tiny model."""

from tests.engine.conftest import engine_for, tiny

__all__ = ["engine_for", "tiny"]
