"""Calls of tools as models write them between their tags, as names and arguments.

What is no call, or one that is damaged or cut, gives none: the server then shows it as text. Arguments without quotes
of their own become what the tool's schema says. All is read from left to right, once: an answer that never ends its
values must not stop a server. Not for tags (`call_formats.py`).
"""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

Call = tuple[str, Any]
"""(name, arguments)."""
Schemas = Mapping[str, Mapping[str, Any]]
"""Tool name to the schema of its parameters."""
_LONGEST_NAME = 128
_NAME = re.compile(rf"[\w.-]{{1,{_LONGEST_NAME}}}")
_LONGEST_PYTHON = 1 << 16
_DEEPEST = 8
"""Of schemas within schemas."""
_QUOTE = '<|"|>'
_WORDS = {"true": True, "false": False, "null": None}


class _Element(NamedTuple):
    """An element ``<opening name>text</closing>``, after which a further one or the end must come."""

    opening: str
    closing: str
    follows: re.Pattern[str]


def _element(opening: str, closing: str) -> _Element:
    return _Element(opening, closing, re.compile(rf"\s*(?:{re.escape(opening)}|\Z)"))


_FUNCTIONS = _element("<function=", "</function>"), _element("<parameter=", "</parameter>")
_INVOKES = _element("<invoke name=", "</invoke>"), _element("<parameter name=", "</parameter>")
_VALUE = _Element("<arg_value>", "</arg_value>", re.compile(r"\s*(?:<arg_key>|\Z)"))


def calls_in_json(inside: str, schemas: Schemas) -> list[Call]:
    """One call as an object, or a list of them: Hermes, Llama 3, Granite, Command R7B."""
    found = _parsed(inside)
    calls = found if isinstance(found, list) else [found]
    if not all(isinstance(call, dict) for call in calls):
        return []
    read = [(call.get("name", call.get("tool_name")), call.get("arguments", call.get("parameters"))) for call in calls]
    return [(name, told or {}) for name, told in read] if all(isinstance(name, str) for name, _ in read) else []


def calls_named_first(inside: str, schemas: Schemas) -> list[Call]:
    """``name[ARGS]{...}``, each after a tag, as in Mistral's newer models, or the older ones' list of objects."""
    calls: list[Call] = []
    for part in inside.split("[TOOL_CALLS]"):
        name, tag, arguments = part.partition("[ARGS]")
        if not tag:
            return calls_in_json(inside, schemas)
        calls.append((name.partition("[CALL_ID]")[0].strip(), _parsed(arguments)))
    return _with_objects(calls)


def calls_of_elements(inside: str, schemas: Schemas) -> list[Call]:
    """``<function=name><parameter=key>value</parameter></function>`` (Qwen3-Coder, Qwen3.5, Nemotron 3, Seed-OSS), or
    the same with ``<invoke name="...">`` (MiniMax-M2)."""
    outer, inner = _INVOKES if inside.lstrip().startswith(_INVOKES[0].opening) else _FUNCTIONS
    calls: list[Call] = []
    for name, body in _elements(inside, outer) or ():
        told = _elements(body, inner)
        if told is None:
            return []
        bare = {key: text.removeprefix("\n").removesuffix("\n") for key, text in told}
        calls.append((name, _typed(bare, schemas.get(name, {}))))
    return calls


def calls_in_pairs(inside: str, schemas: Schemas) -> list[Call]:
    """A name, then ``<arg_key>key</arg_key><arg_value>value</arg_value>`` (GLM-4.5 and later)."""
    name, key_tag, rest = inside.partition("<arg_key>")
    name, told = name.strip(), {}
    while key_tag:
        key, _, rest = rest.partition("</arg_key>")
        rest = rest.lstrip()
        text = _text_of(rest, len(_VALUE.opening), _VALUE) if rest.startswith(_VALUE.opening) else None
        if text is None:
            return []
        told[key.strip()], rest = text[0], rest[text[1] :].lstrip()
        key_tag, rest = rest[:9], rest[9:]
    return [(name, _typed(told, schemas.get(name, {})))] if _NAME.fullmatch(name) else []


def calls_in_deepseek(inside: str, schemas: Schemas) -> list[Call]:
    """DeepSeek-V3.1's name and object, or V3's and R1's fenced ones after the word ``function``."""
    calls: list[Call] = []
    for part in inside.split("<｜tool▁call▁begin｜>")[1:]:
        name, _, rest = part.partition("<｜tool▁call▁end｜>")[0].partition("<｜tool▁sep｜>")
        fenced, fence, told = rest.partition("\n```json\n")
        if fence:
            name, rest = fenced, told.rstrip().removesuffix("```")
        calls.append((name.strip(), _parsed(rest) if rest.strip() else {}))
    return _with_objects(calls)


def calls_in_python(inside: str, schemas: Schemas) -> list[Call]:
    """``[name(key="value")]``, a list of calls with literal arguments as in Python (LFM2), or JSON."""
    body = _expression(inside)
    each = body.elts if isinstance(body, ast.List) else [body]
    calls = [named for one in each if (named := _named_call(one))]
    if not each or len(calls) < len(each):
        return calls_in_json(inside, schemas)
    try:
        return [(name, _arguments(call)) for name, call in calls]
    except ValueError:
        return []


def _named_call(one: ast.AST | None) -> tuple[str, ast.Call] | None:
    """A call with the name of what it calls, which may have dashes, that Python reads as a difference; else None."""
    if isinstance(one, ast.Call) and not one.args:
        return None if _is_long(one.func) else (ast.unparse(one.func), one)
    if not isinstance(one, ast.BinOp) or not isinstance(one.op, ast.Sub) or _is_long(one.left):
        return None
    first, rest = ast.unparse(one.left).replace(" - ", "-"), _named_call(one.right)
    return (f"{first}-{rest[0]}", rest[1]) if rest and _NAME.fullmatch(first) and not first[0].isdigit() else None


def _is_long(name: ast.expr) -> bool:
    """Whether an expression is longer than a name can be: unparsing it could take long, or nest too deep."""
    is_one_line = name.end_lineno == name.lineno
    return not is_one_line or (name.end_col_offset or 0) - name.col_offset > _LONGEST_NAME


def calls_in_gemma(inside: str, schemas: Schemas) -> list[Call]:
    """``call:name{key:value}`` with texts between quotes that are tokens of their own (Gemma 4)."""
    name, brace, rest = inside.strip().removeprefix("call:").partition("{")
    return _with_objects([(name, _parsed(_as_json(brace + rest)))]) if brace and _NAME.fullmatch(name) else []


def _with_objects(calls: list[Call]) -> list[Call]:
    """`calls`, none if the arguments of one are no object."""
    return calls if all(isinstance(arguments, dict) for _, arguments in calls) else []


def json_is_cut(inside: str) -> bool:
    """Whether a text of JSON ends inside a text of its own."""
    try:
        json.loads(inside)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except RecursionError:
        return False
    return False


def python_is_cut(inside: str) -> bool:
    """The same for `calls_in_python`."""
    quote, escaped = "", False
    for letter in inside:
        if escaped:
            escaped = False
        elif quote and letter == "\\":
            escaped = True
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
    return bool(quote)


def elements_are_cut(inside: str) -> bool:
    """The same for `calls_of_elements`."""
    return "<parameter" in inside and not inside.rstrip().endswith(("</function>", "</invoke>"))


def pairs_are_cut(inside: str) -> bool:
    """The same for `calls_in_pairs`."""
    return "<arg_value>" in inside and not inside.rstrip().endswith("</arg_value>")


def _as_json(text: str) -> str:
    """Gemma's object as JSON: keys between quotes, and texts."""
    pieces = text.split(_QUOTE)
    for i, piece in enumerate(pieces):
        if i % 2:
            pieces[i] = json.dumps(piece)
        else:
            pieces[i] = re.sub(r"([{,]\s*)([^\s{}\[\],:\"]+)\s*:", lambda m: f"{m[1]}{json.dumps(m[2])}:", piece)
    return "".join(pieces)


def _elements(text: str, kind: _Element) -> list[tuple[str, str]] | None:
    """(name, text) of elements with nothing but blank space around them; None where there is anything else."""
    found, at = [], _after_blank(text, 0)
    while at < len(text):
        named = at + len(kind.opening)
        end = text.find(">", named)
        inside = _text_of(text, end + 1, kind) if text.startswith(kind.opening, at) and end >= 0 else None
        if inside is None:
            return None
        found.append((text[named:end].strip().strip('"'), inside[0]))
        at = _after_blank(text, inside[1])
    return found


def _text_of(text: str, start: int, kind: _Element) -> tuple[str, int] | None:
    """The text of an element from `start` on, and where it ends: at the first closing tag that may be its own."""
    at = text.find(kind.closing, start)
    while at >= 0:
        end = at + len(kind.closing)
        if kind.follows.match(text, end):
            return text[start:at], end
        at = text.find(kind.closing, end)
    return None


def _after_blank(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _parsed(text: str) -> Any:
    """JSON, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _expression(text: str) -> ast.expr | None:
    """An expression of Python, or None."""
    try:
        return ast.parse(text.strip(), mode="eval").body if len(text) <= _LONGEST_PYTHON else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _arguments(call: ast.Call) -> dict[str, Any]:
    """Raises ValueError for one that is no literal, or has no name."""
    if not all(each.arg for each in call.keywords):
        raise ValueError
    return {str(each.arg): _literal(each.value) for each in call.keywords}


def _literal(node: ast.expr | None) -> Any:
    """The value of a literal that JSON has too, in Python's words or JSON's. Raises ValueError."""
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str | int | float)):
        return node.value
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(each) for each in node.elts]
    if isinstance(node, ast.Dict) and all(
        isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys
    ):
        return {_literal(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        if isinstance(value, int | float):
            return -value
    raise ValueError


def _typed(told: Mapping[str, str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Bare texts as values of a tool's `parameters`."""
    properties = parameters.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    return {key: _value(text, _types(known.get(key), parameters)) for key, text in told.items()}


def _value(text: str, types: set[str]) -> Any:
    """A bare text as a value of one of these types; text where that is one of them, or where there are none."""
    if "null" in types and text.strip() == "null":
        return None
    if not types or "string" in types:
        return text
    found = _parsed(text)
    if found is None:
        try:
            found = _literal(_expression(text))
        except ValueError:
            return text
    return text if found is None else found


def _types(schema: Any, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """The types that a schema names in one of its forms; none where it does not say."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return set()
    named = schema.get("type")
    types = {one for one in (named if isinstance(named, list) else [named]) if isinstance(one, str)}
    for form in ("anyOf", "oneOf", "allOf"):
        several = schema.get(form)
        for one in several if isinstance(several, list) else ():
            types |= _types(one, root, depth + 1)
    values = schema.get("enum")
    for one in [schema["const"]] if "const" in schema else values if isinstance(values, list) else []:
        types.add("string" if isinstance(one, str) else "other")
    if "$ref" in schema:
        types |= _types(_referred(schema["$ref"], root), root, depth + 1)
    return types or {kind for form, kind in (("properties", "object"), ("items", "array")) if form in schema}


def _referred(place: Any, root: Mapping[str, Any]) -> Any:
    """What ``#/$defs/Name`` means in a schema."""
    found: Any = root
    for name in str(place).removeprefix("#/").split("/"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
