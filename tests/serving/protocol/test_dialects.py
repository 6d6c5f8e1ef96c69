"""OpenAI's responses and Anthropic's messages say what chat completions say, whole and streamed."""

import asyncio
import json

import pytest

from paceline.serving.models.job import Chunk, Piece
from paceline.serving.protocol.answers import Answer, Wish
from paceline.serving.protocol.dialects import _Parts, of_text
from paceline.serving.protocol.responses import Responses
from paceline.serving.settings import Settings
from tests.serving.conftest import MODEL

CHAT = {"model": MODEL, "temperature": 0, "max_tokens": 10, "ignore_eos": False}
SAID = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hello"}]
TALK = CHAT | {"messages": SAID}
MESSAGES = {"model": MODEL, "system": "Be kind.", "messages": [SAID[1]], "max_tokens": 10, "temperature": 0}
RESPONSES = {"model": MODEL, "instructions": "Be kind.", "input": "hello", "max_output_tokens": 10, "temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"zone": {"enum": ["UTC"]}},
    "required": ["zone"],
    "additionalProperties": False,
}


def chat_text(ask):
    return ask("/v1/chat/completions", CHAT | {"messages": SAID})[0].json()["choices"][0]["message"]["content"]


def streamed(response):
    """The events of a stream; their names are those of their types."""
    assert response.status_code == 200, response.text
    blocks = [block.split("\n") for block in response.text.strip().split("\n\n")]
    told = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name.removeprefix("event: ") for name, _ in blocks] == [each["type"] for each in told]
    return told


def test_messages(ask):
    whole, stream, blocks = ask(
        "/v1/messages", MESSAGES, MESSAGES | {"stream": True},
        MESSAGES | {"system": [{"type": "text", "text": "Be kind."}],
                    "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]},
    )  # fmt: skip
    answer = whole.json()
    assert answer["content"] == [{"type": "text", "text": chat_text(ask)}]
    assert (answer["type"], answer["role"]) == ("message", "assistant")
    assert answer["stop_reason"] in ("end_turn", "max_tokens") and answer["usage"]["output_tokens"] <= 10
    assert blocks.json()["content"] == answer["content"]
    told = streamed(stream)
    assert [each["type"] for each in told[:2]] == ["message_start", "content_block_start"]
    assert told[-1]["type"] == "message_stop"
    sizes = [(u["input_tokens"] + u["cache_read_input_tokens"], u["output_tokens"])
             for u in (told[-2]["usage"], answer["usage"])]  # fmt: skip
    assert sizes[0] == sizes[1] and told[0]["message"]["usage"]["input_tokens"] > 0
    texts = [each["delta"]["text"] for each in told if each["type"] == "content_block_delta"]
    assert "".join(texts) == answer["content"][0]["text"]


def test_messages_need_a_limit_and_their_count_does_not(ask):
    endless = {key: value for key, value in MESSAGES.items() if key != "max_tokens"}
    for answer in ask("/v1/messages", endless, endless | {"max_tokens": None}, endless | {"stream": True}):
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", "max_tokens")
        assert error["message"].startswith("max_tokens: Field required;")
    [counted] = ask("/v1/messages/count_tokens", endless)
    assert counted.json()["input_tokens"] > 0


def test_responses(ask):
    turns = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]}
    whole, stream, listed = ask("/v1/responses", RESPONSES, RESPONSES | {"stream": True}, RESPONSES | turns)
    answer = whole.json()
    assert answer["output"][0]["content"][0]["text"] == chat_text(ask)
    assert answer["object"] == "response" and answer["status"] in ("completed", "incomplete")
    assert listed.json()["output"][0]["content"] == answer["output"][0]["content"]
    told = streamed(stream)
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    assert told[0]["type"] == "response.created" and told[-1]["type"] == f"response.{answer['status']}"
    texts = [each["delta"] for each in told if each["type"] == "response.output_text.delta"]
    assert "".join(texts) == answer["output"][0]["content"][0]["text"]
    assert told[-1]["response"]["usage"]["total_tokens"] == answer["usage"]["total_tokens"] > 10


def test_responses_tell_log_probabilities_as_chat_does(ask):
    wanted = {"include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 2}
    [chat] = ask("/v1/chat/completions", TALK | {"logprobs": True, "top_logprobs": 2})
    scores = chat.json()["choices"][0]["logprobs"]["content"]
    whole, stream, none = ask(
        "/v1/responses", RESPONSES | wanted, RESPONSES | wanted | {"stream": True}, RESPONSES | {"top_logprobs": 0}
    )
    [part] = whole.json()["output"][0]["content"]
    assert part["logprobs"] == scores and len(scores[0]["top_logprobs"]) == 2
    told = streamed(stream)
    deltas = [score for each in told if each["type"] == "response.output_text.delta" for score in each["logprobs"]]
    [done] = [each["logprobs"] for each in told if each["type"] == "response.output_text.done"]
    assert deltas == done == told[-1]["response"]["output"][0]["content"][0]["logprobs"] == scores
    assert none.json()["output"][0]["content"][0]["logprobs"] == []


def test_log_probabilities_of_thoughts_are_not_those_of_the_text():
    tokens = ["<think>", "a", "</", "think>", "\n", "b", "</think>"]
    scores = [{"token": token, "logprob": -1.0} for token in tokens]
    assert [each["token"] for each in of_text(scores, True)] == ["\n", "b", "</think>"]
    assert of_text(scores[:2], True) == scores[:2] and of_text(scores, False) == scores
    parts, told = _Parts(Responses()), []
    for delta, count in (({"reasoning_content": "a"}, 3), ({"content": "b"}, 3), ({"content": "</think>"}, 1)):
        told += parts.read(delta, scores[:count])
        scores = scores[count:]
    texts = [each for each in told if each["type"] == "response.output_text.delta"]
    assert [[score["token"] for score in each["logprobs"]] for each in texts] == [["\n", "b"], ["</think>"]]


def test_responses_pass_over_what_chat_passes_over(ask):
    more = {"prompt_cache_key": "a", "prompt_cache_retention": "24h", "safety_identifier": "b"}
    plain, passed = ask("/v1/responses", RESPONSES, RESPONSES | more)
    repeated = {"instructions": "Be kind.", "max_output_tokens": 10, "temperature": 0, "tool_choice": "auto"}
    assert repeated.items() <= plain.json().items()
    assert passed.json()["output"][0]["content"] == plain.json()["output"][0]["content"]


def test_tools_in_both(ask):
    pytest.importorskip("llguidance")
    few = Settings(stream_interval=3)
    ours = {"tools": [{"name": "clock", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}, "max_tokens": 60}
    whole, stream = ask("/v1/messages", MESSAGES | ours, MESSAGES | ours | {"stream": True}, settings=few)
    [use] = whole.json()["content"]
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "clock", {"zone": "UTC"})
    assert whole.json()["stop_reason"] == "tool_use"
    told = streamed(stream)
    begun = [each["content_block"] for each in told if each["type"] == "content_block_start"]
    assert [{**block, "id": use["id"], "input": use["input"]} for block in begun] == [use]
    fragments = [each["delta"]["partial_json"] for each in told if each["type"] == "content_block_delta"]
    assert "".join(fragments) == '{"zone": "UTC"}' and len(fragments) > 1
    theirs = {"tools": [{"type": "function", "name": "clock", "parameters": SCHEMA}], "tool_choice": "required",
              "max_output_tokens": 60}  # fmt: skip
    answer, stream = ask("/v1/responses", RESPONSES | theirs, RESPONSES | theirs | {"stream": True}, settings=few)
    [call] = answer.json()["output"]
    told = streamed(stream)
    assert [each["type"] for each in told[:3]] == ["response.created", "response.in_progress",
                                                   "response.output_item.added"]  # fmt: skip
    fragments = [each["delta"] for each in told if each["type"] == "response.function_call_arguments.delta"]
    assert "".join(fragments) == call["arguments"] and len(fragments) > 1
    [done] = [each["arguments"] for each in told if each["type"] == "response.function_call_arguments.done"]
    assert done == call["arguments"] == told[-1]["response"]["output"][0]["arguments"]
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "clock", {"zone": "UTC"})
    again = [
        {"role": "user", "content": "what time?"}, call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "noon"},
    ]  # fmt: skip
    assert ask("/v1/responses", RESPONSES | {"input": again})[0].status_code == 200
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "noon"}
    results = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    assert ask("/v1/messages", MESSAGES | {"messages": [SAID[1], *results]})[0].status_code == 200


def test_responses_follow_schemas(ask):
    pytest.importorskip("llguidance")
    form = {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}, "max_output_tokens": 60}
    [answer] = ask("/v1/responses", RESPONSES | form)
    assert json.loads(answer.json()["output"][0]["content"][0]["text"]) == {"zone": "UTC"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("messages", MESSAGES | {"messages": []}, "messages"),
        ("messages", MESSAGES | {"messages": [3]}, "messages[0]"),
        ("messages", MESSAGES | {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0]"),
        ("messages", MESSAGES | {"container": "x"}, "container"),
        ("responses", RESPONSES | {"previous_response_id": "x"}, "previous_response_id"),
        ("responses", RESPONSES | {"input": [{"type": "computer_call"}]}, "input[0]"),
        ("responses", RESPONSES | {"tools": [{"type": "web_search"}]}, "tools"),
        ("responses", RESPONSES | {"temperature": "hot"}, "temperature"),
        ("responses", RESPONSES | {"prompt": {"id": "p"}}, "prompt"),
        ("responses", RESPONSES | {"response_format": {"type": "text"}}, "response_format"),
        ("messages", MESSAGES | {"stop": ["x"]}, "stop"),
        ("messages/count_tokens", MESSAGES | {"stop_sequences": [3]}, "stop_sequences"),
        ("chat/completions", TALK | {"prompt": "x"}, "prompt"),
    ],
)
def test_what_is_not_served_is_refused(ask, path, body, param):
    [answer] = ask(f"/v1/{path}", body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param


@pytest.mark.parametrize(("path", "body", "param"), [
    ("/v1/messages", MESSAGES | {"messages": [{"role": "user", "content": 5}]}, "messages[0]"),
    ("/v1/messages", MESSAGES | {"messages": [{"role": "user", "content": True}]}, "messages[0]"),
    ("/v1/messages/count_tokens", MESSAGES | {"messages": [{"role": "user", "content": 0.5}]}, "messages[0]"),
    ("/v1/messages", MESSAGES | {"stop_sequences": 3}, "stop_sequences"),
    ("/v1/messages", MESSAGES | {"thinking": True}, "thinking"),
    ("/v1/messages", MESSAGES | {"thinking": {"type": "banana"}}, "thinking"),
    ("/v1/messages", MESSAGES | {"output_config": {"format": {"type": "poem"}}}, "output_config.format"),
    ("/v1/messages", MESSAGES | {"output_config": {"style": "terse"}}, "output_config"),
    ("/v1/messages", MESSAGES | {"output_config": {"effort": "none at all"}}, "output_config"),
    ("/v1/messages", MESSAGES | {"messages": [{"role": "user", "contents": "x"}]}, "messages[0].content"),
    ("/v1/messages", MESSAGES | {"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ("/v1/responses", RESPONSES | {"input": [{"role": "user", "contents": "x"}]}, "input"),
    ("/v1/chat/completions", TALK | {"messages": [{"role": "user", "contents": "x"}]}, "messages[0].content"),
    ("/v1/chat/completions", TALK | {"messages": [{"role": "system", "content": None}]}, "messages[0].content"),
    ("/v1/chat/completions", TALK | {"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ("/v1/chat/completions", TALK | {"messages": [{"role": "tool"}]}, "messages[0].content"),
    ("/v1/chat/completions", TALK | {"messages": [{"role": "assistant", "contents": "x"}]}, "messages[0].content"),
    ("/v1/chat/completions", TALK | {"messages": [{"role": "user", "content": [{"type": "text", "texts": "x"}]}]},
     "messages[0].content[0]"),
    ("/v1/responses", RESPONSES | {"max_output_tokens": 0}, "max_output_tokens"),
    ("/v1/responses", RESPONSES | {"max_output_tokens": "x"}, "max_output_tokens"),
    ("/v1/responses", RESPONSES | {"input": [{"role": "nobody", "content": [3]}]}, "input"),
    ("/v1/responses", RESPONSES | {"text": {"format": {"type": "poem"}}}, "text"),
    ("/v1/responses", RESPONSES | {"background": True}, "background"),
    ("/v1/responses", RESPONSES | {"truncation": "auto"}, "truncation"),
    ("/v1/responses", RESPONSES | {"include": "all"}, "include"),
    ("/v1/responses", RESPONSES | {"include": ["zzz"]}, "include"),
    ("/v1/responses", RESPONSES | {"include": [{}]}, "include"),
    ("/v1/responses", RESPONSES | {"top_logprobs": 2}, "top_logprobs"),
    ("/v1/responses", RESPONSES | {"top_logprobs": 99, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
    ("/v1/messages", MESSAGES | {"top_logprobs": 2}, "top_logprobs"),
    ("/v1/responses", RESPONSES | {"reasoning": 3}, "reasoning"),
    ("/v1/chat/completions", TALK | {"max_completion_tokens": 0}, "max_completion_tokens"),
    ("/v1/chat/completions", TALK | {"logprobs": True, "top_logprobs": 99}, "top_logprobs"),
    ("/v1/chat/completions", TALK | {"guided_regex": "("}, "guided_regex"),
    ("/v1/chat/completions", TALK | {"prediction": {"x": 1}}, "prediction"),
    ("/v1/chat/completions", TALK | {"response_format": {"type": "structural_tag"}}, "response_format"),
    ("/v1/completions", {"model": MODEL, "prompt": "a", "best_of": 99}, "best_of"),
])  # fmt: skip
def test_a_refusal_names_the_field_as_its_protocol_does(ask, path, body, param):
    [answer] = ask(path, body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_errors_of_anthropics_say_that_they_are(ask):
    wrong, unknown = ask("/v1/messages", MESSAGES | {"max_tokens": 0}, MESSAGES | {"model": "nobody"})
    assert (wrong.json()["type"], wrong.json()["error"]["type"]) == ("error", "invalid_request_error")
    assert (unknown.json()["type"], unknown.json()["error"]["type"]) == ("error", "not_found_error")
    [nowhere] = ask("/v1/messages/batches", MESSAGES)
    assert (nowhere.status_code, nowhere.json()["error"]["type"]) == (404, "not_found_error")
    for path, kind in (("/v1/messages", "error"), ("/v1/responses", None)):
        [keyless] = ask(path, MESSAGES, settings=Settings(api_keys=("secret",)))
        assert (keyless.status_code, keyless.json().get("type")) == (401, kind)
        assert keyless.json()["error"]["type"] == "authentication_error"


def test_an_answer_of_anthropics_has_the_form_that_is_asked_for(ask):
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    form = {"format": {"type": "json_schema", "schema": schema}, "effort": "max"}
    [answer] = ask("/v1/messages", MESSAGES | {"output_config": form, "max_tokens": 30})
    assert answer.status_code == 200, answer.text
    assert json.loads(answer.json()["content"][0]["text"])["n"] in (1, 2)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_log_probabilities_of_a_last_token_without_text_are_told_however_tokens_come(size):
    tokens = [("Yes", b"Yes"), (".", b"."), ("", b"<|im_end|>")]
    pieces = [Piece(i, text, data, "target", -0.1) for i, (text, data) in enumerate(tokens)]

    async def bodies():
        answer = Answer("x", "m", Wish(is_chat=True, logprobs=True, prompts=("p",)))
        for start in range(0, 3, size):
            part, reason = tuple(pieces[start : start + size]), "stop" if start + size >= 3 else None
            text = "".join(piece.text for piece in part)
            for body in answer.pieces(0, Chunk(text, reason, num_tokens=len(part), pieces=part), (True, True)):
                yield body

    async def told():
        dialect = Responses()
        dialect.request({"input": "x", "include": ["message.output_text.logprobs"]})
        return [event async for event in dialect.events(bodies(), "m")]

    events = asyncio.run(told())
    in_pieces = [score["token"] for event in events if event["type"].endswith(".delta") for score in event["logprobs"]]
    [content] = events[-1]["response"]["output"][0]["content"]
    assert in_pieces == [score["token"] for score in content["logprobs"]] == ["Yes", ".", "<|im_end|>"]


def test_a_block_alone_stands_for_a_list_of_one(ask):
    texts = [
        answer.json()["content"]
        for system in ("Be kind.", {"type": "text", "text": "Be kind."})
        for answer in ask("/v1/messages", MESSAGES | {"system": system})
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [("/v1/messages", MESSAGES, "api_error"), ("/v1/responses", RESPONSES, "request_failed")],
)
def test_a_request_that_fails_is_the_servers_trouble(ask, monkeypatch, path, body, kind):
    """Clients try again after a status of 500, and not after 400."""
    monkeypatch.setattr("paceline.engine.loop.engine.result_of", lambda *_, **__: 1 / 0)
    answer, stream = ask(path, body, body | {"stream": True})
    name, event = stream.text.rstrip().rsplit("\n\n", 1)[-1].splitlines()
    event = json.loads(event.removeprefix("data: "))
    assert name == "event: error" and (event["type"], event["error"]["type"]) == ("error", kind)
    assert answer.status_code == 500
    assert answer.json()["error"] | {"message": ""} == {
        "message": "",
        "type": kind,
        "param": None,
        "code": None,
    }
    assert answer.json()["error"]["message"].startswith("the request failed: ")
