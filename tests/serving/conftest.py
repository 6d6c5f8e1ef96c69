"""One tiny random model with an engine behind the HTTP front, for all tests of the protocol."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest

from paceline.config import EngineConfig
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.llm import LLM
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor import weights
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource
from paceline.serving.http.app import build_app
from paceline.serving.models.local import LocalBackend
from paceline.serving.models.model_spec import ModelSpec
from paceline.serving.settings import Settings
from tests.fakes import ByteTokenizer, RandomCheckpoint, small_config

MODEL = "mine"


class ChatTokenizer(ByteTokenizer):
    """A byte tokenizer with a chat template: one line per message."""

    has_chat_template = reads_tools = True

    def token_id(self, name):
        return None

    def encode(self, text, add_special_tokens=True):
        return list(text.encode("ascii", "replace"))

    def decode(self, token_ids, skip_special=True, continuation=False):
        return b"".join(self.token_bytes(i) for i in token_ids).decode()

    def apply_chat_template(self, messages, add_generation_prompt=True, variables=None):
        offered = (variables or {}).get("tools")
        offered = offered if isinstance(offered, list) else []
        tools = "".join(f"tool {tool['function']['name']}\n" for tool in offered)
        return (
            tools
            + "".join(f"{each['role']}: {each['content']}\n" for each in messages)
            + ("assistant: " if add_generation_prompt else "")
        )


@pytest.fixture(scope="package")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "cache_dir", lambda: folder)
        checkpoint = RandomCheckpoint(small_config())
        source = ModelSource("tiny", checkpoint, ChatTokenizer())  # type: ignore[arg-type]
        yield LoadedModel(source, NumbaModel(checkpoint, "float32", num_threads=1))


@pytest.fixture
def make_llm(loaded):
    """(speculative) -> an LLM on the shared weights, with a cache of its own."""

    def make(speculative=None, **config):
        engine = EngineConfig(**({"kv_cache_memory_bytes": 1 << 22} | config))
        llm = LLM.from_loaded(loaded, engine, speculative)
        return llm

    return make


@pytest.fixture
def serving(make_llm):
    """(settings, speculative) -> an async context: a client of a server, and its application."""

    @asynccontextmanager
    async def serve(settings=None, speculative="ngram", log=None, **config):
        backend = LocalBackend([ModelSpec(MODEL, "tiny")], lambda spec: AsyncLLM(make_llm(speculative, **config)))
        app = build_app(backend, settings or Settings(), log)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            client.app = app  # type: ignore[attr-defined]
            try:
                yield client
            finally:
                await backend.close()

    return serve


@pytest.fixture
def ask(serving):
    """(path, bodies...) -> the responses of one server to them, asked together."""

    def run(path, *bodies, **options):
        async def scene():
            async with serving(**options) as client:
                return await asyncio.gather(*(client.post(path, json=body) for body in bodies))

        return asyncio.run(scene())

    return run


def events(response):
    """The bodies of a stream that ended well."""
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", response.text
    return [json.loads(line) for line in lines[:-1]]
