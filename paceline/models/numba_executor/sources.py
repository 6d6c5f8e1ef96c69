"""The files on which a compiled pass depends: while they stay as they are, it is found on disk again."""

from pathlib import Path

_BESIDES = (
    "models/architecture/experts.py", "models/architecture/family.py", "models/architecture/latent.py",
    "models/base.py", "models/compiled/kernel.py", "models/compiled/link_only.py", "models/state_book.py",
    "sampling/answered.py", "sampling/randomness.py",
)  # fmt: skip
"""Files with constants that kernels hold as numbers once they are compiled, and those that say how to compile."""


def kernel_sources() -> list[Path]:
    """Every source file that kernels may depend on: all files of the folder, and some others."""
    folder = Path(__file__).parent
    return [*sorted(folder.rglob("*.py")), *(folder.parents[1] / name for name in _BESIDES)]
