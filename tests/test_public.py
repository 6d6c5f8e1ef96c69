"""The public face: names, lazy imports, and rooms that stay light."""

import subprocess
import sys

import pytest

import paceline


def test_public_names_are_listed_once_and_exist():
    assert dir(paceline) == sorted(set(paceline.__all__))
    for name in paceline.__all__:
        assert getattr(paceline, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="LMM"):
        _ = paceline.LMM
    with pytest.raises(AttributeError, match=r"LoRARequest.*BASE\+ADAPTER"):
        _ = paceline.LoRARequest


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("paceline", "numpy numba torch"),
        ("paceline.theory", "numba torch matplotlib"),
        ("paceline.scheduling", "numba torch matplotlib"),
        ("paceline.sampling", "numba torch matplotlib"),
        ("paceline.engine.llm", "torch transformers matplotlib gguf"),
        ("paceline.cli.main", "torch transformers matplotlib gguf"),
    ],
)
def test_importing_a_room_loads_no_more_than_it_needs(module, heavy):
    program = f"import sys, {module}; print(*(m for m in {heavy.split()!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
