"""A model that repeats its prompt, slowly, for processes of their own."""

import asyncio
from types import SimpleNamespace

from paceline.engine.loop.step import StepOutput
from paceline.errors import InvalidParameter
from paceline.models.text.call_formats import HERMES


class EchoModel:
    """As much of `AsyncLLM` as a worker uses."""

    death, step_seconds = None, 0.0

    def __init__(self, name: str, num_threads: int) -> None:
        self._name, self._num_threads = name, num_threads
        self._aborted: set[str] = set()

    tokenizer = SimpleNamespace(thought_tags=None, call_format=HERMES)

    def describe(self):
        return {"max_model_len": 512}

    def take_turns(self, turns):
        pass

    async def chat_prompt(self, messages, template, **ending):
        return messages[-1]["content"]

    async def token_ids_of(self, prompt, add_special_tokens):
        return prompt

    def params_for(self, prompt, params):
        return params

    async def generate(self, prompt, params, request_id, priority, timeout, cache_salt="", joined=False):
        if prompt == "bad":
            raise InvalidParameter("prompt", "is bad", "be good")
        if prompt == "threads":
            prompt = str(self._num_threads)
        words = f"{self._name}: {prompt}".split(" ")
        sample = SimpleNamespace(
            finish_reason="stop", token_ids=words, error=None, stats=None, num_predicted_tokens=0,
            num_accepted_predictions=0, stop_reason=None, lossy=False,
        )  # fmt: skip
        metrics = SimpleNamespace(num_cached_tokens=0)
        done = SimpleNamespace(outputs=[sample], prompt_token_ids=words, metrics=metrics)
        for number, word in enumerate(words):
            await asyncio.sleep(0.02)
            text = word if number == 0 else " " + word
            is_last = number == len(words) - 1 or request_id in self._aborted
            tokens = (SimpleNamespace(text=text),)
            yield StepOutput(request_id, tokens, done if is_last else None)  # type: ignore[arg-type]
            if is_last:
                return

    async def pass_costs(self):
        """They rise with the rows, so that requests are spread over the groups whichever is a little faster."""
        return {"seconds": {0: {1: 0.02, 64: 0.1}}}

    async def abort(self, request_id):
        self._aborted.add(request_id)

    async def prometheus_text(self, name):
        return f"{self._name} 1\n".encode()

    async def shutdown(self):
        pass


def open_echo(spec, num_threads, **options):
    return EchoModel(spec.name, num_threads)


def open_nothing(spec, **options):
    """A model that cannot be opened."""
    raise InvalidParameter("path", f"{spec.path!r} has no weights", "name others")
