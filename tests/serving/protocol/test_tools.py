"""Tools: demanded calls fit their schema, free ones are taken out of the text, in whole answers and in streams."""

import json

import pytest

from paceline.errors import InvalidParameter
from paceline.models.text.call_formats import BARE_JSON, CALL_FORMATS, HERMES
from paceline.models.text.tools import explained
from paceline.serving.models.job import Chunk
from paceline.serving.protocol.answers import Answer, Wish
from paceline.serving.protocol.anthropic import Messages
from paceline.serving.protocol.openai import ChatRequest
from paceline.serving.protocol.tools import CallReader, ToolChoice, readable_calls
from paceline.serving.settings import Settings
from tests.serving.conftest import MODEL, events


def tool(name, **properties):
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}


TOOLS = [tool("weather", city={"enum": ["Oslo", "Rome"]}), tool("clock", zone={"enum": ["UTC"]})]
SCHEMAS = {each["function"]["name"]: each["function"]["parameters"] for each in TOOLS}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "tools": TOOLS}
CHATS = "/v1/chat/completions"
CALL = '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'


def called(choice):
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in choice["tool_calls"]]


def joined(deltas):
    """The arguments of a streamed call."""
    return "".join(call["function"]["arguments"] for call in deltas)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_demanded_call_fits_its_schema(ask, choice):
    pytest.importorskip("llguidance")
    body, settings = CHAT | {"tool_choice": choice}, Settings(stream_interval=3)
    whole, streamed = ask(CHATS, body, body | {"stream": True}, settings=settings)
    answer = whole.json()["choices"][0]
    [(name, arguments)] = called(answer["message"])
    assert answer["finish_reason"] == "tool_calls" and answer["message"]["content"] is None
    assert name in ({"weather", "clock"} if choice == "required" else {"weather"})
    assert arguments in ({"city": "Oslo"}, {"city": "Rome"}, {"zone": "UTC"})
    first, *others, last = [event["choices"][0] for event in events(streamed)]
    [head], role = first["delta"].pop("tool_calls"), first["delta"]
    assert role == {"role": "assistant", "content": None}
    function = {"name": name, "arguments": ""}
    assert head == {"index": 0, "id": head["id"], "type": "function", "function": function}
    fragments = [piece["delta"].pop("tool_calls") for piece in others]
    assert len(fragments) > 1 and not any(piece["delta"] or piece["finish_reason"] for piece in others)
    assert all(set(call) == {"index", "function"} for [call] in fragments)
    told = "".join(call["function"]["arguments"] for [call] in fragments)
    assert told == answer["message"]["tool_calls"][0]["function"]["arguments"]
    assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")


def test_tools_reach_the_template_unless_they_may_not_be_used(ask):
    body = {"temperature": 0, "max_tokens": 5, "ignore_eos": True}
    offered, refused, none = ask(CHATS, CHAT | body, CHAT | body | {"tool_choice": "none"}, CHAT | body | {"tools": []})
    tokens = [answer.json()["usage"]["prompt_tokens"] for answer in (offered, refused, none)]
    assert tokens[0] > tokens[1] == tokens[2]
    assert offered.json()["choices"][0]["message"]["content"] is not None


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "shown", "names"),
    [
        (f"Let me see.\n\n{CALL}\n{CALL}\n", "Let me see.", ["clock", "clock"]),
        (f"{CALL}{CALL} done", " done", ["clock", "clock"]),
        ("a < b, <tool_box> and <tool_call", "a < b, <tool_box> and <tool_call", []),
        (CALL.removesuffix("\n</tool_call>"), "", ["clock"]),
        ("<tool_call>no json</tool_call>", "<tool_call>no json</tool_call>", []),
        ('<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
         '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', []),
        ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
    ],
)  # fmt: skip
def test_calls_are_taken_out_however_the_text_is_cut(text, shown, names, size):
    reader = CallReader(SCHEMAS, False)
    seen, calls = "", []
    for start in range(0, len(text), size):
        more, fresh = reader.push(text[start : start + size])
        seen, calls = seen + more, calls + fresh
    more, fresh = reader.push("", ended=True)
    assert seen + more == shown
    assert [call["function"]["name"] for call in calls + fresh] == names


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    ("text", "shown", "names"),
    [
        ('{"name": "clock", "parameters": {"zone": "UTC"}}', "", ["clock"]),
        (' [{"name": "clock", "arguments": {}}, {"name": "weather", "arguments": {}}]', "", ["clock", "weather"]),
        ('{"name": "other", "parameters": {}}', '{"name": "other", "parameters": {}}', []),
        ("[1, 2", "[1, 2", []),
        ('It is {"name": "clock", "parameters": {}}', 'It is {"name": "clock", "parameters": {}}', []),
        ("Hello  world, \n again \n", "Hello  world, \n again \n", []),
        ("", "", []),
    ],
)
def test_calls_without_tags_are_the_whole_answer(text, shown, names, size):
    """As Llama 3 writes them: the token that announces them is special and leaves no text."""
    reader = CallReader(SCHEMAS, False, form=BARE_JSON)
    seen, calls = "", []
    for start in range(0, len(text), size):
        more, fresh = reader.push(text[start : start + size])
        seen, calls = seen + more, calls + fresh
    more, fresh = reader.push("", ended=True)
    assert seen + more == shown
    assert [call["function"]["name"] for call in calls + fresh] == names


FORMATS = {
    "qwen3_xml": "<tool_call>\n<function=clock>\n<parameter=zone>\nUTC\n</parameter>\n</function>\n</tool_call>",
    "glm45": "<tool_call>clock\n<arg_key>zone</arg_key>\n<arg_value>UTC</arg_value>\n</tool_call>",
    "mistral": '[TOOL_CALLS]clock[ARGS]{"zone": "UTC"}',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>clock<｜tool▁sep｜>"
    '{"zone": "UTC"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "lfm2": '<|tool_call_start|>[clock(zone="UTC")]<|tool_call_end|>',
    "gemma4": '<|tool_call>call:clock{zone:<|"|>UTC<|"|>}<tool_call|>',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="clock">\n<parameter name="zone">UTC</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    "cohere": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "clock", "parameters": {"zone": "UTC"}}]'
    "<|END_ACTION|>",
    "granite": '<|tool_call|>[{"name": "clock", "arguments": {"zone": "UTC"}}]',
}


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("name", FORMATS)
def test_calls_are_taken_out_in_every_format(name, size):
    reader, text = CallReader(SCHEMAS, False, CALL_FORMATS[name]), f"I look [it] <up>. {FORMATS[name]}"
    told = [reader.push(text[start : start + size]) for start in range(0, len(text), size)]
    told.append(reader.push("", ended=True))
    assert "".join(shown for shown, _ in told) == "I look [it] <up>."
    assert called({"tool_calls": [call for _, calls in told for call in calls]}) == [("clock", {"zone": "UTC"})]
    damaged = FORMATS[name].replace("clock", "unknown")
    assert CallReader(SCHEMAS, False, CALL_FORMATS[name]).push(damaged, ended=True) == (damaged, [])


@pytest.mark.parametrize("arguments", ["[1]", "5", '"text"', '{"x": NaN}', '{"x": 1e999}', '{"x": "\\ud800"}'])
def test_arguments_that_are_no_object_are_no_call(arguments):
    text = f'<tool_call>{{"name": "clock", "arguments": {arguments}}}</tool_call>'
    assert CallReader(SCHEMAS, False).push(text, ended=True) == (text, [])


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("name", ["hermes", "qwen3_xml", "glm45", "lfm2"])
def test_a_closing_tag_inside_a_value_closes_nothing(name, size):
    form = CALL_FORMATS[name]
    text = FORMATS.get(name, CALL).replace("UTC", f"a {form.closing} b") + " <t"
    reader = CallReader(SCHEMAS, False, form)
    told = [reader.push(text[start : start + size]) for start in range(0, len(text), size)]
    told.append(reader.push("", ended=True))
    assert "".join(shown for shown, _ in told) == " <t"
    assert called({"tool_calls": [call for _, calls in told for call in calls]}) == [
        ("clock", {"zone": f"a {form.closing} b"})
    ]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_damaged_call_does_not_hide_the_next(size):
    text = f'<tool_call>{{"name": "clock</tool_call> and {CALL}'
    reader = CallReader(SCHEMAS, False)
    told = [reader.push(text[start : start + size]) for start in range(0, len(text), size)]
    told.append(reader.push("", ended=True))
    assert "".join(shown for shown, _ in told) == '<tool_call>{"name": "clock</tool_call> and'
    assert called({"tool_calls": reader.calls}) == [("clock", {"zone": "UTC"})]
    many = CallReader(SCHEMAS, False)
    assert many.push('<tool_call>{"a": "' + "</tool_call>" * 9)[0].startswith('<tool_call>{"a": "</tool_call>')


def test_calls_without_arguments_have_an_empty_object():
    for inside in ('{"name": "clock"}', '{"name": "clock", "arguments": null}', '{"name": "clock", "parameters": {}}'):
        reader = CallReader(SCHEMAS, False)
        reader.push(f"<tool_call>{inside}</tool_call>", ended=True)
        assert called({"tool_calls": reader.calls}) == [("clock", {})]


def test_a_call_that_was_cut_where_its_end_cannot_be_told_is_text():
    cut = "<tool_call>clock\n<arg_key>zone</arg_key>\n<arg_value>UTC</arg_value>\n"
    assert CallReader(SCHEMAS, False, CALL_FORMATS["glm45"]).push(cut, ended=True) == (cut, [])


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("text", "form", "shown"),
    [
        (f"{CALL}{CALL} done", HERMES, " done"),
        ('[{"name": "clock", "arguments": {"zone": "UTC"}}, {"name": "weather", "arguments": {}}]', BARE_JSON, ""),
        ('<tool_call>[{"name": "clock", "arguments": {"zone": "UTC"}}, {"name": "clock"}]</tool_call>', HERMES, ""),
    ],
)
def test_without_parallel_calls_only_the_first_is_told(text, form, shown, size):
    reader = CallReader(SCHEMAS, False, form, is_parallel=False)
    seen = "".join(reader.push(text[start : start + size])[0] for start in range(0, len(text), size))
    assert seen + reader.push("", ended=True)[0] == shown
    assert called({"tool_calls": reader.calls}) == [("clock", {"zone": "UTC"})]


def test_the_wish_for_single_calls_reaches_the_reader(ask):
    one = ChatRequest(**CHAT, parallel_tool_calls=False).choice_of_tools().reader()
    both = ChatRequest(**CHAT).choice_of_tools().reader()
    asked = Messages().request({"messages": CHAT["messages"], "max_tokens": 9, "tool_choice": {
        "type": "auto", "disable_parallel_tool_use": True}})  # fmt: skip
    assert asked["parallel_tool_calls"] is False
    assert [(each.push(CALL + CALL, ended=True), len(each.calls))[1] for each in (one, both)] == [1, 2]
    wrong = {"type": "auto", "disable_parallel_tool_use": 3}
    answers = [*ask(CHATS, CHAT | {"parallel_tool_calls": "perhaps"}),
               *ask("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 9, "tool_choice": wrong})]  # fmt: skip
    assert [answer.json()["error"]["param"] for answer in answers] == ["parallel_tool_calls", "tool_choice"]


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ('{"name": "clock", "arguments": {"zone": "U', "clock", '{"zone": "U'),
        ('{"name":"clock","arguments":{"zone": "UTC"}', "clock", '{"zone": "UTC"}'),
        ('{"name": "clock", "arg', "clock", ""),
        ('{"name": "clock"', "clock", ""),
        ('{"name": "clo', None, None),
        ('{"name": "other", "arguments": {', None, None),
        ("", None, None),
    ],
)
def test_a_demanded_call_that_is_cut_off_is_told_as_far_as_it_goes(text, name, arguments):
    reader = CallReader(SCHEMAS, True)
    shown, calls = reader.push(text, ended=True)
    if name is None:
        assert (shown, calls, reader.is_cut) == (text, [], False)
    else:
        assert [call["function"] for call in reader.calls] == [{"name": name, "arguments": arguments}]
        assert shown == "" and reader.is_cut and joined(calls) == arguments


def test_a_demanded_call_that_is_cut_off_ends_by_its_length(ask):
    pytest.importorskip("llguidance")
    body = CHAT | {"tool_choice": {"type": "function", "function": {"name": "weather"}}, "max_tokens": 40}
    whole, streamed = ask(CHATS, body, body | {"stream": True})
    choice = whole.json()["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", None)
    assert call["function"]["name"] == "weather" and '{"city": "Oslo"}'.startswith(call["function"]["arguments"])
    *pieces, last = [event["choices"][0] for event in events(streamed)]
    assert (last["finish_reason"], last["delta"]) == ("length", {})
    assert joined(call for piece in pieces for call in piece["delta"]["tool_calls"]) == call["function"]["arguments"]
    theirs = {"model": MODEL, "messages": CHAT["messages"], "temperature": 0, "max_tokens": 40, "tool_choice": {
        "type": "any"}, "tools": [{"name": "weather", "input_schema": TOOLS[0]["function"]["parameters"]}]}  # fmt: skip
    [answer] = ask("/v1/messages", theirs)
    assert answer.json()["stop_reason"] == "max_tokens" and answer.json()["content"][0]["name"] == "weather"


@pytest.mark.parametrize("stops", [{"stop": ["a"]}, {"stop": '"'}, {"stop_token_ids": [ord("n"), ord("}")]}])
def test_a_demanded_call_is_not_cut_by_what_ends_content(ask, stops):
    pytest.importorskip("llguidance")
    body = CHAT | {"tool_choice": "required"}
    plain, stopped, cut, wrong = ask(CHATS, body, body | stops, body | stops | {"tool_choice": "auto"},
                                     body | {"stop": ["x"] * 17})  # fmt: skip
    [ours], [same] = (each.json()["choices"] for each in (plain, stopped))
    assert called(same["message"]) == called(ours["message"])
    assert same["finish_reason"] == "tool_calls" and "stop_reason" not in same
    assert cut.status_code == 200 and (wrong.status_code, wrong.json()["error"]["param"]) == (400, "stop")
    theirs = {"model": MODEL, "messages": CHAT["messages"], "temperature": 0, "max_tokens": 60, "tool_choice": {
        "type": "any"}, "tools": [{"name": "f", "input_schema": TOOLS[1]["function"]["parameters"]}]}  # fmt: skip
    [answer] = ask("/v1/messages", theirs | {"stop_sequences": ["a"]})
    assert answer.json()["stop_reason"] == "tool_use" and answer.json()["content"][0]["input"] == {"zone": "UTC"}


HARD = r"""{"a": "{[}\"\\", "b\u00e9": [{"c": {}}, "]", 1.50], "d": "\\\""}"""


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize("arguments", [HARD, "{}", "[1, [2]]", '"}"', "null", '{"a": "\u00fc \U0001f6b2"}'])
def test_arguments_of_a_demanded_call_are_told_as_they_are_written(arguments, size):
    text = f'{{"name": "clock", "arguments": {arguments}}}'
    reader = CallReader(SCHEMAS, True)
    told = [reader.push(text[start : start + size]) for start in range(0, len(text), size)]
    told.append(reader.push("", ended=True))
    [head, *more] = [call for _, calls in told for call in calls]
    assert not any(shown for shown, _ in told)
    assert (head["index"], head["function"]) == (0, {"name": "clock", "arguments": ""})
    assert joined(more) == arguments
    assert [call["function"] for call in reader.calls] == [{"name": "clock", "arguments": arguments}]
    assert not reader.is_cut and (size > 1 or len(more) == len(arguments))


def streamed_answer(choice, *texts, usage=(False, False)):
    """The choices of a stream of which these are the chunks."""
    answer = Answer("id", "mine", Wish(is_chat=True, tools=ToolChoice(TOOLS, choice), prompts=[None]))
    last = len(texts) - 1
    chunks = [Chunk(text, "stop" if i == last else None, num_tokens=1) for i, text in enumerate(texts)]
    return [body["choices"][0] for chunk in chunks for body in answer.pieces(0, chunk, usage)]


def test_a_call_of_the_models_own_is_told_whole_and_its_end_apart():
    told = streamed_answer("auto", "Let me ", f"see. {CALL[:20]}", CALL[20:60], CALL[60:] + CALL)
    assert [each["delta"].get("content") for each in told] == ["Let me", " see.", None, None, None]
    first, second = [each["delta"]["tool_calls"] for each in told[2:4]]
    assert [call["index"] for [call] in (first, second)] == [0, 1]
    assert called({"tool_calls": [*first, *second]}) == [("clock", {"zone": "UTC"})] * 2
    assert [each["finish_reason"] for each in told] == [None] * 4 + ["tool_calls"] and told[-1]["delta"] == {}
    assert told[0]["delta"]["role"] == "assistant" and not any("role" in each["delta"] for each in told[1:])


def test_a_stream_with_tools_that_calls_none():
    told = streamed_answer("auto", "a <", "tool", "box> b")
    assert [each["delta"].get("content") for each in told] == ["a", " <toolbox> b"]
    assert told[-1]["finish_reason"] == "stop"
    told = streamed_answer("auto", "a", "")
    assert [(each["delta"].get("content"), each["finish_reason"]) for each in told] == [("a", None), (None, "stop")]


def test_counts_come_with_chunks_that_tell_nothing():
    texts = ('{"name": ', '"clock", ', '"arguments": {}}')
    told = streamed_answer("required", *texts, usage=(True, True))
    assert [each["delta"].get("content", "") for each in told] == [None, "", "", ""]
    assert [len(each["delta"].get("tool_calls", ())) for each in told] == [0, 1, 1, 0]
    assert len(streamed_answer("required", *texts)) == 3


def test_log_probabilities_of_a_demanded_call_come_once(ask):
    pytest.importorskip("llguidance")
    body = CHAT | {"tool_choice": "required", "logprobs": True, "return_token_ids": True}
    whole, streamed = ask(CHATS, body, body | {"stream": True})
    choice, pieces = whole.json()["choices"][0], [event["choices"][0] for event in events(streamed)]
    assert [each for piece in pieces for each in piece["logprobs"]["content"]] == choice["logprobs"]["content"]
    assert [each for piece in pieces for each in piece["token_ids"]] == choice["token_ids"]


def test_a_list_of_calls_between_tags():
    reader = CallReader(SCHEMAS, False)
    inside = '[{"name": "clock", "arguments": {}}, {"name": "clock", "arguments": "{}"}]'
    assert reader.push(f"<tool_call>{inside}</tool_call>", ended=True)[0] == ""
    assert [call["function"]["arguments"] for call in reader.calls] == ["{}", "{}"]


def test_models_without_tools_in_their_template_are_told_in_words():
    choice = ToolChoice(TOOLS)
    told = explained([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}], choice.tools)
    assert told[0]["content"].startswith("Be brief.") and '"weather"' in told[0]["content"] and len(told) == 2
    assert explained([{"role": "user", "content": "hi"}], choice.tools)[0]["role"] == "system"
    assert choice.grammar is None and choice.is_active and not ToolChoice(TOOLS, "none").is_active


def test_earlier_calls_are_objects_for_the_template():
    for given, read in (('{"zone": "UTC"}', {"zone": "UTC"}), ({"zone": "UTC"}, {"zone": "UTC"}), ('{"zo', '{"zo'),
                        ("", {}), (None, {})):  # fmt: skip
        call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": given}}
        message = readable_calls({"role": "assistant", "content": "", "tool_calls": [call]}, "messages[0]")
        assert message["tool_calls"][0]["function"]["arguments"] == read


@pytest.mark.parametrize(
    ("calls", "place"),
    [
        (3, ""),
        ({"name": "clock"}, ""),
        ([3], "[0]"),
        ([{"type": "custom", "custom": {"name": "clock"}}], "[0]"),
        ([{"function": {"arguments": "{}"}}], "[0].function.name"),
        ([{"function": {"name": "clock", "arguments": 3}}], "[0].function.arguments"),
        ([{"id": 3, "function": {"name": "clock", "arguments": "{}"}}], "[0].id"),
    ],
)
def test_malformed_earlier_calls_are_refused(ask, calls, place):
    messages = [*CHAT["messages"], {"role": "assistant", "content": "", "tool_calls": calls}]
    [answer] = ask(CHATS, CHAT | {"messages": messages})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == f"messages[1].tool_calls{place}"


@pytest.mark.parametrize(
    ("tools", "choice", "field"),
    [
        ([{"type": "function"}], None, "tools"),
        ([{"type": "function", "function": {"name": "x", "parameters": 3}}], None, "tools"),
        (TOOLS * 65, None, "tools"),
        ([], "required", "tool_choice"),
        (TOOLS, {"type": "function", "function": {"name": "other"}}, "tool_choice"),
        (TOOLS, "perhaps", "tool_choice"),
    ],
)
def test_what_cannot_be_called_is_refused(tools, choice, field):
    with pytest.raises(InvalidParameter) as caught:
        ToolChoice(tools, choice)
    assert caught.value.field == field
