"""Earlier calls reach models whose template knows of no tools, and earlier thoughts those that want them."""

import asyncio
from dataclasses import replace

import pytest

from paceline.errors import InvalidParameter
from paceline.models.loaded import LoadedModel
from paceline.serving.protocol.anthropic import Messages
from paceline.serving.protocol.responses import Responses
from tests.serving.conftest import ChatTokenizer
from tests.serving.protocol.test_tools import CHAT, CHATS


class ToollessTokenizer(ChatTokenizer):
    """Its template has no place for tools, and none for calls."""

    reads_tools = False


@pytest.fixture
def loaded(loaded):
    return LoadedModel(replace(loaded.source, tokenizer=ToollessTokenizer()), loaded.model)


@pytest.mark.parametrize("tools", [[], [{"type": "function", "function": {"name": "rain"}}]])
def test_earlier_calls_are_written_for_templates_that_know_no_tools(serving, tools):
    calls = [{"id": str(n), "type": "function", "function": {"name": "clock", "arguments": given}}
             for n, given in enumerate(('{"zone": "UTC"}', '{"zo'))]  # fmt: skip
    turn = {"role": "assistant", "content": "Let me see.", "tool_calls": calls}
    body = CHAT | {"messages": [*CHAT["messages"], turn], "tools": tools, "return_token_ids": True, "max_tokens": 1}

    async def scene():
        async with serving() as client:
            return (await client.post(CHATS, json=body)).json()["choices"][0]["prompt_token_ids"]

    prompt = bytes(asyncio.run(scene())).decode()
    assert prompt.endswith(
        'user: hello\nassistant: Let me see.\n<tool_call>{"name": "clock", "arguments": {"zone": "UTC"}}</tool_call>\n'
        '<tool_call>{"name": "clock", "arguments": "{\\"zo"}</tool_call>\nassistant: '
    )
    assert ('"rain"' in prompt) == bool(tools)


def test_earlier_thoughts_are_those_of_the_turn_that_follows_them():
    """As `reasoning_content`, of which the template of gpt-oss is given what comes before a call."""
    call = {"type": "function_call", "call_id": "1", "name": "clock", "arguments": "{}"}
    parts = [{"type": "reasoning_text", "text": "Ask "}, {"type": "reasoning_text", "text": "first."}]
    thought = {"type": "reasoning", "summary": [], "content": parts}
    secret = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
    output = {"type": "function_call_output", "call_id": "1", "output": "noon"}
    said = {"role": "assistant", "content": "Noon."}
    asked = {"role": "user", "content": "When?"}
    items = [asked, thought, call, output, secret, said, thought, asked]
    turns = Responses().request({"model": "m", "input": items})["messages"]
    assert [turn.get("reasoning_content") for turn in turns] == [None, "Ask first.", None, None, None]
    used = {"type": "tool_use", "id": "1", "name": "clock", "input": {}}
    thoughts = [{"type": "thinking", "thinking": "Ask ", "signature": ""}, {"type": "redacted_thinking", "data": "x"},
                {"type": "thinking", "thinking": "first.", "signature": ""}]  # fmt: skip
    result = {"type": "tool_result", "tool_use_id": "1", "content": "noon"}
    talk = [asked, {"role": "assistant", "content": [*thoughts, used]}, {"role": "user", "content": [result]}]
    theirs = Messages().request({"model": "m", "messages": talk, "max_tokens": 5})["messages"]
    assert [turn.get("reasoning_content") for turn in theirs] == [None, "Ask first.", None]


@pytest.mark.parametrize("content", ["x", ["x"], [{"type": "reasoning_text"}]])
def test_thoughts_that_are_no_text_are_refused(content):
    with pytest.raises(InvalidParameter, match=r"^input\[0\]: a reasoning item"):
        Responses().request({"model": "m", "input": [{"type": "reasoning", "content": content}]})
    turn = {"role": "assistant", "content": [{"type": "thinking", "thinking": [content]}]}
    with pytest.raises(InvalidParameter, match=r"^messages\[0\]: a thinking block without its text"):
        Messages().request({"model": "m", "messages": [turn], "max_tokens": 5})
