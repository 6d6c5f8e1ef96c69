"""Objects allow no properties but those that they list, in demanded calls and strict formats, at every depth."""

import json

import pytest

from paceline.engine.text.grammar import Grammars
from paceline.serving.protocol.call_schema import calls_schema
from paceline.serving.protocol.closed_schema import closed
from paceline.serving.protocol.dialects import tool_of
from tests.fakes import ByteTokenizer
from tests.serving.conftest import MODEL

A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
B = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 60}
CHATS = "/v1/chat/completions"


@pytest.fixture(scope="module")
def allows():
    """(schema, value) -> whether the grammar of a schema takes a value as it is."""
    pytest.importorskip("llguidance")
    grammars = Grammars(ByteTokenizer(), (130,), 131)  # type: ignore[arg-type]

    def check(schema, value):
        matcher = grammars.compiled({"json": json.dumps(schema)}).deep_copy()
        text = json.dumps(value).encode()
        return matcher.try_consume_tokens(list(text)) == len(text) and matcher.is_accepting()

    return check


def with_own(*own, **parts):
    return {"type": "object", "properties": {name: {"type": "integer"} for name in own}, **parts}


@pytest.mark.parametrize(
    ("schema", "value", "invented"),
    [
        (A, {"a": 1}, {"a": 1, "c": 2}),
        ({"type": "object", "properties": {}}, {}, {"c": 2}),
        ({"properties": {"deep": A}, "required": ["deep"]}, {"deep": {"a": 1}}, {"deep": {"a": 1, "c": 2}}),
        ({"items": A, "type": "array"}, [{"a": 1}], [{"a": 1, "c": 2}]),
        ({"anyOf": [A, B]}, {"b": 1}, {"b": 1, "c": 2}),
        ({"oneOf": [A, {"type": "null"}]}, {"a": 1}, {"a": 1, "c": 2}),
        ({"allOf": [A]}, {"a": 1}, {"a": 1, "c": 2}),
        ({"$ref": "#/$defs/A", "description": "x", "$defs": {"A": A}}, {"a": 1}, {"a": 1, "c": 2}),
        ({"items": {"$ref": "#/$defs/A"}, "type": "array", "$defs": {"A": A}}, [{"a": 1}], [{"a": 1, "c": 2}]),
        ({"additionalProperties": A, "type": "object"}, {"x": {"a": 1}}, {"x": {"a": 1, "c": 2}}),
        (with_own("a", "b", anyOf=[{"required": ["a"]}, {"required": ["b"]}]), {"b": 1}, {"b": 1, "c": 2}),
        (with_own("a", patternProperties={"^x": {"type": "integer"}}), {"x1": 1}, {"c": 2}),
        (with_own("properties", "const"), {"properties": 1}, {"c": 2}),
        # one that stands alone is closed inside parts that stay open
        ({"allOf": [with_own("a"), {"properties": {"deep": B}, "required": ["deep"]}]},
         {"a": 1, "deep": {"b": 1}}, {"a": 1, "deep": {"b": 1, "c": 2}}),
    ],
)  # fmt: skip
def test_objects_that_list_properties_hold_no_others(allows, schema, value, invented):
    assert allows(schema, value) and allows(schema, invented)
    assert allows(closed(schema), value) and not allows(closed(schema), invented)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object"}, {"c": 1}),
        (A | {"additionalProperties": True}, {"a": 1, "c": 2}),
        (A | {"additionalProperties": {"type": "integer"}}, {"a": 1, "c": 2}),
        ({"allOf": [A, B]}, {"a": 1, "b": 2}),
        ({"allOf": [{"$ref": "#/$defs/A"}, B], "$defs": {"A": A}}, {"a": 1, "b": 2}),
        ({"allOf": [{"$ref": "#/$defs/C"}, B], "$defs": {"A": A, "C": {"$ref": "#/$defs/A"}}}, {"a": 1, "b": 2}),
        ({"$id": "https://x.y/z", "allOf": [{"$ref": "https://x.y/z#/$defs/A"}, B], "$defs": {"A": A}},
         {"a": 1, "b": 2}),
        ({"allOf": [{"$ref": "#a"}, B], "$defs": {"A": {"$anchor": "a"} | A}}, {"a": 1, "b": 2}),
        ({"allOf": [{"anyOf": [A, {"allOf": [A]}]}, B]}, {"a": 1, "b": 2}),
        (with_own("b", anyOf=[A, {"type": "object"}]), {"b": 1, "a": 2}),
        (with_own("b", **{"$ref": "#/$defs/A", "$defs": {"A": A}}), {"b": 1, "a": 2}),
        (with_own("a", "b", anyOf=[A]), {"a": 1, "b": 2}),
        ({"required": ["b"], "anyOf": [A]}, {"a": 1, "b": 2}),
        (with_own("a", required=["b"]), {"a": 1, "b": 2}),
        ({"const": A}, A),
        ({"enum": [{"properties": {}}]}, {"properties": {}}),
    ],
)  # fmt: skip
def test_what_closing_would_break_stays_open(allows, schema, value):
    assert allows(closed(schema), value)


def test_a_schema_is_left_as_it_was_given():
    before = json.dumps(A)
    assert closed(A) == A | {"additionalProperties": False} and json.dumps(A) == before


def test_a_definition_that_refers_to_itself(allows):
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    schema = {"$ref": "#/$defs/Node", "$defs": {"Node": node}}
    assert allows(closed(schema), {"next": {"next": {}}}) and not allows(closed(schema), {"next": {"c": 1}})
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}}}
    assert allows(closed(tree), {"left": {"left": {}}}) and not allows(closed(tree), {"left": {"c": 1}})


def test_calls_are_closed_unless_a_tool_is_not_strict(allows):
    def call(*arguments):
        return [{"name": "f", "arguments": each} for each in arguments]

    for strict, is_open in ((None, False), (True, False), (False, True)):
        schema = calls_schema([{"name": "f", "parameters": A, "strict": strict}])
        assert [allows(schema, each) for each in call({"a": 1}, {"a": 1, "c": 2})] == [True, is_open]
    for nothing in ({"name": "f"}, {"name": "f", "parameters": {}}, {"name": "f", "strict": False}):
        assert [allows(calls_schema([nothing]), each) for each in call({}, {"c": 1})] == [True, False]


CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
BIAS = {str(ord(letter)): 100 for letter in ","}
"""A model with it goes on to another property wherever it may."""


@pytest.mark.parametrize("strict", [None, True, False])
def test_demanded_calls_invent_nothing(ask, strict):
    pytest.importorskip("llguidance")
    more = {} if strict is None else {"strict": strict}
    chat = CHAT | {"logit_bias": BIAS, "tool_choice": "required",
                   "tools": [{"type": "function", "function": {"name": "f", "parameters": CITY} | more}]}  # fmt: skip
    [answer] = ask(CHATS, chat)
    [call] = answer.json()["choices"][0]["message"]["tool_calls"]
    if strict is False:
        assert call["function"]["arguments"].startswith('{"city": "Oslo", ')
    else:
        assert call["function"]["arguments"] == '{"city": "Oslo"}'


@pytest.mark.parametrize("schema", ["parameters", "input_schema"])
def test_other_protocols_tell_whether_a_tool_is_strict(schema):
    told = tool_of({"name": "f", schema: CITY, "strict": False}, schema)
    assert told["function"] == {"name": "f", "parameters": CITY, "strict": False}
    assert "strict" not in tool_of({"name": "f", schema: CITY}, schema)["function"]


@pytest.mark.parametrize("strict", [True, False])
def test_strict_formats_invent_nothing(ask, strict):
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY, "strict": strict}}
    [answer] = ask(CHATS, CHAT | {"logit_bias": BIAS, "response_format": form})
    text = answer.json()["choices"][0]["message"]["content"]
    assert text == '{"city": "Oslo"}' if strict else text.startswith('{"city": "Oslo", ')


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]}, "tools"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}}, "response_format"),
    ],
)
def test_strict_is_a_boolean(ask, wrong, param):
    [answer] = ask(CHATS, CHAT | wrong)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param
