"""Import every module of the installed paceline, where only base dependencies are installed.

A module outside the packages of `MAY_NEED` that needs an extra at import time fails it, and so does any other error.
Run by `try_wheel.py` in an environment of its own.
"""

import importlib
import sys
from pathlib import Path

import paceline

MAY_NEED = {
    "paceline.models.torch_executor": {"torch"},
    "paceline.models.cuda_executor": {"torch", "triton"},
    "paceline.training.heads": {"torch"},
    "paceline.training.run": {"torch"},
    "paceline.training.drafts": {"torch"},
    "paceline.training.joint": {"torch"},
    "paceline.training.lora": {"torch"},
    "paceline.training_jobs": {"torch"},
    "paceline.serving": {"pydantic", "starlette", "uvicorn", "prometheus_client", "httpx"},
}
"""Packages whose modules may import what an extra brings."""


def modules() -> list[str]:
    """Dotted names of all modules, packages before what is in them."""
    folder = Path(paceline.__path__[0])
    parts = [path.relative_to(folder.parent).with_suffix("").parts for path in folder.rglob("*.py")]
    return sorted(".".join(each[:-1] if each[-1] == "__init__" else each) for each in parts)


def complaint(name: str) -> str | None:
    """What is wrong with importing module `name`, if anything."""
    allowed = set().union(*(extra for package, extra in MAY_NEED.items() if f"{name}.".startswith(f"{package}.")))
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        return None if missing in allowed else f"{name} imports {missing}, which is not a base dependency"
    except paceline.PacelineError as error:
        return None if allowed and "pip install 'paceline[" in str(error) else f"{name}: {error}"
    return None


if __name__ == "__main__":
    names = modules()
    complaints = [each for each in map(complaint, names) if each]
    print(f"{len(names)} modules imported, {len(complaints)} with an error")
    sys.exit("\n".join(complaints) or None)
