"""As many engines on a pipeline as it has stages: together they say, hold and count what one would."""

import asyncio

import pytest

from paceline.config import EngineConfig
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.llm import LLM
from paceline.engine.threads.turns import Turns
from paceline.errors import InvalidParameter
from paceline.types import SamplingParams
from tests.engine.test_parallel_engine import loaded

pytest.importorskip("torch")

PROMPTS = [list(b"the cat sat"), list(b"abcabc"), [7], list(b"one two three two one")] * 2
PARAMS = [SamplingParams(temperature=0.8, seed=seed, max_tokens=10, ignore_eos=True) for seed in range(len(PROMPTS))]


def llm_of(model, **config) -> LLM:
    config = EngineConfig(**({"kv_cache_memory_bytes": 1 << 22, "profile": "none"} | config))
    llm = LLM.from_loaded(model, config)
    return llm


@pytest.fixture(scope="module")
def stages():
    model = loaded(pipeline_parallel_size=2)
    yield model
    model.close()


async def collect(served, number):
    outputs = [o async for o in served.generate(PROMPTS[number], PARAMS[number], request_id=str(number))]
    return [token.token_id for output in outputs for token in output.tokens]


def test_two_stages_have_two_steps_in_flight_and_say_what_one_process_says(stages):
    alone = [o.outputs[0].token_ids for o in llm_of(loaded(executor="torch")).generate(PROMPTS, PARAMS)]

    async def main():
        served = AsyncLLM(llm_of(stages, pipeline_parallel_size=2, max_num_seqs=16))
        assert len(served._lanes) == 2
        assert stages.model.microbatch_rows > 512, "where steps keep the stages busy, none is cut"
        found = await asyncio.gather(*(collect(served, number) for number in range(len(PROMPTS))))
        record, text = await served.metrics(), await served.prometheus_text("m")
        each = [await lane.run(lambda engine: engine.metrics.num_passes) for lane in served._lanes]
        costs = await served.pass_costs()
        await served.shutdown()
        return found, record, text.decode(), each, costs

    found, record, text, each, costs = asyncio.run(main())
    assert found == [list(tokens) for tokens in alone]
    assert min(each) >= 10 and record["num_passes"] == sum(each)
    assert sum(record["e2e_request_latency_seconds"]["buckets"].values()) == len(PROMPTS)
    assert record["generation_tokens"] == 10 * len(PROMPTS) and record["num_requests_running"] == 0
    assert f'paceline:generation_tokens_total{{model_name="m"}} {10.0 * len(PROMPTS)}' in text
    assert costs["stages"] == 2 and costs["seats"] == 16
    assert 1 <= costs["overlap"] <= 2 and 1 <= costs["prefill_overlap"] <= 2


def test_a_name_in_use_is_refused_and_its_owner_goes_on(stages):
    async def main():
        served = AsyncLLM(llm_of(stages, pipeline_parallel_size=2))
        first = asyncio.create_task(collect(served, 1))
        await asyncio.sleep(0.01)
        with pytest.raises(InvalidParameter, match="is in use"):
            await collect(served, 1)
        tokens = await first
        await served.abort("1")
        await served.shutdown()
        return tokens

    assert len(asyncio.run(main())) == 10


def test_one_engine_where_the_room_holds_no_request_for_each_or_something_is_drafted(stages):
    assert len(llm_of(stages, pipeline_parallel_size=2, max_model_len=256).engines_in_flight()) == 2
    cache = llm_of(stages).engine.cache
    small = {"kv_cache_memory_bytes": 40 * cache.num_bytes // cache.num_pages, "max_model_len": 512}
    assert len(llm_of(stages, pipeline_parallel_size=2, **small).engines_in_flight()) == 1
    drafting = llm_of(stages, pipeline_parallel_size=2).drafting_with("ngram")
    assert drafting.engines_in_flight() == [drafting.engine]


def test_passes_of_several_models_enter_the_first_stage_one_at_a_time_in_the_order_of_their_requests(stages):
    """While one is there nobody else is; those that are in later stages hold up nobody."""
    turns, entered = Turns(), []

    def in_first_stage():
        entered.append(len(turns._line))
        turns.leave()

    async def main():
        served = AsyncLLM(llm_of(stages, pipeline_parallel_size=2))
        served.take_turns(turns)
        stages.model.when_first_stage_is_free(in_first_stage)
        turns.reserve()  # another model's, whose turn it is
        tasks = [asyncio.create_task(collect(served, number)) for number in range(2)]
        while len(turns._line) < 3:
            await asyncio.sleep(0.001)
        assert not entered
        turns.leave()
        found = await asyncio.gather(*tasks)
        await served.shutdown()
        return found

    assert [len(tokens) for tokens in asyncio.run(main())] == [10, 10]
    assert len(entered) >= 20 and max(entered) == 2
    assert not turns._line
