"""Several models behind one server: each request gets its own model's text, and every metric is told of both."""

import asyncio

import httpx
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from paceline.cli.main import app as commands
from paceline.engine.async_llm import AsyncLLM
from paceline.errors import InvalidParameter
from paceline.serving.http.app import build_app
from paceline.serving.models.local import LocalBackend
from paceline.serving.models.model_spec import ModelSpec

TEXT = {"prompt": "abcabcabc", "temperature": 0, "max_tokens": 8, "ignore_eos": True}


def test_each_request_names_its_model(make_llm):
    async def scene():
        specs = [ModelSpec("one", "tiny"), ModelSpec("two", "tiny", engine={"max_model_len": 64})]
        backend = LocalBackend(specs, lambda spec: AsyncLLM(make_llm("ngram", **spec.engine)))
        transport = httpx.ASGITransport(build_app(backend))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            try:
                listed = (await client.get("/v1/models")).json()["data"]
                # one after the other: these two share one set of weights, which no real ones do
                answers = [await client.post("/v1/completions", json=TEXT | {"model": name}) for name in ("one", "two")]
                nobody = await client.post("/v1/completions", json=TEXT)
                return listed, answers, nobody, (await client.get("/metrics")).text
            finally:
                await backend.close()

    listed, answers, nobody, text = asyncio.run(scene())
    assert {each["id"]: each["max_model_len"] for each in listed} == {"one": 512, "two": 64}
    assert len({answer.json()["choices"][0]["text"] for answer in answers}) == 1
    assert nobody.status_code == 400 and nobody.json()["error"]["param"] == "model"
    families = [family.name for family in text_string_to_metric_families(text)]
    assert len(families) == len(set(families))
    for name in ("one", "two"):
        assert f'paceline:generation_tokens_total{{model_name="{name}"}} 8.0' in text


def test_a_further_model_needs_a_name():
    result = CliRunner().invoke(commands, ["serve", "--also", "smollm2-135m"])
    assert isinstance(result.exception, InvalidParameter) and result.exception.field == "also"
