"""Hugging Face transformers, float32, eager loop of ``generate``."""

import argparse
import time

from paceline import SamplingParams
from peers.protocol import rates
from peers.weights import gguf_path, load_transformers


class Transformers:
    """One prompt, or many padded on the left into one batch."""

    name = "transformers"

    def __init__(self, args: argparse.Namespace) -> None:
        import torch

        torch.set_num_threads(args.threads)
        self._torch = torch
        self._model = load_transformers(gguf_path(args.model))

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

    def run_many(self, prompts: list[list[int]], max_tokens: int) -> int:
        longest = max(map(len, prompts))
        ids = self._torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = self._torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with self._torch.inference_mode():
            said = self._model.generate(
                ids, attention_mask=mask, max_new_tokens=max_tokens, min_new_tokens=max_tokens, pad_token_id=0,
                do_sample=False, temperature=None, top_p=None, top_k=None,
            )  # fmt: skip
        return said[:, longest:].numel()

    def close(self) -> None:
        del self._model
