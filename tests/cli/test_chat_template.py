"""`--chat-template` on a model that has no template of its own."""

import asyncio
import json

import httpx
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.engine.llm import LLM
from paceline.errors import InvalidParameter
from paceline.serving.http.app import build_app

TEMPLATE = r"{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
SHORT = ("--draft", "none", "-n", "4")


def run(*arguments, **more):
    return CliRunner().invoke(app, list(arguments), **more)


@pytest.fixture
def template_file(tmp_path):
    path = tmp_path / "chat.jinja"
    path.write_text(TEMPLATE.replace(r"\n", "\n"), encoding="utf-8")
    return str(path)


def generated(model, *arguments):
    result = run("generate", "-m", model, *SHORT, "--json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["token_ids"]


def test_generate_puts_the_prompt_into_the_given_template(base_model, template_file):
    expected = generated(base_model, "--raw", "user: the cat\n")
    assert generated(base_model, "--chat-template", template_file, "the cat") == expected
    assert generated(base_model, "--chat-template", TEMPLATE, "the cat") == expected
    assert generated(base_model, "the cat") != expected


def test_an_llm_takes_the_template_and_tries_it_first(base_model, template_file):
    with LLM(base_model, speculative=None, chat_template=template_file) as llm:
        assert llm.tokenizer.decode(llm.chat_prompt([{"role": "user", "content": "hi"}])) == "user: hi\n"
    with pytest.raises(InvalidParameter, match="chat_template: 'nowhere' cannot be read"):
        LLM(base_model, chat_template="nowhere")


def test_chat_answers_in_the_given_template(base_model, template_file):
    result = run("chat", "-m", base_model, *SHORT, "--chat-template", template_file, input="the cat\n/exit\n")
    assert result.exit_code == 0 and "no chat template" not in result.stderr, result.output


def test_the_template_given_to_serve_is_the_first_models(base_model, template_file, monkeypatch):
    seen = {}

    async def listen(backend, **_):
        transport = httpx.ASGITransport(build_app(backend))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            for name in ("mine", "other"):
                body = {"model": name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
                seen[name] = await client.post("/v1/chat/completions", json=body)
        await backend.close()

    monkeypatch.setattr("paceline.cli.serve._listen", listen)
    monkeypatch.setattr("paceline.serving.http.run.run", asyncio.run)
    result = run("serve", base_model, "--served-model-name", "mine", "--also", f"other={base_model}", "--port", "0",
                 "--draft", "none", "--chat-template", template_file)  # fmt: skip
    assert result.exit_code == 0, result.exception
    assert seen["mine"].status_code == 200 and seen["mine"].json()["usage"]["completion_tokens"] > 0
    assert seen["other"].status_code == 400
    assert "--chat-template" in seen["other"].json()["error"]["message"]


def test_batch_answers_chats_in_the_given_template(base_model, template_file, tmp_path):
    asked, answers = tmp_path / "asked.jsonl", tmp_path / "answers.jsonl"
    body = {"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 4, "temperature": 0}
    asked.write_text(json.dumps({"custom_id": "1", "url": "/v1/chat/completions", "body": body}))
    result = run("batch", str(asked), str(answers), "-m", base_model, "--draft", "none",
                 "--chat-template", template_file)  # fmt: skip
    assert result.exit_code == 0, result.exception
    answer = json.loads(answers.read_text())["response"]["body"]["choices"][0]["message"]["content"]
    expected = run("generate", "-m", base_model, *SHORT, "--json", "--raw", "user: the cat\n")
    assert answer == json.loads(expected.stdout)["text"] != ""


def test_generate_says_that_a_prompt_is_used_as_it_is(base_model):
    told = "the model has no chat template, so the prompt is used as it is; --chat-template gives it one\n"
    for arguments, says in (([], True), (["--json"], True), (["--raw"], False), (["--chat-template", TEMPLATE], False)):
        result = run("generate", "-m", base_model, *SHORT, *arguments, "the cat")
        assert result.exit_code == 0 and (told in result.stderr) is says
        assert "template" not in result.stdout


def test_generate_takes_a_system_message(base_model):
    expected = generated(base_model, "--raw", "system: be brief\nuser: the cat\n")
    assert generated(base_model, "--chat-template", TEMPLATE, "--system", "be brief", "the cat") == expected


def test_penalties_reach_the_sampler(base_model):
    plain = generated(base_model, "--raw", "-n", "32", "--ignore-eos", "the cat")
    for option, value in (("presence", "2"), ("frequency", "2"), ("repetition", "100")):
        changed = generated(base_model, "--raw", "-n", "32", "--ignore-eos", f"--{option}-penalty", value, "the cat")
        assert len(set(changed)) > len(set(plain))
    text = run("chat", "--help").stdout
    assert "presence-pen" in text and "frequency-pen" in text and "repetition-p" in text


def test_chat_needs_a_template(base_model):
    result = run("chat", "-m", base_model, *SHORT, input="the cat\n/exit\n")
    assert isinstance(result.exception, InvalidParameter)
    assert "chat_template: the model has none" in str(result.exception) and "paceline generate" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["generate", "--raw", "--chat-template", "{{ 1 }}", "hi"], "raw: is given beside --chat-template"),
        (["generate", "--raw", "--system", "x", "hi"], "raw: is given beside --system"),
        (["generate", "--presence-penalty", "3", "hi"], "presence_penalty: 3.0 is not in [-2, 2]"),
        (["generate", "-m", "MODEL", "--system", "x", "hi"], "system: the model has no chat template"),
        (["generate", "--chat-template", "", "hi"], "chat_template: ''"),
        (["serve", "--chat-template", "{{ 1 }}", "--cluster", "PLAN"], "chat_template: is given beside --cluster"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments, says, tmp_path, base_model):
    plan = tmp_path / "plan.json"
    plan.write_text('{"groups": [[1, 1, [0]]], "models": ["a"]}')
    result = run(*({"PLAN": str(plan), "MODEL": base_model}.get(each, each) for each in arguments))
    assert isinstance(result.exception, InvalidParameter) and says in str(result.exception)
