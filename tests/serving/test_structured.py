"""`response_format` and its relatives over HTTP: valid, the same with and without drafts, refused with a reason."""

import asyncio
import json

import pytest

from tests.serving.conftest import MODEL, events

pytest.importorskip("llguidance")

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "temperature": 1, "seed": 4}
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "tame": {"type": "boolean"}},
    "required": ["kind", "tame"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "pet", "strict": True, "schema": SCHEMA}}
CHATS = "/v1/chat/completions"


def content(response):
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("speculative", [None, "ngram"])
def test_json_schemas(ask, speculative):
    whole, streamed, plain, samples = ask(
        CHATS, CHAT | {"response_format": FORMAT}, CHAT | {"response_format": FORMAT, "stream": True},
        CHAT | {"response_format": FORMAT, "speculative": False}, CHAT | {"response_format": FORMAT, "n": 3},
        speculative=speculative,
    )  # fmt: skip
    pet = json.loads(content(whole))
    assert set(pet) == {"kind", "tame"} and whole.json()["choices"][0]["finish_reason"] == "stop"
    assert content(plain) == content(whole)
    deltas = [event["choices"][0]["delta"]["content"] for event in events(streamed)]
    assert "".join(deltas) == content(whole)
    assert all(set(json.loads(each["message"]["content"])) == set(pet) for each in samples.json()["choices"])


@pytest.mark.parametrize(
    ("asked", "texts"),
    [
        ({"structured_outputs": {"choice": ["yes", "no"]}}, {"yes", "no"}),
        ({"guided_regex": "a{3}"}, {"aaa"}),
        ({"guided_json": {"const": "x"}}, {'"x"'}),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": 5}}}}, {"5"}),
    ],
)
def test_other_ways_to_ask(ask, asked, texts):
    assert content(ask(CHATS, CHAT | asked)[0]) in texts


def test_least_tokens_forbid_an_end_only_where_the_grammar_goes_on(ask):
    """A complete text has nothing more to say; one that may go on has to."""
    wishes = ({"choice": ["yes", "no"]}, {"regex": "(ab)+"})
    ended, longer = ask(CHATS, *(CHAT | {"structured_outputs": each, "min_tokens": 10} for each in wishes))
    assert content(ended) in ("yes", "no") and ended.json()["choices"][0]["finish_reason"] == "stop"
    assert len(content(longer)) >= 10 and set(content(longer)) == {"a", "b"}


def test_json_mode_is_an_object(ask):
    body = CHAT | {"response_format": {"type": "json_object"}, "temperature": 0.5, "max_tokens": 300}
    [answer] = ask(CHATS, body)
    if answer.json()["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(content(answer)), dict)
    assert content(answer).startswith("{")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": FORMAT, "structured_outputs": {"regex": "a"}}, "response_format"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"structured_outputs": {"json": {"enum": ["x" * 70_000]}}}, "structured_outputs.json"),
    ],
)
def test_what_cannot_be_followed_is_refused(ask, asked, param):
    [response] = ask(CHATS, CHAT | asked)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": FORMAT},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"choice": ["yes"]}},
        {"structured_outputs": {"regex": "("}},
        {"structured_outputs": {"invented": 1}},
        {"guided_regex": "a"},
        {"guided_json": {"const": "x"}},
    ],
)
def test_a_grammar_beside_a_demanded_call_is_refused(ask, asked, choice):
    demanded = CHAT | asked | {"tools": [TOOL], "tool_choice": choice}
    refused, free = ask(CHATS, demanded, demanded | dict.fromkeys(asked) | {"response_format": {"type": "text"}})
    error = refused.json()["error"]
    assert refused.status_code == 400 and error["param"] == next(iter(asked))
    assert error["message"].startswith(f"{error['param']}: is given beside tool_choice, which demands a call")
    assert free.status_code == 200


def test_other_protocols_name_their_own_field_beside_a_demanded_call(ask):
    tools = {"tools": [{"type": "function", "name": "f", "parameters": SCHEMA}], "tool_choice": "required"}
    form = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    [answer] = ask("/v1/responses", {"model": MODEL, "input": "hello", "text": form} | tools)
    error = answer.json()["error"]
    assert (
        answer.status_code == 400
        and error["param"] == "text"
        and "text: is given beside tool_choice" in error["message"]
    )


def test_many_grammars_at_once(serving):
    """Each its own, beside requests without one."""

    async def scene():
        async with serving() as client:
            bodies = [CHAT | {"seed": i, "guided_choice": [f"text {i}", f"other {i}"]} for i in range(12)]
            bodies += [CHAT | {"seed": i, "max_tokens": 20} for i in range(4)]
            return await asyncio.gather(*(client.post(CHATS, json=body) for body in bodies))

    answers = asyncio.run(scene())
    for i, answer in enumerate(answers[:12]):
        assert content(answer) in (f"text {i}", f"other {i}")
    assert all(answer.status_code == 200 for answer in answers)
