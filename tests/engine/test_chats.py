"""`LLM.chat` with vLLM's arguments: the prompt that it makes, and what it refuses."""

import json

import pytest

from paceline.config import EngineConfig
from paceline.engine.llm import LLM
from paceline.errors import InvalidParameter
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor import weights
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource
from paceline.models.text.tokenizer import Tokenizer
from paceline.types import SamplingParams
from tests.fakes import RandomCheckpoint, small_config
from tests.models.vocabularies import byte_level_gguf

SHORT = SamplingParams(temperature=0, max_tokens=2)
SOURCE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ mood }}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
ASKED, BEGUN = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "I say"}
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
CALL = {"function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    tokenizer = Tokenizer.from_gguf(byte_level_gguf(extra={"tokenizer.chat_template": SOURCE}))
    checkpoint = RandomCheckpoint(small_config(vocab_size=tokenizer.vocab_size, max_position_embeddings=2048))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "cache_dir", lambda: tmp_path_factory.mktemp("converted"))
        model = NumbaModel(checkpoint, "float32", num_threads=1)
        loaded = LoadedModel(ModelSource("chatty", checkpoint, tokenizer), model)
        yield LLM.from_loaded(loaded, EngineConfig(kv_cache_memory_bytes=1 << 23))


def prompt_of(llm, messages, **how):
    [output] = llm.chat(messages, SHORT, **how)
    return llm.tokenizer.decode(output.prompt_token_ids, skip_special=False)


def test_the_prompt_ends_as_asked(llm):
    assert prompt_of(llm, [ASKED]) == "user: hi\nassistant: "
    assert prompt_of(llm, [ASKED], add_generation_prompt=False) == "user: hi\n"
    for opened in (True, False):
        continued = prompt_of(llm, [ASKED, BEGUN], add_generation_prompt=opened, continue_final_message=True)
        assert continued == "user: hi\nassistant: I say"


def test_variables_and_another_template_are_those_of_the_call(llm):
    assert prompt_of(llm, [ASKED], chat_template_kwargs={"mood": "well, "}) == "user: hi\nwell, assistant: "
    assert prompt_of(llm, [ASKED], chat_template="<{{ messages[0].content }}>\\n") == "<hi>\\n"  # as it stands
    assert prompt_of(llm, [ASKED]) == "user: hi\nassistant: "


def test_a_developers_message_is_a_system_message(llm):
    assert prompt_of(llm, [{"role": "developer", "content": "x"}]).startswith("system: x")


def test_tools_go_to_the_template_or_are_told_in_words(llm):
    known = prompt_of(llm, [ASKED], tools=[TOOL], chat_template="{{ tools | tojson }}{{ messages[0].content }}")
    assert json.loads(known.removesuffix("hi")) == [TOOL]
    calling = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    told = prompt_of(llm, [ASKED, calling, {"role": "tool", "content": "ten"}], tools=[TOOL])
    assert told.startswith('system: You may call these functions:\n{"name": "clock"') and told.endswith(
        'assistant: <tool_call>{"name": "clock", "arguments": {"zone": "UTC"}}</tool_call>\ntool: ten\nassistant: '
    )
    assert prompt_of(llm, [ASKED], tools=[]) == prompt_of(llm, [ASKED])


@pytest.mark.parametrize(
    ("messages", "how", "field", "problem"),
    [
        ([ASKED, {"role": "bot", "content": "x"}], {}, "messages[1].role", "'bot' is unknown"),
        ([[ASKED], [{"role": "bot", "content": "x"}]], {}, "messages[0].role", "in conversations[1], 'bot'"),
        ([ASKED], {"continue_final_message": True}, "continue_final_message", "is no text of the assistant's"),
        ([ASKED], {"tools": [3]}, "tools", "tools[0] has no name"),
        ([ASKED], {"tools": "clock"}, "tools", "is no list"),
        ([ASKED], {"chat_template_kwargs": {"tools": [TOOL]}}, "chat_template_kwargs", "holds 'tools'"),
        ([ASKED], {"chat_template_kwargs": 3}, "chat_template_kwargs", "is no mapping"),
        ([ASKED], {"chat_template": "{% if %}"}, "chat_template", "does not compile"),
        ([ASKED], {"chat_template": "chat.jinja"}, "chat_template", "is no Jinja template"),
        ([{"role": "assistant", "tool_calls": [3]}], {}, "messages[0].tool_calls[0]", "is no call"),
        ([{"role": "assistant", "tool_calls": "x"}], {}, "messages[0].tool_calls", "is no list"),
        ([ASKED], {"chat_template_content_format": "string"}, "chat_template_content_format", "not known here"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_its_name(llm, messages, how, field, problem):
    with pytest.raises(InvalidParameter) as caught:
        llm.chat(messages, SHORT, **how)
    assert caught.value.field == field and problem in caught.value.problem
    assert not llm.engine.has_unfinished_requests
