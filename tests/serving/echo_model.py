"""A model that repeats its prompt, slowly, for processes of their own."""

import asyncio
from types import SimpleNamespace

from paceline.errors import InvalidParameter


class EchoModel:
    """As much of `AsyncLLM` as a worker uses."""

    death = None

    def __init__(self, name: str, num_threads: int) -> None:
        self._name, self._num_threads = name, num_threads
        self._aborted: set[str] = set()

    def chat_prompt(self, messages):
        return messages[-1]["content"]

    async def generate(self, prompt, params, request_id):
        if prompt == "bad":
            raise InvalidParameter("prompt", "is bad", "be good")
        if prompt == "threads":
            prompt = str(self._num_threads)
        words = f"{self._name}: {prompt}".split(" ")
        done = SimpleNamespace(finish_reason="stop", prompt_token_ids=words, token_ids=words)
        for number, word in enumerate(words):
            await asyncio.sleep(0.02)
            text = word if number == 0 else " " + word
            is_last = number == len(words) - 1 or request_id in self._aborted
            yield SimpleNamespace(tokens=(SimpleNamespace(text=text),), finished=done if is_last else None)
            if is_last:
                return

    async def abort(self, request_id):
        self._aborted.add(request_id)

    async def prometheus_text(self):
        return f"{self._name} 1\n".encode()

    async def shutdown(self):
        pass


def open_echo(spec, num_threads, **options):
    return EchoModel(spec.name, num_threads)
