"""Remedies that install an extra: one place knows the command, and it fits this installation."""

from pathlib import Path

import pytest

import paceline
from paceline import extras
from paceline.extras import install

PACKAGE = Path(paceline.__file__).parent


@pytest.mark.parametrize(
    ("files", "command"),
    [(["pyproject.toml"], "pip install -e '.[serve]' (in the clone)"), ([], "pip install 'paceline[serve]'")],
)
def test_the_command_fits_the_installation(files, command, tmp_path, monkeypatch):
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "paceline" / "extras.py"))
    assert install("serve") == command


def test_no_other_module_writes_the_command():
    writing = {path for path in PACKAGE.rglob("*.py") if "pip install 'paceline" in path.read_text()}
    assert writing == {PACKAGE / "extras.py"}
