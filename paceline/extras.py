"""Packages that only some features need: a missing one is an error that names the extra with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from paceline.errors import InvalidParameter


def install(extra: str) -> str:
    """The command that installs our extra `extra` here, as remedies name it.

    What runs from a clone is installed from its folder, as no index need know it. The folder is not named, because a
    server's errors go to its clients.
    """
    return f"pip install -e '.[{extra}]' (in the clone)" if _is_clone() else f"pip install 'paceline[{extra}]'"


def _is_clone() -> bool:
    """Whether this package lies in the project's own folder, and not where wheels are installed."""
    return (Path(__file__).resolve().parents[1] / "pyproject.toml").is_file()


def check_torch(field: str, instead: str = "", extra: str = "torch") -> None:
    """Check that torch can be imported, without importing it, for what `field` names.

    Args:
        instead: what can be done without torch, after "or"; empty where nothing can.
        extra: the extra of ours that brings torch for this use.

    Raises:
        InvalidParameter: torch is not installed.
    """
    if find_spec("torch") is None:
        remedy = f"run {install(extra)}" + (f", or {instead}" if instead else "")
        raise InvalidParameter(field, "needs torch, which is not installed", remedy)


def check_executor(executor: str) -> None:
    """Check that the executor called `executor` has what it needs. Raises InvalidParameter as `check_torch`."""
    if executor == "torch":
        check_torch("executor 'torch'", "use executor='numba'")
    elif executor == "cuda":
        check_torch("executor 'cuda'", "leave device and executor out to run on the CPU", extra="cuda")


@contextmanager
def needs_ray() -> Iterator[None]:
    """Around imports of Ray. Raises InvalidParameter where it is not installed."""
    try:
        yield
    except ModuleNotFoundError:
        raise InvalidParameter("cluster", "Ray is not installed", install("cluster")) from None
