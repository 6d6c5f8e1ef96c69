"""An advice as the flags of serving engines, each from one data file; what an engine cannot express is said."""

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from paceline.errors import InvalidParameter

_FOLDER = files("paceline.evaluation.advise") / "engines"


def engine_names() -> tuple[str, ...]:
    """Engines that there is a file for."""
    return tuple(sorted(each.name.removesuffix(".json") for each in _FOLDER.iterdir() if each.name.endswith(".json")))


def flags_for(engine: str, draft: str | None, k: int = 0) -> dict[str, Any]:
    """How `engine` is told to draft with `draft`.

    Args:
        draft: a drafter; ``draft_model:NAME`` names its model; None for plain decoding.
        k: most drafted tokens.

    Returns:
        ``flags`` (None where the engine has no such drafter), ``remark``, ``seen`` versions and ``source``.

    Raises:
        InvalidParameter: no file for that engine.
    """
    if engine not in engine_names():
        raise InvalidParameter("for", f"{engine!r} is unknown", f"use some of {', '.join(engine_names())}")
    known = json.loads((_FOLDER / f"{engine}.json").read_text(encoding="utf-8"))
    method, _, model = (draft or "").partition(":")
    template = known["none"] if draft is None else known["methods"].get(method)
    values = {"k": k, "k_plus_1": k + 1, "model": model or "DRAFT_MODEL"}
    flags = template if draft is None or template is None else template.format(**values)
    return {"flags": flags, "remark": known["remark"], "seen": known["seen"], "source": known["source"]}


def all_flags(engines: Sequence[str], draft: str | None, k: int = 0) -> dict[str, dict[str, Any]]:
    """`flags_for` each of `engines`."""
    return {engine: flags_for(engine, draft, k) for engine in engines}
