"""Advice for servers: their pace, their tokens, their answers; and what cannot be known of them."""

import json

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.errors import InvalidParameter
from paceline.evaluation.endpoint import connect
from paceline.evaluation.endpoint_tokens import tokens_of
from tests.evaluation.bench.openai_server import Fake, serving
from tests.fakes import ByteTokenizer


def words(body):
    return ["one ", "two "] * (body["max_tokens"] // 2)


def letters(body):
    return {"tokens": [ord(c) for c in body.get("prompt") or body["messages"][0]["content"]]}


POSTS = {"/tokenize": letters}


def ask(url, *more):
    arguments = ["advise", "none", "--url", url, "--per-family", "2", "--max-tokens", "40", "-k", "1,2", "-c", "1"]
    return CliRunner().invoke(app, [*arguments, *more])


def test_a_pace_and_answers_are_enough_for_lookups():
    fake = Fake(words, "vllm", posts=POSTS)
    with serving(fake) as url:
        result = ask(url, "--for", "vllm,llama.cpp", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout.splitlines()[-1])
    assert {(one["draft"], one["k"], one["batch"]) for one in record["candidates"]} == {
        (draft, k, 1) for draft in ("ngram", "suffix") for k in (1, 2)
    }
    assert all(one["tokens_per_pass"] > 1.5 for one in record["candidates"]), "the answers repeat themselves"
    assert record["texts"] == 8
    assert any(body.get("ignore_eos") for body in fake.bodies), "its pace was asked"


def test_logged_answers_are_not_asked_for(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"prompt": f"p {i}", "answer": "abcabcabcabc"}) + "\n" for i in range(6)))
    fake = Fake(words, "vllm", posts=POSTS)
    with serving(fake) as url:
        assert ask(url, "--traffic", str(log), "--json").exit_code == 0
    assert not [body for body in fake.bodies if body["messages"][0]["content"].startswith("p ")]


def test_logged_answers_of_one_token_are_refused(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"prompt": f"p {i}", "answer": "a"}) + "\n" for i in range(6)))
    with serving(Fake(words, "vllm", posts=POSTS)) as url:
        result = ask(url, "--traffic", str(log))
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == "traffic"


@pytest.mark.parametrize(
    ("fake", "arguments", "field"),
    [
        (Fake(words, "llamacpp", timings={"draft_n": 4, "draft_n_accepted": 1}, posts=POSTS), (), "url"),
        (Fake(lambda body: ["x"], posts=POSTS), (), "url"),
        (Fake(words), (), "url"),
        (Fake(words, posts=POSTS), ("--candidates", "head"), "candidates"),
        (Fake(words, posts=POSTS), ("--candidates", "draft_model:x", "-t", "1"), "candidates"),
        (Fake(words, posts=POSTS), ("--candidates", "draft_model:x"), "draft_url"),
        (Fake(words, posts=POSTS), ("--validate", "1"), "validate"),
        (Fake(words, posts=POSTS), ("--profile", "any.json"), "profile"),
        (Fake(words, posts=POSTS), ("--raw",), "raw"),
        (Fake(words, posts=POSTS), ("--threads", "1"), "threads"),
        (Fake(words, posts=POSTS), ("--draft-url", "http://127.0.0.1:9"), "draft_url"),
    ],
    ids=[
        "it drafts", "one token", "no tokens", "head", "sampled draft", "no times of the draft", "validate", "profile",
        "raw", "machine", "no draft model",
    ],
)  # fmt: skip
def test_what_cannot_be_known_is_refused(fake, arguments, field):
    with serving(fake) as url:
        result = ask(url, *arguments)
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == field


def test_llama_server_tells_tokens_in_its_own_way():
    posts = {
        "/apply-template": lambda body: {"prompt": "<" + body["messages"][0]["content"] + ">"},
        "/tokenize": lambda body: {"tokens": [ord(c) for c in body["content"]]},
    }
    with serving(Fake(words, "llamacpp", posts=posts)) as url:
        server = connect(url)
        assert tokens_of(server, "hi", is_prompt=True) == [ord(c) for c in "<hi>"]
        assert tokens_of(server, "hi") == [ord(c) for c in "hi"]


def test_a_tokenizer_here_helps_where_the_server_has_none():
    with serving(Fake(words)) as url:
        tokenizer = ByteTokenizer()
        assert tokens_of(connect(url), "hi", tokenizer) == tokenizer.encode("hi")  # type: ignore[arg-type]
