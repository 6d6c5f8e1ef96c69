"""Gaps to fill: the field `suffix` of completions, prompts with a suffix in Python, and llama.cpp's ``/infill``."""

import asyncio
import json
from dataclasses import replace

import httpx
import pytest

from paceline.config import EngineConfig
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.llm import LLM
from paceline.engine.text.prompts import Gap
from paceline.errors import InvalidParameter
from paceline.models.loaded import LoadedModel
from paceline.serving.http.app import build_app
from paceline.serving.models.local import LocalBackend
from paceline.serving.models.model_spec import ModelSpec
from paceline.types import SamplingParams
from tests.serving.conftest import ChatTokenizer

PREFIX, SUFFIX, MIDDLE, FILE, PROJECT = 1, 2, 3, 4, 5
NAMES = {"<fim_prefix>": PREFIX, "<fim_suffix>": SUFFIX, "<fim_middle>": MIDDLE, "<file_sep>": FILE,
         "<repo_name>": PROJECT}  # fmt: skip
FILLED = [PREFIX, *b"def f(", SUFFIX, *b"return x", MIDDLE]
GAP = {"prompt": "def f(", "suffix": "return x"}


class CodeTokenizer(ChatTokenizer):
    """With the tokens of fill-in-the-middle."""

    strips_space = False

    def token_id(self, name):
        return NAMES.get(name)

    def masked(self, value):
        return value

    def encode_masked(self, text, add_special_tokens=True):
        return self.encode(text, add_special_tokens)


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
     ({"prompt": "x", "suffix": "y", "files": ["a"]}, "files"),
     ({"prompt": "x", "suffix": "", "files": {"a": 1}}, "files"),
     ({"prompt": "x", "suffix": "y", "files": {"a": "z" * 100_000}}, "files"),
     ({"prompt": "x", "suffix": "\ud800"}, "suffix"), ({"prompt": "x", "suffix": "y" * 100_000}, "suffix")],
)  # fmt: skip
def test_prompts_with_a_wrong_suffix_are_refused(coder, prompt, field):
    with pytest.raises(InvalidParameter) as error:
        coder.generate(prompt)
    assert error.value.field == field


FILES = {"a.py": "x = 1", "b.py": "y = 2\n"}
IN_FILES = [PROJECT, *b"project\n", FILE, *b"a.py\nx = 1\n", FILE, *b"b.py\ny = 2\n", FILE, *b"file\n"]


def test_files_of_the_project_precede_the_one_with_the_gap(coder, monkeypatch):
    assert coder.token_ids_of(GAP | {"files": FILES}) == [*IN_FILES, *FILLED]
    assert coder.token_ids_of({"prompt": "def f(", "suffix": None, "files": FILES}) == [
        *IN_FILES, PREFIX, *b"def f(", SUFFIX, MIDDLE,
    ]  # fmt: skip
    for name in ("<file_sep>", "<repo_name>"):
        monkeypatch.delitem(NAMES, name)
    assert coder.token_ids_of(GAP | {"files": FILES}) == [*b"a.py\nx = 1\n\nb.py\ny = 2\n\n", *FILLED]


def test_a_prompt_that_is_too_long_is_cut_where_that_is_asked_for(coder):
    most = coder.max_model_len

    def made(before, after, *files, free=10):
        token_ids = coder.token_ids_of(Gap(before, after, files, keeps_free=free))
        assert len(token_ids) <= most - free
        return token_ids

    long, short = ("a", "x" * most), ("b", "y")
    own = [PROJECT, *b"project\n", FILE, *b"b\ny\n", FILE, *b"file\n"]
    assert made("def f(", "return x", long, short) == [*own, *FILLED]
    assert made("def f(", "return x", short, long) == FILLED  # files are left out from the first one on
    room = most - 10 - 3
    step = room // 8
    prefix = made("<" * most + "()", "return x", long)
    assert prefix[-12:] == [*b"()", SUFFIX, *b"return x", MIDDLE] and room - step <= len(prefix) - 3 <= room
    assert made("f(", ">" * most) == [PREFIX, *b"f(", SUFFIX, *b">" * (room - 2), MIDDLE]
    both = made("<" * most, ">" * most)
    assert room - room // 4 - step <= both.count(ord("<")) <= room - room // 4 and both.count(ord(">")) == room // 4
    typed = [made("".join(map(chr, range(65, 91))) * most + "x" * count, "", long) for count in range(2 * step)]
    assert len({tuple(one[:9]) for one in typed}) in (2, 3)  # most of them begin alike
    made("\u4e00" * 10 * most, "\u4e00" * 10 * most, ("\u4e00" * most, "x"), ("a", "\u4e00" * most))
    for free, left in ((1 << 30, most // 2), (0, 1), (-100, 1)):
        size = len(coder.token_ids_of(Gap("<" * most, "", keeps_free=free)))
        assert most - left - step <= size <= most - left


def posted(llm, *bodies, path="/v1/completions"):
    async def scene():
        backend = LocalBackend([ModelSpec("mine", "tiny")], lambda spec: AsyncLLM(llm))
        transport = httpx.ASGITransport(build_app(backend))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            sent = [json.dumps({"model": "mine"} | body) for body in bodies]  # half a surrogate pair is escaped
            how = {"headers": {"Content-Type": "application/json"}}
            answers = [await client.post(path, content=each, **how) for each in sent]
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


ASKED = {
    "input_prefix": "def ",
    "prompt": "f(",
    "input_suffix": "return x",
    "n_predict": 12,
    "top_k": 1,
    "ignore_eos": True,
}
SAME = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, **GAP}


def infilled(llm, *bodies):
    """The answers of ``/infill`` to `ASKED` with other fields; of a stream, all its events."""
    found = []
    for answer in posted(llm, *(ASKED | body for body in bodies), path="/infill"):
        is_stream = answer.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]
        found.append(events if is_stream else answer.json())
    return found


def test_infill_says_what_a_completion_says(coder):
    [plain] = posted(coder, SAME)
    whole, events, read, picked = infilled(
        coder, {}, {"stream": True}, {"n_predict": 0},
        {"response_fields": ["content", "timings/predicted_n", "tokens_evaluated", "timings/none", "none/x"]},
    )  # fmt: skip
    text = plain.json()["choices"][0]["text"]
    assert (whole["content"], whole["stop"], whole["stop_type"]) == (text, True, "limit")
    assert (whole["tokens_predicted"], whole["tokens_evaluated"]) == (12, len(FILLED))
    each = ("n", "ms", "per_token_ms", "per_second")
    assert set(whole["timings"]) == {
        "cache_n",
        *(f"{part}_{what}" for part in ("prompt", "predicted") for what in each),
    }
    *parts, last = events
    assert "".join(part["content"] for part in parts) == text
    assert parts and not any(part["stop"] for part in parts)  # steps that nobody waited for come as one part
    assert last.keys() == whole.keys() and last["content"] == "" and last["tokens_predicted"] == 12
    assert (read["content"], read["tokens_predicted"], read["tokens_evaluated"]) == ("", 0, len(FILLED))
    assert picked == {"content": text, "timings/predicted_n": 12, "tokens_evaluated": len(FILLED)}


def test_infill_samples_and_ends_as_it_is_asked(coder):
    drawn = {"top_k": 40, "temperature": 0.7, "top_p": 0.9, "min_p": 0.0, "repeat_penalty": 1.1}
    same = {name: drawn[name] for name in ("top_k", "temperature", "top_p", "min_p")} | {"repetition_penalty": 1.1}
    [plain] = posted(coder, SAME | same | {"seed": 5})
    seeded, ended, stopped, files = infilled(
        coder, drawn | {"seed": 5}, {"logit_bias": [[FILE, 100], [97, False]], "ignore_eos": False},
        {"stop": ["b"], "logit_bias": {str(ord("b")): 100.0}},
        {"input_extra": [{"filename": name, "text": text} for name, text in FILES.items()]},
    )  # fmt: skip
    assert seeded["content"] == plain.json()["choices"][0]["text"]
    assert (ended["stop_type"], ended["tokens_predicted"]) == ("eos", 1)
    assert files["tokens_evaluated"] == len(IN_FILES) + len(FILLED)
    assert (stopped["content"], stopped["stop_type"], stopped["stopping_word"]) == ("", "word", "b")


def test_what_editors_send_beside_is_passed_over_and_more_is_refused(coder):
    beside = {
        "cache_prompt": True,
        "samplers": ["top_k", "infill"],
        "t_max_prompt_ms": 500,
        "n_probs": 0,
        "n_indent": None,
    }
    assert infilled(coder, beside)[0]["tokens_predicted"] == 12
    wrong = {
        "input_prefix": "\ud800", "input_suffix": 3, "input_extra": [{"filename": "a"}], "prompt": "\ud800",
        "n_indent": -1, "n_probs": 2, "grammar": "root ::= x", "nonsense": 1, "temperature": -1.0, "repeat_penalty": 0,
    }  # fmt: skip
    refused = posted(coder, *(ASKED | {field: value} for field, value in wrong.items()), path="/infill")
    assert [answer.status_code for answer in refused] == [400] * len(wrong)
    assert [answer.json()["error"]["param"] for answer in refused] == list(wrong)
    [empty] = posted(coder, {"n_predict": 1}, path="/infill")  # an empty file
    assert empty.json()["tokens_evaluated"] == len([PREFIX, SUFFIX, MIDDLE])


def test_an_answer_ends_at_a_line_that_leaves_its_block(coder):
    spaces = {"logit_bias": {str(ord("\n")): 60.0, str(ord("a")): 59.0}, "repeat_penalty": 1.5, "n_predict": 64}
    free, bound, stream = infilled(coder, spaces, spaces | {"n_indent": 4}, spaces | {"n_indent": 4, "stream": True})
    head, _, rest = free["content"].partition("\n")
    assert rest.strip()
    assert bound["content"].startswith(f"{head}\n") and not bound["content"][len(head) :].strip()
    assert bound["stop_type"] == "limit" and bound["tokens_predicted"] < 64
    assert "".join(part["content"] for part in stream) == bound["content"]


def test_counts_of_an_answer_that_a_line_ends_are_those_of_its_tokens(coder):
    bias = {"logit_bias": [[10, 60], [97, 59]], "repeat_penalty": 1.5, "n_predict": 64, "n_indent": 4}
    [told] = infilled(coder, bias)
    assert told["tokens_predicted"] == len(told["content"]) + 1  # the token of the letter that was too far left
    [again] = infilled(coder, bias)
    assert (again["content"], again["stop_type"]) == (told["content"], "limit")
    assert (
        again["tokens_cached"]
        == again["timings"]["cache_n"]
        == again["tokens_evaluated"] - again["timings"]["prompt_n"]
    )
    params = SamplingParams(
        temperature=0,
        max_tokens=64,
        n_indent=4,
        logit_bias={10: 60.0, 97: 59.0},
        repetition_penalty=1.5,
        ignore_eos=True,
    )
    found = coder.generate(GAP, params)[0].outputs[0]
    assert (found.text, found.finish_reason, found.stop_reason) == (told["content"], "length", None)


def test_names_of_control_tokens_in_code_are_text(coder, monkeypatch):
    monkeypatch.setattr(CodeTokenizer, "masked", lambda self, text: text.replace("<fim_prefix>", "?"))
    assert coder.token_ids_of({"prompt": "<fim_prefix>", "suffix": "b"}) == [PREFIX, *b"?", SUFFIX, *b"b", MIDDLE]


def test_errors_that_come_late_have_their_own_status(coder, monkeypatch):
    """As where tokenising a large request takes longer than the headers of a stream wait."""
    monkeypatch.setattr("paceline.serving.http.front._EARLY_SECONDS", 0.0)
    wrong, right = posted(coder, ASKED | {"logit_bias": {"99999": 1.0}}, ASKED, path="/infill")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "logit_bias")
    assert right.json()["tokens_predicted"] == 12
