"""Answers of gpt-oss, in messages on channels, as text with the tags of other models."""

import pytest

from paceline.engine.text.stream import TextStream
from paceline.models.text.call_formats import HERMES
from paceline.models.text.harmony import decoder_of
from paceline.models.text.thought_tags import THINK
from paceline.models.text.tokenizer import StreamDecoder, Tokenizer
from paceline.serving.protocol.dialects import _Parts, of_text
from paceline.serving.protocol.openai import ChatRequest
from paceline.serving.protocol.responses import Responses
from paceline.serving.protocol.thoughts import ThoughtReader
from paceline.serving.protocol.tools import CallReader

from .vocabularies import CONTROL, byte_level, byte_level_gguf

NAMES = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
TEMPLATE = "{{ '<|start|>assistant<|channel|>' }}"
THOUGHT = "<|channel|>analysis<|message|>Is it so?<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Yes.<|return|>"
CALL = "<|channel|>commentary to=functions.look <|constrain|>json<|message|>{}<|call|>"
TOLD_CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'


def tokenizer(names=NAMES, template=TEMPLATE):
    settings, (tokens, _) = byte_level_gguf("gpt-4o"), byte_level()
    settings["tokenizer.ggml.tokens"] = [*tokens, *names]
    settings["tokenizer.ggml.token_type"] = [*[1] * len(tokens), *[CONTROL] * len(names)]
    settings |= {"tokenizer.chat_template": template, "tokenizer.ggml.eos_token_id": len(tokens)}
    return Tokenizer.from_gguf(settings)


def told(text, **options):
    stream = TextStream(tokenizer(), **options)
    for token in tokenizer().encode(text):
        if not stream.stopped:
            stream.push(token)
    stream.finish()
    return stream.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (THOUGHT + FINAL, "<think>Is it so?</think>\n\nYes."),
        (f"<|channel|>final<|message|>{FINAL}", "Yes."),
        (f"{THOUGHT}<|start|>assistant{THOUGHT}{FINAL}", "<think>Is it so?\nIs it so?</think>\n\nYes."),
        (f"{THOUGHT}<|start|>assistant{CALL}", f"<think>Is it so?</think>\n\n{TOLD_CALL}"),
        ("<|start|>assistant to=functions.look<|channel|>commentary json<|message|>{}", TOLD_CALL),
        (" to=functions.look<|channel|>commentary json<|message|>{}", TOLD_CALL),
        (" to=functions.look<|message|>{}<|call|>", TOLD_CALL),
        ("<|channel|>commentary to=functions.look<|constrain|>json<|message|>{}<|call|>", TOLD_CALL),
        (f"<|channel|>commentary<|message|>First.<|end|><|start|>assistant{CALL}", f"First.\n\n{TOLD_CALL}"),
        ("<|channel|>analysis<|message|>Cut", "<think>Cut"),
        ("<|channel|>anal", ""),
        ("naïve 東京", "naïve 東京"),
        (" to=5 or so", " to=5 or so"),
        (" to", " to"),
    ],
)
def test_channels_become_tags(text, expected):
    assert told(text) == expected


def test_only_with_its_tokens_and_its_template():
    assert tokenizer().speaks_harmony and tokenizer().thought_tags is THINK and tokenizer().call_format is HERMES
    for other in (tokenizer(template="{{ 'x' }}"), tokenizer(names=NAMES[:3])):
        assert not other.speaks_harmony and other.thought_tags is None
    plain, ids = StreamDecoder(tokenizer()), tokenizer().encode(THOUGHT)
    assert "".join(map(plain.push, ids)) == "analysisIs it so?"


def test_an_answer_goes_into_the_prompt_without_its_thoughts():
    """As `paceline chat` gives it back: the template would write the tags into the final message."""
    template = "{% for m in messages %}<|channel|>{{ m.role }}:{{ m.content }};{% endfor %}"
    turns = [{"role": "user", "content": "<think>"}, {"role": "assistant", "content": told(THOUGHT + FINAL)}]
    rendered = tokenizer(template=template).apply_chat_template(
        [*turns, {"role": "assistant", "content": "<think>Cut"}]
    )
    assert rendered == "<|channel|>user:<think>;<|channel|>assistant:Yes.;<|channel|>assistant:;"
    assert tokenizer(template="{{ messages[1].content }}").apply_chat_template(turns).startswith("<think>")


@pytest.mark.parametrize(
    ("turn", "rendered"),
    [
        ({"content": None, "reasoning_content": "Ask."}, "Ask.|"),
        ({"content": "<think>Ask.</think>\n"}, "Ask.|"),
        ({"content": "Wait.", "reasoning_content": "Ask."}, "|Wait."),
        ({"content": "", "thinking": "As given."}, "As given.|"),
    ],
)
def test_thoughts_before_a_call_stay_in_the_prompt(turn, rendered):
    """The published template refuses a turn with calls that has both thoughts and a content."""
    template = "<|channel|>{{ messages[0].thinking }}|{{ messages[0].content }}"
    calls = [{"type": "function", "function": {"name": "clock", "arguments": "{}"}}]
    told = tokenizer(template=template).apply_chat_template([{"role": "assistant", "tool_calls": calls, **turn}])
    assert told == f"<|channel|>{rendered}"


def test_stop_strings_end_the_text_as_it_is_told():
    assert told(THOUGHT + FINAL, stop=["</think>"]) == "<think>Is it so?"


def test_a_server_takes_thoughts_and_calls_apart():
    reader = ThoughtReader(is_open=False)
    assert reader.push(told(THOUGHT + FINAL), ended=True) == ("Is it so?", "Yes.")
    _, answer = ThoughtReader(is_open=False).push(told(f"{THOUGHT}<|start|>assistant{CALL}"), ended=True)
    text, calls = CallReader({"look": {}}, is_call=False).push(answer, ended=True)
    assert (text, [call["function"] for call in calls]) == ("", [{"name": "look", "arguments": "{}"}])


NOTE = "<|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (THOUGHT + FINAL, "Yes.<|return|>"),
        (FINAL.removeprefix("<|start|>assistant"), "Yes.<|return|>"),
        (THOUGHT + NOTE, "Let me look.<|end|>"),
        (THOUGHT + NOTE + FINAL, "Let me look.<|end|>Yes.<|return|>"),
        (f"{THOUGHT}{NOTE}<|start|>assistant{CALL}", "Let me look.<|end|>"),
        (" to=functions.look<|channel|>commentary json<|message|>{}<|call|>", ""),
        (THOUGHT, ""),
        ("Yes.", "Yes."),
    ],
)
def test_the_tokens_of_the_text_are_those_outside_headers_thoughts_and_calls(answer, text):
    one = tokenizer()
    scores = [{"token": one.decode([token], skip_special=False)} for token in one.encode(answer)]
    assert "".join(each["token"] for each in of_text(scores, has_thought=answer.startswith(THOUGHT))) == text


@pytest.mark.parametrize(
    "answer",
    [THOUGHT + FINAL, THOUGHT + NOTE, THOUGHT + NOTE + FINAL, NOTE[len("<|start|>assistant") :] + THOUGHT + FINAL],
)
def test_a_stream_tells_the_probabilities_of_each_text_with_it(answer):
    one, parts, events = tokenizer(), _Parts(Responses()), []
    reader, decoder = ThoughtReader(is_open=False, several=True), decoder_of(one)
    tokens = one.encode(answer)
    for number, token in enumerate(tokens, 1):
        ended = number == len(tokens)
        thoughts, text = reader.push(decoder.push(token) + (decoder.flush() if ended else ""), ended)
        score = {"token": one.decode([token], skip_special=False)}
        events += parts.read({"reasoning_content": thoughts, "content": text}, [score])
    deltas = [each for each in events if each["type"] == "response.output_text.delta"]
    for each in deltas:
        scored = "".join(score["token"] for score in each["logprobs"])
        assert scored.replace("<|end|>", "").replace("<|return|>", "") == each["delta"].lstrip("\n")
    said = [part for part in ("Let me look.", "Yes.") if part in answer]
    assert "".join(each["delta"] for each in deltas).replace("\n", "") == "".join(said)


def test_effort_reaches_the_template():
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": "low"}
    assert ChatRequest.model_validate(asked).jobs("1")[0].template == {"reasoning_effort": "low"}
    kept = asked | {"chat_template_kwargs": {"reasoning_effort": "high"}}
    assert ChatRequest.model_validate(kept).jobs("1")[0].template == {"reasoning_effort": "high"}
    body = Responses().request({"model": "m", "input": "Hi", "reasoning": {"effort": "low"}})
    assert body["reasoning_effort"] == "low"
