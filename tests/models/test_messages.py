"""Conversations in OpenAI's and vLLM's forms."""

import pytest

from paceline.errors import InvalidParameter
from paceline.models.text.messages import plain_messages

CALL = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "good "}, {"type": "text", "text": "morning"}]
    assert plain_messages([{"role": "user", "content": parts}]) == [{"role": "user", "content": "good morning"}]


@pytest.mark.parametrize("turn", [{"content": None}, {}])
def test_a_turn_that_calls_tools_needs_no_content(turn):
    asked, told = {"role": "user", "content": "what time is it?"}, {"role": "tool", "content": "ten"}
    found = plain_messages([asked, {"role": "assistant", "tool_calls": [CALL], **turn}, told])
    assert found[1]["content"] == "" and found[1]["tool_calls"][0]["function"]["arguments"] == {"zone": "UTC"}
    assert [found[0], found[2]] == [asked, told]


@pytest.mark.parametrize("calls", [None, []])
def test_a_turn_without_calls_has_no_list_of_them(calls):
    """The template of gpt-oss takes the first call wherever there is a list."""
    said = {"role": "assistant", "content": "ten"}
    assert plain_messages([said | {"tool_calls": calls}]) == [said]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("hi", r"messages: 'hi' is no list"),
        (None, r"messages: None is no list"),
        ({"role": "user", "content": "hi"}, r"messages: .* is no list"),
        ([], "messages: the list is empty"),
        (["hi"], r"messages\[0\]: 'hi' is no message"),
        ([{"content": "hi"}], r"messages\[0\]\.role: is missing"),
        ([{"role": "user"}], r"messages\[0\]\.content: is missing"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], r"messages\[0\]\.content: None is not a text"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content: 5 is not a text"),
        ([{"role": "user", "content": ["hi"]}], r"content\[0\]: 'hi' is no part"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\]: a part of type 'image_url'"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\]\.text: is missing"),
    ],
)
def test_what_is_no_conversation_is_refused_by_its_place(messages, said):
    with pytest.raises(InvalidParameter, match=said):
        plain_messages(messages)


def test_arguments_that_are_no_json_stay_as_they_are():
    broken = {"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": "{"}}, 3]}
    assert plain_messages([broken]) == [broken]
