"""Thoughts before an answer are told apart from it, however the text is cut, whole and streamed."""

import asyncio
from dataclasses import replace

import pytest

from paceline.models.loaded import LoadedModel
from paceline.models.text.thought_tags import THINK, THOUGHT_TAGS, thought_tags
from paceline.serving.models.job import Chunk
from paceline.serving.models.worker import _thinking as thinking_of
from paceline.serving.models.worker import _without_thought as closed
from paceline.serving.protocol.answers import Answer, Wish
from paceline.serving.protocol.openai import ChatRequest
from paceline.serving.protocol.thoughts import ThoughtReader
from tests.serving.conftest import MODEL, ChatTokenizer, events

CHATS = "/v1/chat/completions"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 12}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_tokens_of_thoughts_are_counted_however_they_come(size):
    texts = ("<think>", "I", " think", " so", "</think>", "\n\n", "Yes", ".")
    answer, chunks = Answer("x", "m", Wish(is_chat=True, prompts=("p",))), []
    for start in range(0, len(texts), size):
        part, reason = texts[start : start + size], "stop" if start + size >= len(texts) else None
        chunk = Chunk("".join(part), reason, num_tokens=len(part), num_output_tokens=8, thinking="tagged", texts=part)
        chunks.append((0, chunk))
    whole = answer.whole(chunks)
    message = whole["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("I think so", "Yes.")
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("text", "is_open", "thoughts", "answer"),
    [
        ("<think>\nLet me see.\n</think>\n\nYes, a < b.", False, "Let me see.", "Yes, a < b."),
        ("\n<think>a</thin b</think>c", False, "a</thin b", "c"),
        ("I see.\n</think>\n\nYes", True, "I see.", "Yes"),
        ("<think>\n\n</think>\n\nYes", False, "", "Yes"),
        ("no thoughts <think>at all</think>", False, "", "no thoughts <think>at all</think>"),
        ("  <thin air", False, "", "  <thin air"),
        ("<think>cut off </th", False, "cut off </th", ""),
        ("cut off", True, "cut off", ""),
        ("<thi", False, "", "<thi"),
        ("", False, "", ""),
        ("a</think>b</think>c", True, "a", "b</think>c"),
    ],
)
def test_however_the_text_is_cut(text, is_open, thoughts, answer, size):
    reader, told = ThoughtReader(is_open), ["", ""]
    pieces = [text[start : start + size] for start in range(0, len(text), size)] or [""]
    for number, piece in enumerate(pieces, 1):
        for part, more in enumerate(reader.push(piece, ended=number == len(pieces))):
            told[part] += more
    assert told == [thoughts, answer]


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("tags", THOUGHT_TAGS, ids=lambda tags: tags.closing)
def test_every_model_has_tags_of_its_own(tags, size):
    text, reader, told = (
        f"{tags.opening}\nHm, <t>?\n{tags.closing}\n\nYes.",
        ThoughtReader(False, tags=tags[:2]),
        ["", ""],
    )
    for start in range(0, len(text), size):
        for part, more in enumerate(reader.push(text[start : start + size], ended=start + size >= len(text))):
            told[part] += more
    assert told == ["Hm, <t>?", "Yes."]
    assert thought_tags("{{ messages }} " + tags.opening + tags.closing) is tags
    assert thought_tags("{{ messages }}") is None


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("text", "thoughts", "answer"),
    [
        ("<think>a</think>\n\nFirst.<think>b</think>\n\nThen <t.", "a\nb", "First.Then <t."),
        ("First.<think>cut </th", "cut </th", "First."),
        ("  none <thin", "", "  none <thin"),
    ],
)
def test_thoughts_between_parts_of_an_answer(text, thoughts, answer, size):
    reader, told = ThoughtReader(is_open=False, several=True), ["", ""]
    for start in range(0, len(text), size):
        for part, more in enumerate(reader.push(text[start : start + size], ended=start + size >= len(text))):
            told[part] += more
    assert told == [thoughts, answer]


def test_only_gpt_oss_thinks_between_parts(monkeypatch):
    tokenizer = ThinkingTokenizer()
    prompt = tokenizer.encode("a<think>")
    job = ChatRequest.model_validate(CHAT).jobs("1")[0]
    assert thinking_of(job, prompt, tokenizer) == "open"
    monkeypatch.setattr(ThinkingTokenizer, "speaks_harmony", True)
    assert thinking_of(job, prompt, tokenizer) == "several"


def test_a_thought_that_the_template_opens_is_closed_before_a_grammar(monkeypatch):
    tokenizer = ThinkingTokenizer()
    prompt = tokenizer.encode("a<think>\n")
    bound = CHAT | {"structured_outputs": {"choice": ["yes"]}}
    [job], [free] = (ChatRequest.model_validate(body).jobs("1") for body in (bound, CHAT))
    assert tokenizer.decode(closed(job, prompt, tokenizer)) == "\n</think>\n\n"
    assert closed(free, prompt, tokenizer) == closed(job, tokenizer.encode("a"), tokenizer) == []
    assert closed(job, tokenizer.encode("Why <think>?\nassistant\n"), tokenizer) == []  # the user's own words
    told = CHAT | {"structured_outputs": {"choice": ["yes"]}, "chat_template_kwargs": {"enable_thinking": True}}
    assert ChatRequest.model_validate(told).jobs("1")[0].template["enable_thinking"] is False
    assert job.template["enable_thinking"] is False and "enable_thinking" not in free.template
    monkeypatch.setattr(ThinkingTokenizer, "speaks_harmony", True)
    assert closed(job, prompt, tokenizer) == []


class ThinkingTokenizer(ChatTokenizer):
    """Its template opens a thought; the tiny model never closes it."""

    thought_tags = THINK

    def apply_chat_template(self, messages, add_generation_prompt=True, variables=None):
        opening = "" if (variables or {}).get("enable_thinking") is False else "<think>\n"
        return super().apply_chat_template(messages) + opening


@pytest.fixture
def loaded(loaded):
    return LoadedModel(replace(loaded.source, tokenizer=ThinkingTokenizer()), loaded.model)


def test_a_model_that_thinks_aloud(serving):
    pytest.importorskip("llguidance")

    async def scene():
        async with serving() as client:
            off = CHAT | {"chat_template_kwargs": {"enable_thinking": False}}
            bodies = (CHAT, CHAT | {"stream": True}, off, CHAT | {"structured_outputs": {"choice": ["yes"]}})
            response = {"model": MODEL, "input": "hello", "max_output_tokens": 12, "temperature": 0}
            silent = [
                await client.post("/v1/messages", json=CHAT | {"thinking": {"type": "disabled"}}),
                await client.post("/v1/responses", json=response | {"reasoning": {"effort": "none"}}),
                await client.post(CHATS, json=CHAT | {"reasoning_effort": "none"}),
            ]
            others = [await client.post("/v1/messages", json=CHAT), await client.post("/v1/responses", json=response)]
            return [await client.post(CHATS, json=body) for body in bodies], others + silent

    (whole, streamed, off, bound), others = asyncio.run(scene())
    message = whole.json()["choices"][0]["message"]
    assert message["reasoning_content"] and message["content"] == ""
    assert whole.json()["usage"]["completion_tokens_details"]["reasoning_tokens"] == 12
    deltas = [event["choices"][0]["delta"] for event in events(streamed)]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == message["reasoning_content"]
    assert "".join(d["content"] for d in deltas) == ""
    assert off.json()["choices"][0]["message"]["content"]
    assert bound.json()["choices"][0]["message"] == {"role": "assistant", "content": "yes", "refusal": None}
    assert others[0].json()["content"][0]["type"] == "thinking"
    assert others[1].json()["output"][0]["type"] == "reasoning"
    assert others[2].json()["content"][0]["type"] == "text"
    assert others[3].json()["output"][0]["type"] == "message"
    assert others[4].json()["choices"][0]["message"]["content"]
