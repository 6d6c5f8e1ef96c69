"""OpenAI's protocol over a real engine: what is accepted, what comes back, and that it is what the library says."""

import asyncio
import io
import json
import math

import pytest

from paceline.serving.models.job import Piece
from paceline.serving.protocol.logprobs import TextOffsets, text_logprobs
from paceline.serving.settings import Settings
from paceline.types import SamplingParams
from tests.serving.conftest import MODEL, events

TEXT = {"model": MODEL, "prompt": "abcabcabc", "temperature": 0, "max_tokens": 12, "ignore_eos": True}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 12}
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


def alone(make_llm, prompt="abcabcabc", **changes):
    params = {"temperature": 0, "max_tokens": 12, "ignore_eos": True} | changes
    return make_llm().generate(prompt, SamplingParams(**params))[0]


def test_nulls_and_what_asks_for_nothing_change_nothing(ask):
    plain = ask(COMPLETIONS, TEXT)[0].json()
    nulls = ("logprobs", "n", "top_p", "stream", "stop", "logit_bias", "presence_penalty", "seed", "tools", "best_of",
             "stream_options", "response_format", "unheard_of", "prediction", "speculative")  # fmt: skip
    no_ops = {"n": 1, "best_of": 1, "echo": False, "tools": [], "tool_choice": "none", "top_k": -1, "suffix": "",
              "response_format": {"type": "text"}, "user": "me", "metadata": {"a": "b"}, "store": False,
              "logprobs": False, "skip_special_tokens": True, "parallel_tool_calls": True}  # fmt: skip
    for body in (TEXT | dict.fromkeys(nulls), TEXT | no_ops):
        response = ask(COMPLETIONS, body)[0]
        assert response.status_code == 200, response.text
        assert response.json()["choices"] == plain["choices"]


def test_the_model_may_be_left_out_when_there_is_one(ask):
    body = {key: value for key, value in TEXT.items() if key != "model"}
    assert ask(COMPLETIONS, body)[0].json()["model"] == MODEL


def test_samples_and_lists_of_prompts_are_choices_in_order(ask, make_llm):
    body = TEXT | {"prompt": ["abcabc", "xyz"], "n": 2, "temperature": 0.9, "seed": 4}
    whole, streamed = ask(COMPLETIONS, body, body | {"stream": True, "stream_options": {"include_usage": True}})
    choices = whole.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    for place, prompt in enumerate(("abcabc", "xyz")):
        both = alone(make_llm, prompt, temperature=0.9, seed=4, n=2).outputs
        assert [choice["text"] for choice in choices[2 * place : 2 * place + 2]] == [each.text for each in both]
    pieces = events(streamed)
    texts = dict.fromkeys(range(4), "")
    for piece in pieces[:-1]:
        texts[piece["choices"][0]["index"]] += piece["choices"][0]["text"]
    assert [texts[i] for i in range(4)] == [choice["text"] for choice in choices]
    for usage in (pieces[-1]["usage"], whole.json()["usage"]):
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (9, 48)


def test_a_streamed_prompts_tokens_come_with_its_last_sample_and_are_never_told_as_none(ask):
    body = TEXT | {"prompt": ["abc", "xy"], "n": 2, "return_token_ids": True, "prompt_logprobs": 0, "stream": True}
    told = [choice for each in events(*ask(COMPLETIONS, body)) for choice in each["choices"]]
    found = {}
    for choice in told:
        if "prompt_token_ids" in choice:
            assert choice["finish_reason"] and len(choice["prompt_logprobs"]) == len(choice["prompt_token_ids"]) > 0
            found.setdefault(choice["index"] // 2, []).append(bytes(choice["prompt_token_ids"]))
    assert found == {0: [b"abc"], 1: [b"xy"]}


def test_content_parts_and_roles(ask):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    whole, split, image, empty = ask(
        CHATS, CHAT, CHAT | {"messages": [{"role": "user", "content": parts}]},
        CHAT | {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        CHAT | {"messages": [{"role": "assistant", "content": None}, {"role": "user", "content": "hi"}]},
    )  # fmt: skip
    assert split.json()["choices"] == whole.json()["choices"]
    assert image.status_code == 400 and "image_url" in image.json()["error"]["message"]
    assert empty.status_code == 200


def test_chat_goes_on_to_the_end_of_the_context_unless_told_otherwise(ask):
    body = {key: value for key, value in CHAT.items() if key != "max_tokens"} | {"ignore_eos": True}
    limited = body | {"max_tokens": 20, "max_completion_tokens": 5}
    whole, short, none = ask(CHATS, body, limited, body | {"max_completion_tokens": 0}, max_model_len=200)
    usage = whole.json()["usage"]
    assert usage["total_tokens"] == 200 and whole.json()["choices"][0]["finish_reason"] == "length"
    assert short.json()["usage"]["completion_tokens"] == 5
    assert none.status_code == 400


@pytest.mark.parametrize("speculative", [None, {"method": "ngram", "num_draft_tokens": 5, "policy": "fixed"}])
def test_logprobs_in_both_forms(ask, make_llm, speculative):
    expected = alone(make_llm, logprobs=3).outputs[0]
    text, streamed = ask(COMPLETIONS, TEXT | {"logprobs": 3}, TEXT | {"logprobs": 3, "stream": True},
                         speculative=speculative)  # fmt: skip
    told = text.json()["choices"][0]["logprobs"]
    assert told["token_logprobs"] == [each.logprob for each in expected.logprobs]
    assert [len(each) for each in told["top_logprobs"]] == [3] * 12
    assert len(told["tokens"]) == len(told["text_offset"]) == 12
    joined = [x for piece in events(streamed) for x in piece["choices"][0]["logprobs"]["token_logprobs"]]
    assert joined == told["token_logprobs"]
    [chat] = ask(CHATS, CHAT | {"logprobs": True, "top_logprobs": 2}, speculative=speculative)
    content = chat.json()["choices"][0]["logprobs"]["content"]
    assert len(content) == chat.json()["usage"]["completion_tokens"]
    for entry in content:
        assert [len(entry["top_logprobs"]), entry["logprob"]] == [2, entry["top_logprobs"][0]["logprob"]]
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]


def test_echo_with_logprobs_scores_the_prompt(ask, make_llm):
    """What lm-eval asks for."""
    body = TEXT | {"echo": True, "logprobs": 1, "max_tokens": 1, "prompt": [97, 98, 99, 97]}
    scored, nothing, streamed = ask(COMPLETIONS, body, body | {"max_tokens": 0}, body | {"stream": True})
    choice = scored.json()["choices"][0]
    expected = alone(make_llm, [97, 98, 99, 97], max_tokens=1, logprobs=1, prompt_logprobs=1)
    prompt_scores = [None if each is None else each.logprob for each in expected.prompt_logprobs]
    assert choice["logprobs"]["token_logprobs"] == [*prompt_scores, expected.outputs[0].logprobs[0].logprob]
    assert choice["text"] == "abca" + expected.text
    assert nothing.json()["choices"][0]["text"] == "abca"
    assert nothing.json()["usage"]["completion_tokens"] == 0
    assert events(streamed)[0]["choices"] == scored.json()["choices"]


def test_alternatives_of_completions_are_told_apart():
    """Also those that are parts of a character; the token itself is always among them."""
    parts = ((1, b"\xf0\x9f", -1.0), (2, b"\xf0", -2.0), (3, b"a", -3.0), (4, b"a", -4.0))
    own = Piece(5, "", b" \xe2", "target", -9.0, parts)
    [told] = text_logprobs([own], TextOffsets())["top_logprobs"]
    assert told == {"bytes:\\xf0\\x9f": -1.0, "bytes:\\xf0": -2.0, "a": -3.0, "bytes: \\xe2": -9.0}
    [told] = text_logprobs([Piece(3, "a", b"a", "target", -3.0, parts)], TextOffsets())["top_logprobs"]
    assert told == {"bytes:\\xf0\\x9f": -1.0, "bytes:\\xf0": -2.0, "a": -3.0}


@pytest.mark.parametrize("num_top", [0, 1, 3])
def test_the_drawn_token_is_among_the_alternatives(ask, num_top):
    body = TEXT | {"temperature": 3.0, "seed": 1, "max_tokens": 20, "logprobs": num_top}
    for answer in ask(COMPLETIONS, body, body | {"echo": True}):
        told = answer.json()["choices"][0]["logprobs"]
        sizes = set()
        for token, logprob, top in zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True):
            assert top is None if logprob is None else top[token] == logprob
            sizes.add(len(top or {}) or num_top)
        assert sizes <= {num_top, num_top + 1} and num_top + 1 in sizes
        assert told["top_logprobs"].count(None) == (len(told["tokens"]) > 20)


def test_offsets_are_places_in_the_text(ask):
    """Also of tokens that are parts of a character, and in streams."""
    offsets = TextOffsets()
    assert [offsets.next(each) for each in ("ü"[:1].encode(), "🚲".encode()[:2], "🚲".encode()[2:], b"a")] == [
        0,
        1,
        1,
        2,
    ]
    whole, streamed = ask(COMPLETIONS, TEXT | {"logprobs": 0}, TEXT | {"logprobs": 0, "stream": True})
    told = [event["choices"][0]["logprobs"]["text_offset"] for event in events(streamed) if event["choices"]]
    assert [at for each in told for at in each] == whole.json()["choices"][0]["logprobs"]["text_offset"]


def test_stop_ids_least_tokens_and_bad_words_reach_the_sampler(ask, make_llm):
    expected = alone(make_llm)
    stop = expected.token_ids[5]
    [stopped, least] = ask(
        COMPLETIONS, TEXT | {"stop_token_ids": [stop]}, TEXT | {"stop_token_ids": [stop], "min_tokens": 9}
    )
    assert stopped.json()["choices"][0]["finish_reason"] == "stop"
    assert stopped.json()["usage"]["completion_tokens"] <= 6
    assert least.json()["usage"]["completion_tokens"] >= 9


def test_a_prediction_and_wishes_about_drafts(ask, make_llm):
    expected = alone(make_llm, "abcabcabc", max_tokens=40, logit_bias=dict.fromkeys((128, 129, 130), -100.0))
    body = TEXT | {"max_tokens": 40, "logit_bias": {"128": -100, "129": -100, "130": -100}}
    content = {"type": "content", "content": expected.text}
    plain, off, predicted, traced = ask(
        COMPLETIONS, body, body | {"speculative": False, "paceline": {"stats": True}}, body | {"prediction": content},
        body | {"prediction": expected.text, "speculative": {"num_draft_tokens": 2}, "paceline": {"trace": True}},
    )  # fmt: skip
    assert len({each.json()["choices"][0]["text"] for each in (plain, off, predicted, traced)}) == 1
    assert off.json()["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    details = predicted.json()["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 20 and details["rejected_prediction_tokens"] >= 0
    tokens = traced.json()["choices"][0]["paceline"]["tokens"]
    assert "".join(token["text"] for token in tokens) == plain.json()["choices"][0]["text"]
    assert {token["provenance"] for token in tokens} > {"drafted"}
    assert len(traced.json()["paceline"]["choices"][0]["drafted_per_level"]) == 2


@pytest.mark.parametrize(
    ("rule", "temperature", "lossy"), [("typical", 1, True), ("typical", 0, False), ("p/q", 1, False)]
)
def test_an_answer_under_a_lossy_rule_is_marked(serving, rule, temperature, lossy):
    log = io.StringIO()
    body = TEXT | {"temperature": temperature, "seed": 1, "max_tokens": 20, "logit_bias": {"97": 100, "98": 100},
                   "speculative": {"num_draft_tokens": 3, "policy": "fixed"}}  # fmt: skip
    bodies = [body | {"paceline": {"stats": True}}, body | {"paceline": {"trace": True}}]

    async def scene():
        async with serving(speculative={"method": "ngram", "rule": rule}, log=log) as client:
            whole = [(await client.post(COMPLETIONS, json=each)).json() for each in bodies]
            streams = [await client.post(COMPLETIONS, json=each | {"stream": True}) for each in bodies]
            return whole, [events(each) for each in streams]

    (stats, trace), streams = asyncio.run(scene())
    assert stats["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    assert [each["paceline"]["choices"][0]["lossy"] for each in (stats, trace)] == [lossy] * 2
    assert [each[-1]["paceline"]["choices"][0]["lossy"] for each in streams] == [lossy] * 2
    assert trace["choices"][0]["paceline"]["lossy"] is lossy
    *earlier, last = [choice for each in streams[1] for choice in each["choices"]]
    assert last["paceline"]["lossy"] is lossy and not any("lossy" in each["paceline"] for each in earlier)
    assert [json.loads(line).get("lossy", False) for line in log.getvalue().splitlines()] == [lossy] * 4


def test_cached_tokens_and_continuous_usage_are_told(serving):
    async def scene():
        async with serving() as client:
            body = TEXT | {"prompt": "x" * 40, "max_tokens": 4}
            first = (await client.post(COMPLETIONS, json=body)).json()["usage"]
            second = (await client.post(COMPLETIONS, json=body)).json()["usage"]
            always = {"include_usage": True, "continuous_usage_stats": True}
            streamed = events(await client.post(COMPLETIONS, json=body | {"stream": True, "stream_options": always}))
            return first, second, streamed

    first, second, streamed = asyncio.run(scene())
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] >= 32
    assert all("usage" in event for event in streamed)
    assert streamed[-1]["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, TEXT), (CHATS, CHAT | {"logprobs": True})])
def test_counts_at_the_end_are_null_before(ask, path, body):
    settings = Settings(stream_interval=2)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    counted, plain = ask(path, body | options, body | {"stream": True}, settings=settings)
    *before, last = events(counted)
    assert len(before) > 2 and all(event["usage"] is None and event["choices"] for event in before)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] > 0
    assert not any("usage" in event for event in events(plain))


def test_options_of_a_stream_are_refused_without_one(ask):
    for path, body in ((COMPLETIONS, TEXT), (CHATS, CHAT)):
        options = [{"include_usage": True}, {"include_usage": False}, {}, {"include_usage": None}]
        bodies = [body | {"stream_options": each} for each in options]
        refused, also, *fine = ask(path, *bodies, body | {"stream_options": None})
        assert [each.status_code for each in (refused, also, *fine)] == [400, 400, 200, 200, 200]
        assert refused.json()["error"]["param"] == "stream_options"
        assert "only allowed with stream" in refused.json()["error"]["message"]


def test_counts_are_told_with_every_event(ask):
    """Those of tokens that nobody asked to see; how many come with one event depends on who is quicker."""
    always = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    [answer] = ask(COMPLETIONS, TEXT | {"max_tokens": 6, "speculative": False} | always)
    told = [event["usage"] for event in events(answer) if event["choices"]]
    counts = [usage["completion_tokens"] for usage in told]
    assert counts == sorted(set(counts)) and counts[0] >= 1 and counts[-1] == 6
    assert {usage["prompt_tokens"] for usage in told} == {9}


def test_the_best_of_several_samples(ask):
    body = TEXT | {"temperature": 2.0, "seed": 5, "max_tokens": 6}
    best, every = ask(COMPLETIONS, body | {"n": 2, "best_of": 6}, body | {"n": 6, "logprobs": 0})
    means = [(sum(each["logprobs"]["token_logprobs"]) / len(each["logprobs"]["tokens"]), each["text"])
             for each in every.json()["choices"]]  # fmt: skip
    told = best.json()
    assert [each["text"] for each in told["choices"]] == [text for _, text in sorted(means, reverse=True)[:2]]
    assert [each["index"] for each in told["choices"]] == [0, 1] and told["choices"][0]["logprobs"] is None
    assert told["usage"]["completion_tokens"] == every.json()["usage"]["completion_tokens"]
    same, few, stream = ask(
        COMPLETIONS, body | {"n": 2, "best_of": 2}, body | {"n": 2, "best_of": 1},
        body | {"best_of": 2, "stream": True},
    )  # fmt: skip
    assert same.status_code == 200 and len(same.json()["choices"]) == 2
    assert [each.json()["error"]["param"] for each in (few, stream)] == ["best_of", "best_of"]


def test_what_ended_an_answer_is_told(ask, make_llm):
    text, ids = alone(make_llm).text, alone(make_llm).token_ids
    by_text, by_id, by_length = ask(
        COMPLETIONS, TEXT | {"stop": ["never", text[2:4]]}, TEXT | {"stop_token_ids": [ids[3]]}, TEXT
    )
    assert by_text.json()["choices"][0]["stop_reason"] == text[2:4]
    assert by_id.json()["choices"][0]["stop_reason"] == ids[3]
    assert "stop_reason" not in by_length.json()["choices"][0]


def test_events_of_so_many_tokens_do_not_show_what_was_drafted(ask):
    body = TEXT | {"max_tokens": 20, "stream": True, "speculative": {"num_draft_tokens": 4, "policy": "fixed"}}
    counted = {"return_token_ids": True, "prediction": "abcabcabcabc"}
    joined, plain = (
        ask(COMPLETIONS, body | counted, settings=settings)[0] for settings in (Settings(stream_interval=3), Settings())
    )
    sizes = [len(event["choices"][0]["token_ids"]) for event in events(joined)]
    assert sizes[:-1] == [3] * (len(sizes) - 1) and sum(sizes) == 20
    text = ["".join(event["choices"][0]["text"] for event in events(each)) for each in (joined, plain)]
    assert text[0] == text[1]


def test_token_ids_are_returned(ask, make_llm):
    choice = ask(COMPLETIONS, TEXT | {"return_token_ids": True})[0].json()["choices"][0]
    assert choice["token_ids"] == list(alone(make_llm).token_ids)
    assert choice["prompt_token_ids"] == list(b"abcabcabc")


def test_tokenising(ask):
    [answer] = ask("/tokenize", {"prompt": "abc", "return_token_strs": True})
    assert answer.json()["tokens"] == [97, 98, 99] and answer.json()["token_strs"] == ["a", "b", "c"]
    assert answer.json()["count"] == 3 and answer.json()["max_model_len"] > 3
    assert ask("/tokenize", {"messages": CHAT["messages"]})[0].json()["count"] == len("user: hello\nassistant: ")
    assert ask("/detokenize", {"tokens": [97, 98]})[0].json() == {"prompt": "ab"}
    assert ask("/detokenize", {"tokens": [9999]})[0].status_code == 400


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (TEXT | {"tools": [{"type": "function"}]}, 400, "tools"),
        (TEXT | {"n": 0}, 400, "n"),
        (TEXT | {"prompt": ["a"] * 65}, 400, "prompt"),
        (TEXT | {"prompt": []}, 400, "prompt"),
        (TEXT | {"prompt": "x" * 100_000}, 400, "prompt"),
        (TEXT | {"prompt": [5000]}, 400, "prompt"),
        (TEXT | {"temperature": "hot"}, 400, "temperature"),
        (TEXT | {"logit_bias": {"1": 1e308}}, 400, "logit_bias"),
        (TEXT | {"repetition_penalty": 1e-308}, 400, "repetition_penalty"),
        (TEXT | {"timeout": 0}, 400, "timeout"),
        (TEXT | {"slo": 1.0}, 400, "slo"),
        (TEXT | {"speculative": {"method": "eagle"}}, 400, "speculative.method"),
        (TEXT | {"speculative": {"rule": "zzz"}}, 400, "speculative.rule"),
        (TEXT | {"speculative": {"rule": "typical"}}, 400, "speculative.rule"),
        (TEXT | {"speculative": {"foo": 1}}, 400, "speculative.foo"),
        (TEXT | {"model": "other"}, 404, "model"),
        (TEXT | {"model": 3}, 400, "model"),
        (TEXT | {"messages": []}, 400, "messages"),
        (TEXT | {"paceline": {"x": 1}}, 400, "paceline"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_have_openais_shape(ask, body, status, param, stream):
    [response] = ask(COMPLETIONS, body | {"stream": stream})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param and error["type"] == "invalid_request_error" and error["message"]


def test_what_is_no_request_is_told_in_the_same_shape(serving):
    async def scene():
        async with serving() as client:
            json_type = {"content-type": "application/json"}
            answers = [
                await client.get("/nowhere"),
                await client.get(COMPLETIONS),
                await client.post(COMPLETIONS, content=b"{", headers=json_type),
                await client.post(COMPLETIONS, content=b"[1]", headers=json_type),
                await client.post(COMPLETIONS, content=b'{"prompt": NaN}', headers=json_type),
                await client.post(COMPLETIONS, content=b"[" * 30_000, headers=json_type),
                await client.post(COMPLETIONS, content=rb'{"prompt": "\ud800"}', headers=json_type),
                await client.post(COMPLETIONS, content=b"{}", headers={"content-type": "text/plain"}),
                await client.post(COMPLETIONS, content=b"x" * (5 << 20), headers=json_type),
            ]
            return [(answer.status_code, set(answer.json()["error"])) for answer in answers]

    told = asyncio.run(scene())
    assert [status for status, _ in told] == [404, 405, 400, 400, 400, 400, 400, 415, 413]
    assert all(fields == {"message", "type", "param", "code"} for _, fields in told)


def test_a_request_that_fails_says_why(serving):
    """Every token would end its text, and none may yet."""
    body = TEXT | {"min_tokens": 5, "stop_token_ids": list(range(131))}

    async def scene():
        async with serving() as client:
            whole = await client.post(COMPLETIONS, json=body)
            streamed = await client.post(COMPLETIONS, json=body | {"stream": True})
            after = await client.post(COMPLETIONS, json=TEXT)
            return whole, streamed, after

    whole, streamed, after = asyncio.run(scene())
    choice = whole.json()["choices"][0]
    assert choice["finish_reason"] == "error" and "every token is forbidden" in choice["error"]["message"]
    last = json.loads(streamed.text.strip().splitlines()[-1].removeprefix("data: "))
    assert "every token is forbidden" in last["error"]["message"]
    assert after.status_code == 200


def test_impossible_tokens_have_a_number_json_can_hold(ask):
    body = TEXT | {"logprobs": 5, "logprobs_mode": "processed", "top_k": 1, "temperature": 1, "max_tokens": 2}
    told = ask(COMPLETIONS, body)[0].json()["choices"][0]["logprobs"]
    assert all(math.isfinite(each) for each in told["token_logprobs"])
