"""Calls of tools as models write them between their tags, as names and arguments.

What is no call, or one that is damaged, gives none: the server then shows it as text. Arguments without quotes of their
own become what the tool's schema says. Not for tags (`call_formats.py`).
"""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

Call = tuple[str, Any]
"""(name, arguments)."""
Schemas = Mapping[str, Mapping[str, Any]]
"""Tool name to the schema of its parameters."""
_ELEMENTS = re.compile(
    r"<(?:function=|invoke name=)\"?([^\">\n]+)\"?>(.*?)</(?:function|invoke)>(?=\s*(?:<function=|<invoke|\Z))",
    re.DOTALL,
)
_PARAMETERS = re.compile(
    r"<parameter(?:=| name=)\"?([^\">\n]+)\"?>(.*?)</parameter>(?=\s*(?:<parameter|\Z))", re.DOTALL
)  # fmt: skip
_PAIRS = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>(?=\s*(?:<arg_key>|\Z))", re.DOTALL)
_FENCED = re.compile(r"(.+?)\n```json\n(.*?)\n```\s*", re.DOTALL)
_NAME = re.compile(r"[\w.-]{1,128}")
_LONGEST_PYTHON = 1 << 16
_QUOTE = '<|"|>'


def calls_in_json(inside: str, schemas: Schemas) -> list[Call]:
    """One call as an object, or a list of them: Hermes, Llama 3, Granite, Phi-4-mini, Command R7B."""
    found = _parsed(inside)
    calls = found if isinstance(found, list) else [found]
    if not all(isinstance(call, dict) for call in calls):
        return []
    read = [
        (call.get("name", call.get("tool_name")), call.get("arguments", call.get("parameters", {}))) for call in calls
    ]
    return read if all(isinstance(name, str) for name, _ in read) else []


def calls_named_first(inside: str, schemas: Schemas) -> list[Call]:
    """``name[ARGS]{...}``, each after a tag, as in Mistral's newer models, or the older ones' list of objects."""
    calls: list[Call] = []
    for part in inside.split("[TOOL_CALLS]"):
        name, tag, arguments = part.partition("[ARGS]")
        if not tag:
            return calls_in_json(inside, schemas)
        calls.append((name.partition("[CALL_ID]")[0].strip(), _parsed(arguments)))
    return calls if all(isinstance(arguments, dict) for _, arguments in calls) else []


def calls_of_elements(inside: str, schemas: Schemas) -> list[Call]:
    """``<function=name><parameter=key>value</parameter></function>`` (Qwen3-Coder, Qwen3.5, Nemotron 3, Seed-OSS), or
    the same with ``<invoke name="...">`` (MiniMax-M2)."""
    calls: list[Call] = []
    for name, body in _ELEMENTS.findall(inside):
        told = {key.strip(): text.removeprefix("\n").removesuffix("\n") for key, text in _PARAMETERS.findall(body)}
        calls.append((name.strip(), _typed(told, schemas, name.strip())))
    return calls


def calls_in_pairs(inside: str, schemas: Schemas) -> list[Call]:
    """A name, then ``<arg_key>key</arg_key><arg_value>value</arg_value>`` (GLM-4.5 and later)."""
    name = inside.partition("<arg_key>")[0].strip()
    if not _NAME.fullmatch(name):
        return []
    return [(name, _typed({key.strip(): text for key, text in _PAIRS.findall(inside)}, schemas, name))]


def calls_in_deepseek(inside: str, schemas: Schemas) -> list[Call]:
    """DeepSeek-V3.1's name and object, or V3's and R1's fenced ones after the word ``function``."""
    calls: list[Call] = []
    for part in inside.split("<｜tool▁call▁begin｜>")[1:]:
        name, _, rest = part.partition("<｜tool▁call▁end｜>")[0].partition("<｜tool▁sep｜>")
        fenced = _FENCED.fullmatch(rest)
        if fenced:
            name, rest = fenced.groups()
        calls.append((name.strip(), _parsed(rest)))
    return calls if all(isinstance(arguments, dict) for _, arguments in calls) else []


def calls_in_python(inside: str, schemas: Schemas) -> list[Call]:
    """``[name(key="value")]``, a list of calls with literal arguments as in Python (LFM2), or JSON."""
    if len(inside) > _LONGEST_PYTHON:
        return []
    try:
        body = ast.parse(inside.strip(), mode="eval").body
        each = body.elts if isinstance(body, ast.List) else [body]
        return [
            (ast.unparse(call.func), {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg})
            for call in each if isinstance(call, ast.Call)
        ] or calls_in_json(inside, schemas)  # fmt: skip
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return calls_in_json(inside, schemas)


def calls_in_gemma(inside: str, schemas: Schemas) -> list[Call]:
    """``call:name{key:value}`` with texts between quotes that are tokens of their own (Gemma 4)."""
    name, brace, rest = inside.strip().removeprefix("call:").partition("{")
    if not brace or not _NAME.fullmatch(name):
        return []
    arguments = _parsed(_as_json(brace + rest))
    return [(name, arguments)] if isinstance(arguments, dict) else []


def _as_json(text: str) -> str:
    """Gemma's object as JSON: keys between quotes, and texts."""
    pieces = text.split(_QUOTE)
    for i, piece in enumerate(pieces):
        if i % 2:
            pieces[i] = json.dumps(piece)
        else:
            pieces[i] = re.sub(r"([{,]\s*)([^\s{}\[\],:\"]+)\s*:", lambda m: f"{m[1]}{json.dumps(m[2])}:", piece)
    return "".join(pieces)


def _parsed(text: str) -> Any:
    """JSON, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _typed(told: Mapping[str, str], schemas: Schemas, name: str) -> dict[str, Any]:
    """Bare texts as values of the parameters of the tool `name`."""
    properties = schemas.get(name, {}).get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    return {key: _value(text, known.get(key)) for key, text in told.items()}


def _value(text: str, schema: Any) -> Any:
    """A bare text as a value that the schema takes; text where that is one, or where the schema does not say."""
    types = _types(schema) if isinstance(schema, Mapping) else set()
    if "null" in types and text.strip() == "null":
        return None
    if not types or "string" in types:
        return text
    found = _parsed(text)
    if found is None:
        found = _literal(text)
    return text if found is None else found


def _literal(text: str) -> Any:
    """A literal of Python, which some templates write for objects; or None."""
    try:
        return ast.literal_eval(text.strip()) if len(text) <= _LONGEST_PYTHON else None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _types(schema: Mapping[str, Any]) -> set[str]:
    """The types that a schema names, in one of its forms."""
    named = schema.get("type", [])
    types = {named} if isinstance(named, str) else {one for one in named if isinstance(one, str)}
    for form in ("anyOf", "oneOf"):
        for one in schema.get(form, ()):
            types |= _types(one) if isinstance(one, Mapping) else set()
    for one in (schema["const"],) if "const" in schema else schema.get("enum", ()):
        types |= {"string"} if isinstance(one, str) else set()
    return types
