"""Build the wheel, install it into an empty environment with base dependencies only, and use it there.

    python .ci/try_wheel.py

Fails where the metadata is invalid, a file is missing, a dependency is not declared, a module imports an extra that it
may not need (`import_all.py`), or `paceline demo` does not end well. Weights and compiled kernels come from the user's
cache if they are there. Not a test of what the package computes (`make test`).
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Build, look inside, install, use; the first step that fails ends it with a status that is not 0."""
    with tempfile.TemporaryDirectory(prefix="paceline-wheel-") as name:
        folder = Path(name)
        wheel = build(folder)
        look_inside(wheel)
        python = install(wheel, folder / "environment")
        script = python.with_name("paceline")
        run(python, ROOT / ".ci" / "import_all.py", cwd=folder)
        run(script, "--help", cwd=folder)
        run(script, "demo", "--max-tokens", "32", cwd=folder)
    print("wheel: builds, installs and runs")


def build(folder: Path) -> Path:
    """The wheel of this checkout, made by pip in an isolated build environment."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("paceline-*.whl")
    return wheel


def look_inside(wheel: Path) -> None:
    """Valid metadata, the licence, the marker for type checkers, every module of the package, and no tests."""
    from packaging.metadata import Metadata

    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        content = archive.read(metadata)
    found = Metadata.from_email(content, validate=True)
    assert found.name == "paceline" and str(found.version) in wheel.name, (found.name, found.version)
    assert found.license_expression == "Apache-2.0", found.license_expression
    assert message_from_bytes(content)["Description-Content-Type"] == "text/markdown"
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "paceline").rglob("*.py")} | {"paceline/py.typed"}
    assert sources <= names, f"missing in the wheel: {sorted(sources - names)}"
    heads = {str(path.relative_to(ROOT)) for path in (ROOT / "paceline" / "heads").rglob("*") if path.is_file()}
    assert heads and heads <= names, f"missing in the wheel: {sorted(heads - names)}"
    assert any(name.endswith("licenses/LICENSE") for name in names), "the licence is missing in the wheel"
    rest = {name.partition("/")[0] for name in names}
    assert all(each == "paceline" or each.endswith(".dist-info") for each in rest), rest


def install(wheel: Path, environment: Path) -> Path:
    """The Python of a new environment that holds the wheel, its base dependencies and nothing else."""
    run(sys.executable, "-m", "venv", environment, cwd=wheel.parent)
    python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=wheel.parent)
    run(python, "-m", "pip", "check", cwd=wheel.parent)
    return python


def run(program: str | Path, *arguments: str | Path, cwd: Path) -> None:
    """Run it away from the checkout, so that only what is installed can be imported."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    print("$", Path(program).name, *arguments, flush=True)
    subprocess.run([program, *arguments], cwd=cwd, env=environment, check=True)


if __name__ == "__main__":
    main()
