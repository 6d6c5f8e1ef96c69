"""Other engines under the same plan: same token ids in, same number of tokens out, same threads, greedy or not."""

import argparse
import time
from typing import Protocol

from paceline import SamplingParams
from paceline.models.resolve import resolve_model


class Peer(Protocol):
    """Another engine."""

    name: str

    def run(self, prompt_ids: list[int], params: SamplingParams) -> dict:
        """Rates of one answer: tokens, tokens_per_second (from the first token), first_token_seconds."""
        ...


def rates(tokens: int, started: float, first: float, last: float) -> dict:
    decoding = last - first
    return {
        "tokens": tokens,
        "tokens_per_second": (tokens - 1) / decoding if tokens > 1 and decoding else 0.0,
        "first_token_seconds": first - started,
    }


class Transformers:
    """Hugging Face transformers, float32, eager loop of ``generate``."""

    name = "transformers"

    def __init__(self, args: argparse.Namespace) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(args.threads)
        path = gguf_path(args.model)
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()

    def run(self, prompt_ids: list[int], params: SamplingParams) -> dict:
        stamps: list[float] = []

        class Stamp:
            def put(self, value) -> None:
                stamps.append(time.perf_counter())

            def end(self) -> None:
                pass

        options = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if not params.is_greedy:
            options = {"do_sample": True, "temperature": params.temperature, "top_p": params.top_p, "top_k": 0}
        ids = self._torch.tensor([prompt_ids])
        least = params.max_tokens if params.ignore_eos else None
        with self._torch.inference_mode():
            self._model.generate(
                ids, attention_mask=self._torch.ones_like(ids), max_new_tokens=params.max_tokens, min_new_tokens=least,
                pad_token_id=0, streamer=Stamp(), **options,
            )  # fmt: skip
        started, *tokens = stamps  # the streamer is given the prompt first
        return rates(len(tokens), started, tokens[0], tokens[-1])


class LlamaCpp:
    """llama.cpp through llama-cpp-python, the GGUF file as it is (4-bit for the default model)."""

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


PEERS = {peer.name: peer for peer in (Transformers, LlamaCpp)}


def make_peer(name: str, args: argparse.Namespace) -> Peer:
    """The peer called `name`, loaded; ends the program with advice when it is not installed."""
    try:
        return PEERS[name](args)
    except ImportError as error:
        package = {"llama-cpp": "llama-cpp-python"}.get(name, f"{name} accelerate torch")
        raise SystemExit(f"--peer {name}: {error}; pip install {package}") from None


def gguf_path(model: str):
    """The GGUF file behind a model name."""
    path = getattr(resolve_model(model).checkpoint, "path", None)
    if path is None:
        raise SystemExit(f"--peer needs a model in a GGUF file, {model} is none")
    return path
