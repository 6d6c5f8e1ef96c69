"""The field `suffix` of completions, and prompts with a suffix in Python: the same prompt, and an answer that ends."""

import asyncio
import json
from dataclasses import replace

import httpx
import pytest

from paceline.config import EngineConfig
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.llm import LLM
from paceline.engine.prompts import Gap
from paceline.errors import InvalidParameter
from paceline.models.loaded import LoadedModel
from paceline.serving.app import build_app
from paceline.serving.local import LocalBackend
from paceline.serving.model_spec import ModelSpec
from paceline.types import SamplingParams

from .conftest import ChatTokenizer

PREFIX, SUFFIX, MIDDLE, FILE = 1, 2, 3, 4
NAMES = {"<fim_prefix>": PREFIX, "<fim_suffix>": SUFFIX, "<fim_middle>": MIDDLE, "<file_sep>": FILE}
FILLED = [PREFIX, *b"def f(", SUFFIX, *b"return x", MIDDLE]
GAP = {"prompt": "def f(", "suffix": "return x"}


class CodeTokenizer(ChatTokenizer):
    """With the tokens of fill-in-the-middle."""

    strips_space = False

    def token_id(self, name):
        return NAMES.get(name)


@pytest.fixture
def coder(loaded):
    """An LLM whose vocabulary has the tokens of fill-in-the-middle."""
    source = replace(loaded.source, tokenizer=CodeTokenizer())
    return LLM.from_loaded(LoadedModel(source, loaded.model), EngineConfig(kv_cache_memory_bytes=1 << 22), "ngram")


@pytest.mark.parametrize("suffix", ["", None])
def test_without_a_suffix_a_prompt_is_one_as_always(make_llm, suffix):
    llm = make_llm()
    assert llm.token_ids_of({"prompt": "def f(", "suffix": suffix}) == list(b"def f(")
    assert llm.generate({"prompt": "def f(", "suffix": suffix}, greedy())[0].prompt == "def f("


def test_choices_are_kept_when_parameters_are_copied(coder):
    """The tokens that end a gap's answer are added to a copy, and each of several samples has one."""
    pytest.importorskip("llguidance")
    for asked, how in (({"prompt": "a", "suffix": "b"}, {}), ("ab", {"n": 2})):
        params = SamplingParams(temperature=1, seed=1, structured_outputs={"choice": ["yes", "no"]}, **how)
        for sample in coder.generate(asked, params)[0].outputs:
            assert sample.text in ("yes", "no")


def greedy(**more):
    return SamplingParams(temperature=0, max_tokens=12, **more)


def test_a_prompt_with_a_suffix_is_the_models_own_for_it(coder):
    assert coder.token_ids_of(GAP) == FILLED
    assert coder.generate(Gap("def f(", "return x"), greedy())[0].prompt == "def f("
    whole, plain = coder.generate([GAP, FILLED], greedy(ignore_eos=True))
    assert whole.token_ids == plain.token_ids
    assert (whole.prompt, plain.prompt) == ("def f(", None)
    assert tuple(token.token_id for token in coder.stream(GAP, greedy(ignore_eos=True))) == whole.token_ids


def test_the_answer_ends_where_another_file_begins(coder):
    bias = greedy(logit_bias={FILE: 100.0})
    found = coder.generate(GAP, bias)[0]
    assert (found.token_ids, found.finish_reason) == ((FILE,), "stop")
    assert coder.generate(FILLED, bias)[0].finish_reason == "length"  # a chat may say such a token
    assert coder.generate(GAP, replace(bias, ignore_eos=True))[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "field"),
    [({"prompt": "", "suffix": ""}, "prompt"), ({"prompt": [65], "suffix": "x"}, "prompt"),
     ({"prompt": "x", "suffix": 3}, "suffix"), ({"suffix": "x"}, "prompt"),
     ({"prompt": "x", "suffix": "\ud800"}, "suffix"), ({"prompt": "x", "suffix": "y" * 100_000}, "suffix")],
)  # fmt: skip
def test_prompts_with_a_wrong_suffix_are_refused(coder, prompt, field):
    with pytest.raises(InvalidParameter) as error:
        coder.generate(prompt)
    assert error.value.field == field


def posted(llm, *bodies):
    async def scene():
        backend = LocalBackend([ModelSpec("mine", "tiny")], lambda spec: AsyncLLM(llm))
        transport = httpx.ASGITransport(build_app(backend))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            sent = [json.dumps({"model": "mine"} | body) for body in bodies]  # half a surrogate pair is escaped
            how = {"headers": {"Content-Type": "application/json"}}
            answers = [await client.post("/v1/completions", content=each, **how) for each in sent]
        await backend.close()
        return answers

    return asyncio.run(scene())


def test_completions_take_a_suffix(coder):
    body = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    filled, ids, none, first = posted(
        coder,
        body | GAP | {"prompt": ["def f(", "x"]},
        body | {"prompt": FILLED},
        body | {"prompt": "def f(", "suffix": ""},
        body | {"prompt": "", "suffix": "return x"},
    )
    assert filled.json()["choices"][0]["text"] == ids.json()["choices"][0]["text"]
    assert len(filled.json()["choices"]) == 2
    assert none.json()["usage"]["prompt_tokens"] == len("def f(")
    assert first.json()["usage"]["prompt_tokens"] == len("return x") + 3


def test_bad_suffixes_are_refused_by_name(coder, make_llm):
    body = {"max_tokens": 2, "suffix": "x"}
    refused = posted(
        coder, body | {"prompt": [65]}, body | {"prompt": []}, body | {"prompt": "a", "echo": True},
        body | {"prompt": "a", "suffix": "\ud800"},
    )  # fmt: skip
    assert [(answer.status_code, answer.json()["error"]["param"]) for answer in refused] == [
        (400, "suffix"), (400, "suffix"), (400, "echo"), (400, "suffix"),
    ]  # fmt: skip
    [without] = posted(make_llm(), body | {"prompt": "a"})
    assert (without.status_code, without.json()["error"]["param"]) == (400, "suffix")
