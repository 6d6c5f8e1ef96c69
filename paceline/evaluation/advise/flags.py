"""Translate an advice into the flags of serving engines, each from one data file, with remarks on what is missing."""

import json
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from paceline.drafters.auto import AUTO
from paceline.drafters.registry import drafter_names
from paceline.errors import InvalidParameter

_FOLDER = files("paceline.evaluation.advise") / "engines"
ANY = "*"
"""In a data file: every drafter of this project that has no entry of its own. ``fields`` there are the flags of what
else a configuration says, by its names in `SpeculativeConfig`, a flag for every item of a mapping."""


def engine_names() -> tuple[str, ...]:
    """Engines with a data file."""
    return tuple(sorted(each.name.removesuffix(".json") for each in _FOLDER.iterdir() if each.name.endswith(".json")))


def flags_for(engine: str, spec: Mapping[str, Any] | None, k: int = 0) -> dict[str, Any]:
    """The drafting flags of `engine`.

    Args:
        spec: fields of `SpeculativeConfig`; None for plain decoding.
        k: largest number of drafted tokens.

    Returns:
        ``flags`` (None where the engine has no such drafter), ``remark``, ``seen`` versions and ``source``.

    Raises:
        InvalidParameter: there is no data file for that engine.
    """
    if engine not in engine_names():
        raise InvalidParameter("for", f"{engine!r} is unknown", f"use some of {', '.join(engine_names())}")
    known = json.loads((_FOLDER / f"{engine}.json").read_text(encoding="utf-8"))
    told = {name: known[name] for name in ("remark", "seen", "source")}
    if spec is None:
        return {"flags": known["none"], **told, "remark": ""}  # remarks are about drafting
    template = known["methods"].get(spec["method"])
    if template is None and _is_ours(spec["method"]):
        template = known["methods"].get(ANY)
    if template is None:
        return {"flags": None, **told}
    values = {"method": spec["method"], "k": k, "k_plus_1": k + 1, "model": spec.get("model") or "DRAFT_MODEL"}
    more, lost = _further(spec, template, known.get("fields", {}))
    if lost:
        told["remark"] += f" It cannot be told: {', '.join(lost)}."
    return {"flags": " ".join([template.format(**values), *more]), **told}


def _is_ours(method: str) -> bool:
    """Whether Paceline has such a drafter, or it has the form of a user's own."""
    return method in (*drafter_names(), AUTO) or ":" in method


def _further(
    spec: Mapping[str, Any], template: str, fields: Mapping[str, str]
) -> tuple[list[str], list[str]]:  # fmt: skip
    """(flags for the other fields of a configuration, names of the fields without a flag)."""
    told = {"method", "num_draft_tokens"} | ({"model"} if "{model}" in template else set())
    if not spec.get("policy_options") and spec.get("policy") == "fixed":  # how all candidates are replayed
        told.add("policy")
    rest = {name: value for name, value in spec.items() if name not in told and value and value != "auto"}
    flags = [
        fields[name].format(value=shlex.quote(text))
        for name, value in rest.items()
        if name in fields
        for text in _texts(value)
    ]
    return flags, [name for name in rest if name not in fields]


def _texts(value: Any) -> list[str]:
    return [f"{name}={json.dumps(one)}" for name, one in value.items()] if isinstance(value, Mapping) else [str(value)]


def all_flags(engines: Sequence[str], spec: Mapping[str, Any] | None, k: int = 0) -> dict[str, dict[str, Any]]:
    """`flags_for` each of `engines`."""
    return {engine: flags_for(engine, spec, k) for engine in engines}
