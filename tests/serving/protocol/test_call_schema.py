"""Tools whose parameters refer to definitions, as nested Pydantic models do, can be demanded; a bad one is named."""

import json

import pytest

from paceline.errors import InvalidParameter
from paceline.serving.protocol.call_schema import calls_schema
from tests.serving.conftest import MODEL

CITY = {"enum": ["Oslo", "Rome"]}
ZONE = {"enum": ["UTC"]}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 200}
CHATS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def closed(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def function(name, parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def place(where, definition, keyword="$defs"):
    """An object with a place in it, defined apart under a name that every tool here uses."""
    return closed(place={"$ref": where}) | {keyword: {"Place": definition}}


NESTED = place("#/$defs/Place", closed(city=CITY))
OTHER = place("#/$defs/Place", closed(zone=ZONE))


def arguments(response):
    assert response.status_code == 200, response.text
    [call] = response.json()["choices"][0]["message"]["tool_calls"]
    return call["function"]["name"], json.loads(call["function"]["arguments"])


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        (NESTED, [{"place": {"city": "Oslo"}}, {"place": {"city": "Rome"}}]),
        (place("#/definitions/Place", ZONE, "definitions"), [{"place": "UTC"}]),
        (place("https://x.y/z#/$defs/Place", ZONE) | {"$id": "https://x.y/z"}, [{"place": "UTC"}]),
        (closed(zone=ZONE, same={"$ref": "#/properties/zone"}), [{"zone": "UTC", "same": "UTC"}]),
        (closed(**{"$ref": {"const": "#"}}), [{"$ref": "#"}]),
        (closed(same={"$ref": "#/$defs/Either/anyOf/1"}) | {"$defs": {"Either": {"anyOf": [CITY, ZONE]}}},
         [{"same": "UTC"}]),
        (closed(enum={"$ref": "#/$defs/a~1b"}) | {"$defs": {"a/b": {"const": {"$ref": "#"}}}},
         [{"enum": {"$ref": "#"}}]),
    ],
)  # fmt: skip
def test_a_demanded_call_may_refer_to_definitions(ask, parameters, wanted):
    pytest.importorskip("llguidance")
    [answer] = ask(CHATS, CHAT | {"tools": [function("look", parameters)], "tool_choice": "required"})
    name, given = arguments(answer)
    assert name == "look" and given in wanted


def test_definitions_of_one_name_in_two_tools_do_not_clash(ask):
    pytest.importorskip("llguidance")
    tools = {"tools": [function("weather", NESTED), function("clock", OTHER)]}
    named = [{"tool_choice": {"type": "function", "function": {"name": name}}} for name in ("weather", "clock")]
    answers = ask(CHATS, *(CHAT | tools | each for each in (*named, {"tool_choice": "required"})))
    weather, clock, either = [arguments(answer) for answer in answers]
    assert weather[1]["place"] in ({"city": "Oslo"}, {"city": "Rome"}) and clock == (
        "clock",
        {"place": {"zone": "UTC"}},
    )
    assert either in (weather, clock)


def test_a_schema_that_refers_to_itself_compiles():
    llguidance = pytest.importorskip("llguidance")
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "whole": {"$ref": "#"}}}
    schema = closed(first={"$ref": "#/$defs/Node"}) | {"$defs": {"Node": node}}
    for functions in ([{"name": "f", "parameters": schema}], [{"name": "g"}, {"name": "f", "parameters": schema}]):
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(calls_schema(functions)))
        assert llguidance.LLMatcher.validate_grammar(grammar) == ""


def test_other_protocols_take_definitions_too(ask):
    pytest.importorskip("llguidance")
    asked = {"model": MODEL, "temperature": 0, "messages": CHAT["messages"], "max_tokens": 200}
    theirs = {"tools": [{"name": "clock", "input_schema": OTHER}], "tool_choice": {"type": "any"}}
    [answer] = ask(MESSAGES, asked | theirs)
    assert answer.json()["content"][0]["input"] == {"place": {"zone": "UTC"}}
    ours = {"tools": [{"type": "function", "name": "clock", "parameters": OTHER}], "tool_choice": "required"}
    [answer] = ask(RESPONSES, {"model": MODEL, "temperature": 0, "input": "hello", "max_output_tokens": 200} | ours)
    assert json.loads(answer.json()["output"][0]["arguments"]) == {"place": {"zone": "UTC"}}


def test_the_schema_of_a_tool_is_blamed_on_the_tools(ask):
    pytest.importorskip("llguidance")
    missing = closed(place={"$ref": "#/$defs/Place"})
    [answer] = ask(CHATS, CHAT | {"tools": [function("look", missing)], "tool_choice": "required"})
    assert answer.json()["error"]["param"] == "tools"
    assert "of 'look' refer to '#/$defs/Place', which does not exist" in answer.json()["error"]["message"]
    broken = closed(place={"$ref": "https://x.y/z"})
    [chat] = ask(CHATS, CHAT | {"tools": [function("look", broken)], "tool_choice": "required"})
    theirs = {"tools": [{"name": "look", "input_schema": broken}], "tool_choice": {"type": "any"}}
    [messages] = ask(MESSAGES, CHAT | theirs)
    ours = {"tools": [{"type": "function", "name": "look", "parameters": broken}], "tool_choice": "required"}
    [responses] = ask(RESPONSES, {"model": MODEL, "input": "hello"} | ours)
    for answer in (chat, messages, responses):
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == "tools" and error["message"].startswith("tools: ")


def test_a_schema_nested_without_end_is_refused():
    schema: dict = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(InvalidParameter, match="nested"):
        calls_schema([{"name": "f", "parameters": schema}])
