"""The official client's own calls against a server on a socket."""

import json
import threading

import pytest

from paceline.engine.async_llm import AsyncLLM
from paceline.serving.http.app import build_app
from paceline.serving.http.run import Server, bind, run
from paceline.serving.models.local import LocalBackend
from paceline.serving.models.model_spec import ModelSpec
from paceline.serving.settings import Settings
from tests.serving.conftest import MODEL

openai = pytest.importorskip("openai")
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(make_llm):
    backend = LocalBackend([ModelSpec(MODEL, "tiny")], lambda spec: AsyncLLM(make_llm("ngram")))
    app, bound, ready = build_app(backend, Settings(api_keys=("secret",))), bind("127.0.0.1", 0), threading.Event()
    server = Server(app, app.front.gate, 5.0, ready.set)
    thread = threading.Thread(target=lambda: run(server.serve(sockets=[bound])))
    thread.start()
    assert ready.wait(60)
    address = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
    with openai.OpenAI(base_url=address, api_key="secret", max_retries=0) as made:
        yield made
    server.handle_exit(15, None)
    thread.join(30)
    assert not thread.is_alive()


def test_everything_it_calls(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    asked = {"model": MODEL, "temperature": 0, "max_tokens": 12}
    chat = client.chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=2, n=2, **asked)
    assert len(chat.choices) == 2 and len(chat.choices[0].logprobs.content[0].top_logprobs) == 2
    assert chat.usage.completion_tokens_details.accepted_prediction_tokens == 0
    stream = client.chat.completions.create(
        messages=MESSAGES, stream=True, stream_options={"include_usage": True},
        prediction={"type": "content", "content": chat.choices[0].message.content}, **asked,
    )  # fmt: skip
    events = list(stream)
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == chat.choices[0].message.content and events[-1].usage.prompt_tokens > 0
    whole = client.completions.create(prompt=["ab", "cd"], echo=True, logprobs=1, **asked)
    assert [choice.text[:2] for choice in whole.choices] == ["ab", "cd"]
    answer = client.responses.create(model=MODEL, input="hello", temperature=0, max_output_tokens=12)
    assert answer.output_text == chat.choices[0].message.content
    with client.responses.stream(model=MODEL, input="hello", temperature=0, max_output_tokens=12) as told:
        assert "".join(e.delta for e in told if e.type == "response.output_text.delta") == answer.output_text


def test_schemas_tools_and_errors(client):
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    said = client.chat.completions.create(model=MODEL, messages=MESSAGES, response_format=form)
    assert json.loads(said.choices[0].message.content)["a"] in (1, 2)
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    called = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=tools, tool_choice="required")
    assert json.loads(called.choices[0].message.tool_calls[0].function.arguments)["a"] in (1, 2)
    asked = {"model": MODEL, "messages": MESSAGES, "tools": tools, "tool_choice": "required", "temperature": 0}
    with client.chat.completions.stream(**asked) as stream:
        names = [event.name for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    assert names == ["f"] and json.loads(final.message.tool_calls[0].function.arguments)["a"] in (1, 2)
    assert final.finish_reason == "tool_calls" and not final.message.content
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=-1)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
