"""How the prompt of a chat ends, and that /tokenize counts what the chat itself counts."""

import asyncio

import pytest

from paceline.errors import InvalidParameter
from tests.serving.conftest import MODEL

CHATS, MESSAGES, TOKENIZE = "/v1/chat/completions", "/v1/messages", "/tokenize"
ASKED = {"role": "user", "content": "hello"}
BEGUN = {"role": "assistant", "content": "I say "}
TOOL = {"type": "function", "function": {"name": "clock"}}
CHAT = {"model": MODEL, "messages": [ASKED], "temperature": 0, "max_tokens": 6, "ignore_eos": True,
        "return_token_ids": True}  # fmt: skip


def prompt_of(answer):
    assert answer.status_code == 200, answer.text
    return bytes(answer.json()["choices"][0]["prompt_token_ids"]).decode()


def test_the_prompt_ends_as_asked(ask):
    both = {"messages": [ASKED, BEGUN]}
    opened, closed, continued, plain = ask(
        CHATS, CHAT, CHAT | {"add_generation_prompt": False}, CHAT | both | {"continue_final_message": True},
        CHAT | both,
    )  # fmt: skip
    assert prompt_of(opened) == "user: hello\nassistant: "
    assert prompt_of(closed) == "user: hello\n"
    assert prompt_of(continued) == "user: hello\nassistant: I say "
    assert prompt_of(plain) == "user: hello\nassistant: I say \nassistant: "


def test_a_message_that_the_assistant_has_begun_is_continued(ask):
    """What Anthropic calls a prefill; its answer is what follows."""
    body = {"model": MODEL, "max_tokens": 6, "temperature": 0, "messages": [ASKED, BEGUN]}
    blocks = body | {"messages": [ASKED, {"role": "assistant", "content": [{"type": "text", "text": "I say "}]}]}
    whole, listed = ask(MESSAGES, body, blocks)
    [chat] = ask(CHATS, CHAT | {"messages": [ASKED, BEGUN], "continue_final_message": True, "ignore_eos": False})
    assert whole.json()["content"][0]["text"] == chat.json()["choices"][0]["message"]["content"] != ""
    assert listed.json()["content"] == whole.json()["content"]
    [count] = ask("/v1/messages/count_tokens", body)
    assert count.json()["input_tokens"] == len("user: hello\nassistant: I say ")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHATS, {"continue_final_message": True}, "continue_final_message"),
        (CHATS, {"messages": [ASKED, BEGUN], "continue_final_message": True, "add_generation_prompt": True},
         "continue_final_message"),
        (CHATS, {"messages": [ASKED, BEGUN | {"tool_calls": [{"function": {"name": "f"}}]}],
                 "continue_final_message": True}, "continue_final_message"),
        (CHATS, {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        (CHATS, {"chat_template_kwargs": {"messages": [ASKED]}}, "chat_template_kwargs"),
        (CHATS, {"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs"),
        (MESSAGES, {"messages": [ASKED, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "1", "name": "f", "input": {}}]}]}, "messages"),
    ],
)  # fmt: skip
def test_wishes_that_contradict_each_other_are_refused(ask, path, body, param):
    good = CHAT if path == CHATS else {"model": MODEL, "max_tokens": 4, "messages": [ASKED]}
    [answer] = ask(path, good | body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_tokenize_counts_what_the_chat_counts(serving):
    variants = [
        {}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "none"}, {"add_generation_prompt": False},
        {"messages": [ASKED, BEGUN], "continue_final_message": True}, {"chat_template_kwargs": {"x": 1}, "tools": None},
    ]  # fmt: skip

    async def scene():
        async with serving() as client:
            told = []
            for each in variants:
                chat = await client.post(CHATS, json=CHAT | each)
                counted = await client.post(TOKENIZE, json={"model": MODEL, "messages": [ASKED]} | each)
                told.append((chat.json()["choices"][0]["prompt_token_ids"], counted.json()["tokens"],
                             chat.json()["usage"]["prompt_tokens"], counted.json()["count"]))  # fmt: skip
            return told

    told = asyncio.run(scene())
    assert all(chat == counted and total == count for chat, counted, total, count in told)
    assert len({total for *_, total in told}) == 4


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "a", "foo": 1}, "foo"),
        ({"messages": [ASKED], "foo": 1}, "foo"),
        ({"prompt": "a", "tools": [TOOL]}, "tools"),
        ({"prompt": "a", "add_generation_prompt": False}, "add_generation_prompt"),
        ({"messages": [ASKED], "tools": [3]}, "tools"),
        ({"messages": [ASKED], "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": [ASKED], "prompt": "a"}, "prompt"),
    ],
)
def test_tokenize_refuses_what_it_does_not_heed(ask, body, param):
    passed, refused = ask(TOKENIZE, {"prompt": "a", "tools": [], "user": "me", "foo": None}, body)
    assert passed.status_code == 200
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param, refused.text


def test_a_template_that_leaves_the_final_message_out_cannot_be_continued(make_llm, monkeypatch):
    llm = make_llm()
    monkeypatch.setattr(llm.tokenizer, "apply_chat_template", lambda *_, **__: "nothing", raising=False)
    with pytest.raises(InvalidParameter, match="does not write the text"):
        llm.chat_prompt([ASKED, BEGUN], continue_final_message=True)
    for malformed in ([], [3], [{"role": "assistant"}]):
        with pytest.raises(InvalidParameter):
            llm.chat_prompt(malformed, continue_final_message=True)
