"""A worker around a real engine on a tiny random model, behind the HTTP front."""

import asyncio

import httpx
import pytest

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.llm import LLM
from paceline.errors import InvalidParameter
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource
from paceline.models.text.tokenizer import Tokenizer
from paceline.serving.cluster.plan import plan_of
from paceline.serving.cluster.preflight import check_loadable
from paceline.serving.http.app import build_app
from paceline.serving.models.local import LocalBackend
from paceline.serving.models.model_spec import ModelSpec
from paceline.serving.models.worker import open_model
from paceline.types import SamplingParams
from tests.fakes import ByteTokenizer, RandomCheckpoint, small_config
from tests.models.vocabularies import byte_level_gguf

SOURCE = ModelSource("tiny", RandomCheckpoint(small_config()), ByteTokenizer())  # type: ignore[arg-type]


def open_tiny(spec):
    torch_model = pytest.importorskip("paceline.models.torch_executor").TorchModel
    config = EngineConfig(kv_cache_memory_bytes=1 << 22)
    llm = LLM.from_loaded(LoadedModel(SOURCE, torch_model(SOURCE.checkpoint)), config)
    return AsyncLLM(llm)


def greedy(prompt):
    llm = open_tiny(None)._llm
    return llm.generate(prompt, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))[0].text


def test_one_model_over_http_says_what_it_says_alone():
    async def scene():
        backend = LocalBackend([ModelSpec("mine", "tiny")], open_tiny)
        transport = httpx.ASGITransport(build_app(backend))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body = {"model": "mine", "prompt": "abcabc", "temperature": 0, "max_tokens": 20, "ignore_eos": True}
            whole, streamed = await asyncio.gather(
                client.post("/v1/completions", json=body),
                client.post("/v1/completions", json=body | {"stream": True}),
            )
            assert (await client.get("/health")).json() == {"status": "ok"}
            assert b"paceline:" in (await client.get("/metrics")).content
            unknown = await client.post("/v1/completions", json=body | {"model": "other"})
        await backend.close()
        assert unknown.status_code == 404
        assert streamed.text.endswith("data: [DONE]\n\n")
        return whole.json()

    answer = asyncio.run(scene())
    assert answer["choices"][0]["text"] == greedy("abcabc")
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (6, 20, 26)


@pytest.mark.parametrize(
    ("planned", "method"), [(None, "suffix"), ("none", None), ({"method": "ngram", "num_draft_tokens": 2}, "ngram")]
)
def test_a_models_own_way_to_draft_goes_first(planned, method, monkeypatch):
    told = {}

    def llm(path, **options):
        told.update(options, path=path)
        raise InvalidParameter("model", "is not opened here", "look at what was told")

    monkeypatch.setattr("paceline.serving.models.worker.LLM", llm)
    with pytest.raises(InvalidParameter, match="not opened here"):
        open_model(ModelSpec("a", "tiny", speculative=planned), SpeculativeConfig("suffix"), dtype="int8")
    found = told["speculative"]
    assert (told["path"], told["dtype"], found and found.method) == ("tiny", "int8", method)


def test_a_split_that_does_not_fit_the_model_is_refused_before_anything_starts():
    pytest.importorskip("torch")
    asked = []

    def resolve(path, progress):
        asked.append(path)
        return SOURCE

    models = [{"name": "a", "path": "tiny"}, {"name": "b", "path": "tiny"}]
    check_loadable(plan_of({"groups": [[1, 3, [0]], [2, 1, [1]]], "models": models}), lambda *_: None, resolve)
    assert asked == ["tiny"]
    drafted = [models[0] | {"speculative": {"method": "draft_model", "model": "tinier"}}]
    check_loadable(plan_of({"groups": [[1, 1, [0]]], "models": drafted}), lambda *_: None, resolve)
    assert asked[1:] == ["tiny", "tinier"]
    with pytest.raises(InvalidParameter, match=r"groups\[0\].*'a'.*4 stages for 3 layers"):
        check_loadable(plan_of({"groups": [[1, 4, [0]]], "models": models}), lambda *_: None, resolve)


def test_a_chat_template_of_a_plan_is_tried_before_anything_starts():
    source = ModelSource("tiny", SOURCE.checkpoint, Tokenizer.from_gguf(byte_level_gguf()))

    def check(template):
        model = {"name": "a", "path": "tiny", "engine": {"chat_template": template}}
        plan = plan_of({"groups": [[1, 1, [0]]], "models": [model]})
        check_loadable(plan, lambda *_: None, lambda path, progress: source)

    check("{{ messages[0].content }}")
    with pytest.raises(InvalidParameter, match=r"models\.a\.engine\.chat_template: does not compile"):
        check("{% if %}")
