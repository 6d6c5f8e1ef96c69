"""What single fields may hold, and what their refusals say."""

import asyncio

import pytest

from tests.serving.conftest import MODEL, events

COMPLETIONS, CHATS, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
TEXT = {"model": MODEL, "prompt": "abc", "temperature": 0, "max_tokens": 4, "ignore_eos": True}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 4}
GOOD = {COMPLETIONS: TEXT, CHATS: CHAT, RESPONSES: {"model": MODEL, "input": "hello", "max_output_tokens": 4},
        "/detokenize": {"model": MODEL}}  # fmt: skip
TURN = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        *((COMPLETIONS, {name: True}) for name in (
            "n", "best_of", "temperature", "top_p", "top_k", "max_tokens", "seed", "min_tokens", "presence_penalty",
            "logprobs", "prompt_logprobs", "priority", "timeout")),
        (COMPLETIONS, {"prompt": [True]}),
        (COMPLETIONS, {"prompt": [[97], [False]]}),
        (COMPLETIONS, {"stop_token_ids": [True]}),
        *((CHATS, {name: True}) for name in ("best_of", "typical_p", "repeat_penalty", "length_penalty")),
        *((CHATS, {name: 1}) for name in ("include_reasoning", "cache_prompt", "skip_special_tokens")),
        (CHATS, {"best_of": 2}),
        (CHATS, {"reasoning_effort": "extreme"}),
        (CHATS, {"reasoning_effort": ""}),
        (RESPONSES, {"reasoning": {"effort": "extreme"}}),
        (CHATS, {"documents": [{"text": "x"}]}),
        (CHATS, {"cache_prompt": False}),
        (COMPLETIONS, {"stop_token_ids": [5000]}),
        (COMPLETIONS, {"allowed_token_ids": [5000]}),
        (COMPLETIONS, {"allowed_token_ids": []}),
        (COMPLETIONS, {"logit_bias": {"97": True}}),
        (COMPLETIONS, {"stream_options": {"zzz": 1}}),
        (CHATS, {"top_logprobs": True, "logprobs": True}),
        (CHATS, {"response_format": {"type": "text", "zzz": 1}}),
        (CHATS, {"response_format": {"type": "json_object", "schema": {}}}),
        (CHATS, {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "zzz": 1}}}),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": {}, "zzz": 1}}}),
        (RESPONSES, {"max_output_tokens": True}),
        ("/detokenize", {"tokens": [True]}),
        *((path, {name: value}) for path in (COMPLETIONS, CHATS, RESPONSES) for name, value in (
            ("user", 3), ("metadata", "x"), ("store", "yes"), ("service_tier", 1), ("prompt_cache_key", {}),
            ("parallel_tool_calls", [1]))),
    ],
)  # fmt: skip
def test_values_of_another_kind_are_refused(ask, path, wrong):
    [answer] = ask(path, GOOD[path] | wrong)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == next(iter(wrong)), answer.text


def test_what_clients_send_besides_is_passed_over(ask):
    options = {"stream": True, "stream_options": {"include_usage": False, "include_obfuscation": False, "x": None}}
    passed = {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "prompt_cache_key": "k",
              "response_format": {"type": "text"}, "stop_token_ids": [0]}  # fmt: skip
    plain, more = ask(CHATS, CHAT | {"stream": True}, CHAT | options | passed)
    texts = ["".join(e["choices"][0]["delta"]["content"] for e in events(each)) for each in (plain, more)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", None])
def test_efforts_of_reasoning_are_openais(ask, effort):
    [chat] = ask(CHATS, CHAT | {"reasoning_effort": effort})
    [response] = ask(RESPONSES, GOOD[RESPONSES] | {"reasoning": {"effort": effort}})
    assert chat.status_code == response.status_code == 200


NO_OPS = {"documents": [], "mm_processor_kwargs": {}, "vllm_xargs": {}, "return_tokens_as_token_ids": False,
          "include_reasoning": True, "cache_prompt": True, "typical_p": 1.0, "repeat_penalty": 1, "best_of": 1,
          "suffix": "", "length_penalty": 1.0, "use_beam_search": False, "logprobs": False}  # fmt: skip


@pytest.mark.parametrize("path", [COMPLETIONS, CHATS])
def test_values_that_change_nothing_count_as_absent(ask, path):
    plain, more = ask(path, GOOD[path], GOOD[path] | NO_OPS)
    assert more.status_code == 200, more.text
    assert more.json()["choices"] == plain.json()["choices"]


def test_fields_with_vllms_names_reach_the_sampler(ask):
    letters = [ord(letter) for letter in "xyz"]
    [free] = ask(COMPLETIONS, TEXT | {"max_tokens": 12})
    said = free.json()["choices"][0]["text"]
    few, kept, off = ask(
        COMPLETIONS, TEXT | {"allowed_token_ids": letters},
        TEXT | {"max_tokens": 12, "stop": said[3:5], "include_stop_str_in_output": True}, TEXT | {"top_k": -1},
    )  # fmt: skip
    assert set(few.json()["choices"][0]["text"]) <= set("xyz")
    assert kept.json()["choices"][0]["text"].endswith(said[3:5])
    assert off.json()["choices"][0]["text"] == said[:4]


def test_endless_times_are_refused(serving):
    async def scene():
        async with serving() as client:
            head = {"content-type": "application/json"}
            bodies = [b'{"prompt": "a", "%s": 1e999}' % name for name in (b"timeout", b"slo")]
            return [(await client.post(COMPLETIONS, content=body, headers=head)).json() for body in bodies]

    assert [each["error"]["param"] for each in asyncio.run(scene())] == ["timeout", "slo"]


@pytest.mark.parametrize("role", ["zzz", "", "User", "function"])
def test_unknown_roles_are_refused(ask, role):
    [answer] = ask(CHATS, CHAT | {"messages": [TURN, {"role": role, "content": "x"}]})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "messages[1].role"


@pytest.mark.parametrize(
    ("path", "wrong", "message"),
    [
        (COMPLETIONS, {"max_tokens": "x"}, "max_tokens: Input should be a valid integer, unable to parse"),
        (COMPLETIONS, {"n": True}, "n: Input should be a number, not true or false;"),
        (COMPLETIONS, {"prompt": {"a": 1}}, "prompt: Input should be a valid string or a valid list;"),
        (COMPLETIONS, {"prompt": [True]}, "prompt: [0]: Input should be a valid integer or a valid string or a valid"),
        (COMPLETIONS, {"stop": 3}, "stop: Input should be a valid string or a valid list;"),
        (COMPLETIONS, {"paceline": {"x": 1}}, "paceline: x: Extra inputs are not permitted;"),
        (CHATS, {"messages": [TURN, {"content": "a"}]}, "messages: [1].role: Field required;"),
        (CHATS, {"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages: [0].content[0].type: Field"),
        (RESPONSES, {"max_output_tokens": "x"}, "max_output_tokens: Input should be a valid integer"),
    ],
)
def test_a_refusal_names_the_field_once_and_then_the_place_in_it(ask, path, wrong, message):
    [answer] = ask(path, GOOD[path] | wrong)
    assert answer.json()["error"]["message"].startswith(message), answer.text


def test_a_stream_that_begins_with_its_prompt_is_one_event(ask):
    [answer] = ask(COMPLETIONS, TEXT | {"stream": True, "echo": True, "max_tokens": 30})
    [event] = events(answer)
    assert event["choices"][0]["text"].startswith("abc")


@pytest.mark.parametrize(
    ("path", "field", "remedy"),
    [
        (CHATS, "repeat_penalty", "use repetition_penalty"), (CHATS, "use_beam_search", "there is no beam search"),
        (CHATS, "temprature", "did you mean temperature?"), (CHATS, "functions", "use tools"),
        (COMPLETIONS, "n_predict", "use max_tokens"), (COMPLETIONS, "max_token", "did you mean max_tokens?"),
        (RESPONSES, "max_output_token", "did you mean max_output_tokens?"),
        (RESPONSES, "n_predict", "use max_output_tokens"), (RESPONSES, "output_format", "use text"),
        (RESPONSES, "content", "use input"),
    ],
)  # fmt: skip
def test_a_field_of_another_server_says_what_to_send(ask, path, field, remedy):
    [answer] = ask(path, GOOD[path] | {field: 2})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field
    assert remedy in answer.json()["error"]["message"]
