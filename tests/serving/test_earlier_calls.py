"""Earlier calls of a conversation reach models whose chat template knows of no tools."""

import asyncio
from dataclasses import replace

import pytest

from paceline.models.loaded import LoadedModel
from tests.serving.conftest import ChatTokenizer
from tests.serving.test_tools import CHAT, CHATS


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
