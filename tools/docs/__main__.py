"""`python tools/docs` writes what pages of docs/ include (the house, the commands' reference) into build/docs."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # this checkout's package, not another that is installed

import commands  # noqa: E402
import house  # noqa: E402

FOLDER = ROOT / "build" / "docs"
FOLDER.mkdir(parents=True, exist_ok=True)
for page in (house, commands):
    page.write(FOLDER)
