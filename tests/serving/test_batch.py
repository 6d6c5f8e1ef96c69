"""Batch files: every line is answered once, in its own shape, and a run that was cut off goes on."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.engine.async_llm import AsyncLLM
from paceline.errors import InvalidParameter
from paceline.placement.fields import read_mapping
from paceline.serving.batch import answered, read_requests, run_batch
from paceline.serving.http.front import Front
from paceline.serving.models.local import LocalBackend
from paceline.serving.models.model_spec import ModelSpec
from paceline.serving.settings import Settings, read_keys
from tests.serving.conftest import MODEL


def line(custom_id, url="/v1/completions", **body):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"temperature": 0, "max_tokens": 6} | body}


def written(path, lines):
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def test_every_line_is_answered(make_llm, tmp_path):
    messages = [{"role": "user", "content": "hi"}]
    path = written(tmp_path / "in", [
        line("a", prompt="abcabc", ignore_eos=True), line("b", "/v1/chat/completions", messages=messages, stream=True),
        line("c", prompt="x", temperature=-1), line("d", prompt="abcabc", ignore_eos=True),
        line("e", "/v1/embeddings", input="x"), line("f", ["/v1/completions"], prompt="x"), line("g", None, prompt="x"),
    ])  # fmt: skip
    lines = []

    async def scene():
        backend = LocalBackend([ModelSpec(MODEL, "tiny")], lambda spec: AsyncLLM(make_llm("ngram")))
        await run_batch(Front(backend, Settings(max_running=2)), read_requests(path), lines.append)
        await backend.close()

    asyncio.run(scene())
    told = {each["custom_id"]: each["response"] for each in lines}
    assert {name for name, each in told.items() if each["status_code"] == 200} == {"a", "b", "d"}
    assert {name for name, each in told.items() if each["status_code"] == 400} == {"c", "e", "f", "g"}
    assert told["a"]["body"]["choices"] == told["d"]["body"]["choices"]
    assert told["b"]["body"]["object"] == "chat.completion"
    assert told["c"]["body"]["error"]["param"] == "temperature"
    assert {told[name]["body"]["error"]["param"] for name in "efg"} == {"url"}
    said = "url: '/v1/embeddings' is not served in a batch; use one of /v1/chat/completions, /v1/completions"
    assert told["e"]["body"]["error"]["message"] == said


def test_the_exit_code_says_whether_every_request_has_an_answer(make_llm, tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.serving.models.worker.open_model", lambda spec, **how: AsyncLLM(make_llm()))
    source, target = written(tmp_path / "in", [line("a", prompt="x")]), tmp_path / "out"

    def run():
        ended = CliRunner().invoke(app, ["batch", str(source), str(target)])
        return ended.exit_code, " ".join(ended.stderr.split())

    assert run() == (0, f"1 line added to {target}")
    written(source, [line("a", prompt="x"), line("b", prompt="x", temperature=-1), line("c", prompt="x")])
    refused = f"1 of 3 requests were refused: see the lines of {target} whose status_code is not 200; remove them"
    code, said = run()
    assert code == 1 and f"2 lines added to {target}" in said and refused in said
    code, said = run()
    assert code == 1 and said.startswith("3 of 3 are answered already") and refused in said
    kept = [each for each in target.read_text().splitlines() if json.loads(each)["response"]["status_code"] == 200]
    target.write_text("".join(f"{each}\n" for each in kept))
    written(source, [line(name, prompt="x") for name in "abc"])
    assert run() == (0, f"2 of 3 are answered already 1 line added to {target}")


def test_requests_for_another_model_are_refused(make_llm, tmp_path, monkeypatch):
    """As by a server: answers of a model that nobody asked for would be taken for the other one's."""
    monkeypatch.setattr("paceline.serving.models.worker.open_model", lambda spec, **how: AsyncLLM(make_llm()))
    lines = [line("a", prompt="x", model="gpt"), line("b", prompt="x", model="tiny"), line("c", prompt="x")]
    source = written(tmp_path / "in", lines)
    for name, other in (("tiny", "a"), ("gpt", "b")):
        named = [] if name == "tiny" else ["--served-model-name", name]
        ended = CliRunner().invoke(app, ["batch", str(source), str(tmp_path / name), "--model", "tiny", *named])
        found = [json.loads(each) for each in (tmp_path / name).read_text().splitlines()]
        told = {each["custom_id"]: each["response"] for each in found}
        assert ended.exit_code == 1 and told[other]["status_code"] == 404
        assert told[other]["body"]["error"]["code"] == "model_not_found"
        assert {told[each]["body"]["model"] for each in "abc" if each != other} == {name}


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    """As Windows' editors write it; a key that had it would never be the one that is sent."""
    path = written(tmp_path / "in", [line("a", prompt="x")])
    path.write_text("\ufeff" + path.read_text(), encoding="utf-8")
    assert [each["custom_id"] for each in read_requests(path)] == ["a"]
    path.write_text("\ufeffsecret\n", encoding="utf-8")
    assert read_keys(path) == ("secret",)
    path.write_text('\ufeff{"models": []}', encoding="utf-8")
    assert read_mapping(path) == {"models": []}


def test_a_line_may_hold_other_ends_of_lines(tmp_path):
    request = line("a", prompt="one\u2028two\x85three")
    (tmp_path / "in").write_text(json.dumps(request, ensure_ascii=False) + "\r\n\n")
    assert read_requests(tmp_path / "in") == [request]


def test_a_run_that_was_cut_off_goes_on(tmp_path):
    path = tmp_path / "out"
    assert answered(path) == set()
    path.write_text('{"custom_id": "a"}\n{"custom_id": "b"}\n{"custom_')
    assert answered(path) == {"a", "b"}
    assert path.read_text() == '{"custom_id": "a"}\n{"custom_id": "b"}\n'
    path.write_text("something else\n")
    with pytest.raises(InvalidParameter, match="output"):
        answered(path)


@pytest.mark.parametrize(
    "lines",
    [
        [line("a", prompt="x"), line("a", prompt="y")],
        [{"custom_id": "a", "url": "/v1/completions"}],
        [{"url": "/v1/completions", "body": {}}],
        [3],
    ],
)
def test_what_is_no_batch_is_refused(lines, tmp_path):
    with pytest.raises(InvalidParameter, match="input"):
        read_requests(written(tmp_path / "in", lines))
    (tmp_path / "in").write_text("{")
    with pytest.raises(InvalidParameter, match="line 1"):
        read_requests(tmp_path / "in")
    with pytest.raises(InvalidParameter, match="cannot be read"):
        read_requests(tmp_path / "nowhere")
