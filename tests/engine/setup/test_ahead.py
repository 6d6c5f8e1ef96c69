"""A second process compiles what drafts need, and what it compiled is what they need."""

import subprocess
import sys

from paceline.drafters.lookup.blended import Blended
from paceline.engine.setup import ahead
from paceline.models.cache_dir import cache_dir


def test_a_second_process_compiles_what_drafts_need(monkeypatch):
    started = []
    with monkeypatch.context() as patched:
        patched.setattr(ahead.os, "cpu_count", lambda: 2)
        patched.setattr(ahead.subprocess, "Popen", lambda command, **how: started.append(command))
        ahead.compile_beside.__wrapped__("float32", "auto")
    assert started == [[sys.executable, "-m", "paceline.engine.setup.ahead", "float32", "auto"]]
    subprocess.run(started[0], check=True, timeout=300)
    files = {path.name.split(".")[1].rpartition("-")[0] for path in (cache_dir() / "kernels").glob("*.nbc")}
    assert {"grow", "run", "link"} <= files
    Blended()


def test_nobody_helps_where_there_is_one_processor(monkeypatch):
    monkeypatch.setattr(ahead.os, "cpu_count", lambda: 1)
    assert ahead.compile_beside.__wrapped__("float32", "auto") is None
