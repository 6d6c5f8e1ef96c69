"""Structural tags: free text in which the text after a trigger must follow a grammar. Not for other grammars.

Two forms are accepted: llguidance's list of ``{trigger, begin, grammar, end}``, and vLLM's and SGLang's object
``{"structures": [{begin, schema, end}], "triggers": [...]}``, where each begin starts with one of the triggers.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

_STRUCTURE = ("begin", "schema", "end")
_TAG = ("trigger", "begin", "grammar", "end")


def tags_of(source: str) -> list[dict[str, Any]]:
    """The tags in llguidance's form. Raises ValueError, with the reason, for invalid input."""
    found = json.loads(source)
    if isinstance(found, Mapping):
        structures, triggers = found.get("structures"), found.get("triggers")
        if not isinstance(structures, list) or not isinstance(triggers, list):
            raise ValueError("an object needs the lists structures and triggers")
        found = [_of_structure(each, triggers) for each in structures]
    if not isinstance(found, list) or not found:
        raise ValueError("give a list of tags, at least one")
    for tag in found:
        if not isinstance(tag, Mapping) or set(tag) != set(_TAG):
            raise ValueError(f"a tag has the fields {', '.join(_TAG)}, no others")
        if not all(isinstance(tag[field], str) for field in ("trigger", "begin", "end")) or not tag["trigger"]:
            raise ValueError("trigger, begin and end are texts, the first not an empty one")
        if not tag["begin"].startswith(tag["trigger"]):
            raise ValueError(f"begin {tag['begin'][:60]!r} does not open with its trigger")
    return [dict(tag) for tag in found]


def lark_of(llguidance: Any, source: str, special_tokens: Collection[str]) -> str:
    """The tags as llguidance's Lark grammar; a trigger among `special_tokens` stands for that token. Raises as
    `tags_of`."""
    tags = tags_of(source)
    are_special = [tag["trigger"] in special_tokens for tag in tags]
    if any(are_special) and not all(are_special):
        raise ValueError("triggers are special tokens all of them, or none")
    made = [llguidance.StructTag(**tag) for tag in tags]
    return llguidance.StructTag.to_grammar(made, assume_special=any(are_special))


def _of_structure(structure: Any, triggers: list[Any]) -> dict[str, Any]:
    if not isinstance(structure, Mapping) or set(structure) != set(_STRUCTURE):
        raise ValueError(f"a structure has the fields {', '.join(_STRUCTURE)}, no others")
    begin = structure["begin"]
    fitting = [each for each in triggers if isinstance(each, str) and each and str(begin).startswith(each)]
    if not fitting:
        raise ValueError(f"begin {str(begin)[:60]!r} opens with none of the triggers")
    return {"trigger": max(fitting, key=len), "begin": begin, "grammar": structure["schema"], "end": structure["end"]}
