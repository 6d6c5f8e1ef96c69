"""`LLM`: many prompts at once, their order, options per prompt, and the bar that shows them."""

import gc
import inspect
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event, Thread
from time import sleep
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.drafters import auto
from paceline.drafters.auto import resolve_drafter
from paceline.engine.llm import LLM
from paceline.engine.setup.build import build_engine
from paceline.errors import EngineDead, InvalidParameter
from paceline.models.turnstile import Turnstile
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, load_random

SHORT = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)


@pytest.fixture
def llm(tiny):
    llm = LLM.from_loaded(tiny, EngineConfig(kv_cache_memory_bytes=1 << 22))
    return llm


def test_hundreds_of_prompts_keep_their_order(llm, capsys):
    prompts = [PROMPTS[i % 4] for i in range(300)]
    outputs = llm.generate(prompts, SHORT, progress=True)
    assert [output.prompt for output in outputs] == prompts
    assert [output.token_ids for output in outputs[:4]] * 75 == [output.token_ids for output in outputs]
    assert "300/300" in capsys.readouterr().err


def test_priorities_may_differ_per_prompt_and_a_wrong_number_is_refused(llm):
    assert len(llm.generate(PROMPTS, SHORT, priority=[3, 2, 1, 0])) == 4
    with pytest.raises(InvalidParameter, match="priority"):
        llm.generate(PROMPTS, SHORT, priority=[1])
    with pytest.raises(InvalidParameter, match="sampling_params"):
        llm.generate(PROMPTS, [SHORT])
    with pytest.raises(InvalidParameter, match="sampling_params: 0 for 4 prompts"):
        llm.generate(PROMPTS, [])
    assert llm.generate([], []) == []


def test_a_timeout_covers_what_still_waits(llm):
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    outputs = llm.generate(PROMPTS * 40, params, timeout=0.05)
    assert {output.finish_reason for output in outputs} == {"timeout"}
    assert not llm.engine.has_unfinished_requests


def test_a_stream_may_be_collected_in_the_middle_of_a_step(llm, monkeypatch):
    """Its request is in the pass that is being prepared, with those of others."""
    plain = llm.generate(PROMPTS, SHORT)
    schedule = llm.engine.scheduler.schedule

    def collecting(now):
        plan = schedule(now)
        gc.collect()
        return plan

    held = [llm.stream("abc")]
    held.append(held)
    del held
    monkeypatch.setattr(llm.engine.scheduler, "schedule", collecting)
    outputs = llm.generate(PROMPTS, SHORT)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    assert not llm.engine.has_unfinished_requests


def test_one_stream_holds_one_sample(llm):
    with pytest.raises(InvalidParameter, match="n"):
        llm.stream("abc", SamplingParams(n=2))
    stream = llm.stream("abc", SHORT)
    tokens = list(stream)
    assert stream.output is not None
    assert tuple(token.token_id for token in tokens) == stream.output.token_ids


@pytest.mark.parametrize("num_read", [0, 1])
@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_a_stream_that_nobody_reads_on_ends_its_request(llm, how, num_read):
    stream = llm.stream("abc", SamplingParams(max_tokens=50, ignore_eos=True))
    for _ in range(num_read):
        next(stream)
    assert llm.engine.has_unfinished_requests
    if how == "closed":
        stream.close()
    del stream
    assert not llm.engine.has_unfinished_requests


@pytest.mark.parametrize(
    ("prompts", "how", "message"),
    [
        (None, {}, "prompts: None"),
        (5, {}, "prompts: 5"),
        ([1.5, 2], {}, "prompts.0., 1.5 is neither"),
        (["a", ""], {}, "prompts.1., is empty"),
        (["a", [1, "b"]], {}, "prompts.1., .* is neither a text nor token ids"),
        (["a", "b" * 600, "c"], {}, "prompts.1., the prompt is too long: 600 tokens"),
        ("a", {"sampling_params": {"max_tokens": 3}}, "sampling_params: 'max_tokens' is no SamplingParams"),
        ("a", {"priority": 1.5}, "priority: 1.5 is no int"),
        (b"hi", {}, "prompts: b'hi' is no prompt"),
        ({"a", "b"}, {}, "prompts: {.*} is no prompt"),
        ({"promt": "a"}, {}, "promt.* is no prompt; give .*prompt_token_ids"),
        (["a", {"prompt": "a", "multi_modal_data": 1}], {}, "is no prompt"),
        ("a", {"timeout": "5"}, "timeout: '5' is not above 0"),
    ],
)
def test_what_cannot_be_run_is_refused_and_leaves_nothing_behind(llm, prompts, how, message):
    with pytest.raises(InvalidParameter, match=message):
        llm.generate(prompts, **how)
    assert not llm.engine.has_unfinished_requests


def test_token_ids_may_come_from_numpy(llm):
    [from_list], [from_array] = llm.generate([97, 98], SHORT), llm.generate(np.array([97, 98]), SHORT)
    assert from_array.token_ids == from_list.token_ids
    assert all(type(token) is int for token in from_array.prompt_token_ids)


def test_prompts_may_have_vllms_form(llm):
    plain = llm.generate(["ab", [97, 98]], SHORT)
    found = llm.generate([{"prompt": "ab"}, {"prompt_token_ids": [97, 98]}], SHORT)
    assert [(one.prompt, one.token_ids) for one in found] == [(one.prompt, one.token_ids) for one in plain]
    [alone] = llm.generate({"prompt": "ab"}, SHORT)
    assert (alone.prompt, alone.token_ids) == (plain[0].prompt, plain[0].token_ids)


def test_threads_share_passes_and_get_their_own_answers(llm):
    """Calls of several threads, streams among them, whose requests end at different times."""
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    expected = {prompt: llm.generate(prompt, params)[0].token_ids for prompt in PROMPTS}
    num_steps, step = 0, llm.engine.step

    def counted():
        nonlocal num_steps
        num_steps += 1
        return step()

    llm.engine.step = counted

    def streamed(prompt):
        return tuple(token.token_id for token in llm.stream(prompt, params))

    with ThreadPoolExecutor(12) as pool:
        found = [pool.submit(lambda p=p: llm.generate([p, p[:2]], params)[0].token_ids) for p in PROMPTS * 2]
        found += [pool.submit(streamed, prompt) for prompt in PROMPTS]
        assert [one.result() for one in found] == [expected[prompt] for prompt in PROMPTS * 3]
    assert not llm.engine.has_unfinished_requests and not llm._calls
    assert num_steps < 12 * 40  # which is what the calls would take one after the other


def test_llms_on_the_same_weights_may_be_used_from_threads_of_their_own(tiny):
    """They share the threads and buffers of its passes, so they take turns, however each was made."""
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    config = EngineConfig(kv_cache_memory_bytes=1 << 22, profile="none")
    specs = (None, {"method": "ngram", "policy": "fixed"}, None)
    llms = [LLM.from_loaded(tiny, config, spec) for spec in specs]
    wanted = [output.token_ids for output in llms[0].generate(PROMPTS, params)]
    with ThreadPoolExecutor(len(llms)) as pool:
        for _ in range(3):
            found = list(pool.map(lambda llm: [output.token_ids for output in llm.generate(PROMPTS, params)], llms))
            assert found == [wanted] * len(llms)


def test_the_thread_inside_enters_again_while_others_wait():
    """As a finaliser does; a thread that waits at the door must not keep it out."""
    turn, inside, ended = Turnstile(), Event(), []

    def other():
        inside.wait()
        with turn:
            ended.append("other")

    waiting = Thread(target=other, daemon=True)
    waiting.start()
    with turn:
        inside.set()
        sleep(0.05)  # by now the other stands at the door
        with turn:
            ended.append("again")
    waiting.join(5)
    assert ended == ["again", "other"]


def test_an_interrupt_at_the_door_does_not_lock_its_thread_out():
    """Ctrl-C may come after the lock was taken and before the block, or between the block and the lock's release."""
    turn, passed = Turnstile(), []
    turn.__enter__()  # the block that would leave it is never reached
    with turn:
        passed.append(1)
    assert passed == [1]


def test_threads_wait_in_turn():
    """One that comes back at once, again and again, lets others pass."""
    turn, passed = Turnstile(), []

    def greedy():
        for _ in range(2000):
            with turn:
                sleep(1e-4)
            passed.append("greedy")

    def other():
        with turn:
            passed.append("other")

    first = Thread(target=greedy)
    first.start()
    sleep(0.01)
    for _ in range(5):
        other()
    number = passed.index("other")
    first.join()
    assert number < 1900 and passed.count("other") == 5


@pytest.mark.parametrize("prompt", [b"bytes", [True, False], [1, True]])
def test_bytes_and_truths_are_no_token_ids(llm, prompt):
    with pytest.raises(InvalidParameter, match="neither a text nor token ids"):
        llm.generate([prompt] if isinstance(prompt, bytes) else prompt)


def test_a_prediction_outside_the_vocabulary_and_a_salt_that_is_no_text_are_refused(llm):
    with pytest.raises(InvalidParameter, match="prediction"):
        llm.generate("a", SamplingParams(prediction=[10**9], max_tokens=2))
    with pytest.raises(InvalidParameter, match="cache_salt"):
        llm.generate("a", SamplingParams(max_tokens=2), cache_salt=5)


def test_a_text_that_cannot_fit_is_refused_before_it_is_cut(llm, monkeypatch):
    def cut(*_, **__):
        raise AssertionError("megabytes were tokenised")

    monkeypatch.setattr(llm.tokenizer, "encode", cut, raising=False)
    with pytest.raises(
        InvalidParameter, match=r"prompt: the prompt is too long: 30000000 bytes, and this model.s maximum"
    ):
        llm.generate("x" * 30_000_000)
    with pytest.raises(InvalidParameter, match=r"30000000 bytes.*or raise max_model_len or kv_cache_memory_bytes"):
        llm.user_prompt("x" * 30_000_000)


def test_auto_is_the_default_and_one_place_says_what_it_means(tiny, monkeypatch):
    assert inspect.signature(LLM).parameters["speculative"].default == "auto"
    assert resolve_drafter(SpeculativeConfig("auto"), tiny) == SpeculativeConfig("suffix")
    engine = build_engine(tiny, EngineConfig(kv_cache_memory_bytes=1 << 22), SpeculativeConfig("auto"))
    assert engine.drafter.name == "suffix"
    small = SpeculativeConfig("auto", model="small.gguf", num_draft_tokens=3)
    assert resolve_drafter(small, tiny) == SpeculativeConfig("draft_model", 3, "small.gguf")
    assert resolve_drafter(SpeculativeConfig.of("ngram"), tiny) == SpeculativeConfig("ngram")
    assert resolve_drafter(None, tiny) is None
    monkeypatch.setattr(auto, "best_head", lambda source: SimpleNamespace(path="heads/own"))
    chosen = resolve_drafter(SpeculativeConfig("auto"), tiny)
    assert chosen == SpeculativeConfig("suffix"), "beside passes this short a head costs more than it saves"
    monkeypatch.setattr(auto, "bytes_per_pass", lambda config, dtype: 1e9)
    chosen = resolve_drafter(SpeculativeConfig("auto"), tiny)
    children = ["suffix", {"method": "head", "model": "heads/own"}]
    assert chosen == SpeculativeConfig("hybrid", options={"drafters": children})
    on_gpu = SimpleNamespace(config=tiny.model.config, head_builder="", device=SimpleNamespace(type="cuda"))
    assert resolve_drafter(SpeculativeConfig("auto"), replace(tiny, model=on_gpu)) == SpeculativeConfig("suffix")
    monkeypatch.setattr(auto, "bytes_per_pass", lambda config, dtype: 1e10)
    assert resolve_drafter(SpeculativeConfig("auto"), replace(tiny, model=on_gpu)) == chosen
    no_heads = replace(tiny, model=SimpleNamespace(config=tiny.model.config))
    assert resolve_drafter(SpeculativeConfig("auto"), no_heads) == SpeculativeConfig("suffix")


@pytest.fixture
def own_llm(tiny):  # its folder for converted weights
    """An `LLM` whose weights no other test shares."""
    llm = LLM.from_loaded(load_random(0), EngineConfig(kv_cache_memory_bytes=1 << 22))
    return llm


def test_methods_of_vllms_say_what_to_use(llm):
    with pytest.raises(AttributeError, match=r"get_metrics.*use llm\.engine\.metrics"):
        llm.get_metrics()
    assert not hasattr(llm, "no_such_thing")


def test_a_closed_llm_and_all_on_its_weights_refuse_to_generate(own_llm):
    sibling, stream = own_llm.drafting_with("ngram"), own_llm.stream("abc", SHORT)
    next(stream)
    own_llm.close()
    for late in (
        lambda: own_llm.generate("abc", SHORT),
        lambda: sibling.generate("abc", SHORT),
        lambda: sibling.stream("abc", SHORT),
        lambda: own_llm.drafting_with(None),
        lambda: next(stream),
    ):
        with pytest.raises(EngineDead, match="this LLM is closed"):
            late()
    own_llm.close()


def test_another_llm_of_the_same_model_goes_on(own_llm, llm):
    own_llm.close()
    assert llm.generate("abc", SHORT)
    with pytest.raises(EngineDead, match="shares its loaded weights"):
        own_llm.generate("abc", SHORT)


def test_closing_ends_a_call_that_another_thread_waits_for(own_llm):
    endless, begun = SamplingParams(max_tokens=400, ignore_eos=True), Event()

    def generate():
        for _ in own_llm.stream("abc", endless):
            begun.set()

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(generate)
        assert begun.wait(60)
        own_llm.close()
        with pytest.raises(EngineDead, match="this LLM is closed"):
            call.result(60)


def test_an_argument_of_vllms_is_refused_with_ours_and_a_wrong_one_as_python_does(llm):
    for call in (llm.generate, llm.chat):
        with pytest.raises(InvalidParameter, match=r"use_tqdm: .*use progress"):
            call("abc", SHORT, use_tqdm=False)
        with pytest.raises(TypeError, match="no_such_argument"):
            call("abc", SHORT, no_such_argument=1)


def test_a_misspelt_argument_of_an_llms_own_is_recognised():
    with pytest.raises(InvalidParameter, match=r"^speculativ: .*did you mean speculative\? use one of model, spec"):
        LLM("smollm2-135m", speculativ="ngram")


def test_no_limit_is_the_models_length(llm):
    [output] = llm.generate("abc", SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))  # type: ignore[arg-type]
    assert len(output.token_ids) == llm.max_model_len - 3 and output.finish_reason == "length"


def test_vllms_word_for_how_to_draft_is_taken(tiny, monkeypatch):
    from paceline.engine import llm as module

    monkeypatch.setattr(module, "start_compiler", lambda *_: None)
    monkeypatch.setattr(module, "load", lambda *_: tiny)
    memory = {"kv_cache_memory_bytes": 1 << 22}
    vllms = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    ours = {"method": "ngram", "num_draft_tokens": 3, "options": {"prompt_lookup_max": 2}}
    drafting = LLM("tiny", speculative_config=vllms, **memory).speculative
    assert drafting == LLM("tiny", speculative=ours, **memory).speculative
    assert drafting is not None and drafting.num_draft_tokens == 3
    assert LLM("tiny", speculative_config=None, **memory).speculative is None  # as in vLLM: no drafts
    with pytest.raises(InvalidParameter, match=r"speculative_config: .*leave one of the two out"):
        LLM("tiny", speculative="ngram", speculative_config=vllms, **memory)


def test_a_samples_probability_is_the_product_of_its_tokens(llm):
    [plain] = llm.generate("abc", SHORT)
    [output] = llm.generate("abc", replace(SHORT, logprobs=1))
    assert plain.outputs[0].cumulative_logprob is None
    assert output.outputs[0].cumulative_logprob == pytest.approx(
        sum(each.logprob for each in output.outputs[0].logprobs)
    )
    assert output.outputs[0].cumulative_logprob < 0
    assert llm.get_tokenizer() is llm.tokenizer
