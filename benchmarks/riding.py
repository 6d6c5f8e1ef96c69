"""Parts of `sarathi.py` that measure decodes beside prompt chunks: single passes, and whole runs by P:D ratio."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from common import median

from paceline import SamplingParams
from paceline.config import EngineConfig
from paceline.engine.setup.build import build_engine
from paceline.models.base import PAGE_SIZE, CausalLM, KVCache
from paceline.models.loaded import LoadedModel
from paceline.models.rows import Part, build_rows
from paceline.theory.piggyback import PassTimes, aligned_chunk

FILL = 256


class Passes:
    """A model with `batch` requests in its cache, to time passes over chosen rows.

    Args:
        longest: most tokens a request has in the cache before its rows.
        room: most rows a request has in a pass.
    """

    def __init__(self, model: CausalLM, batch: int, longest: int, room: int) -> None:
        self.model, self.batch = model, batch
        size = (longest + room) // PAGE_SIZE + 1
        self.pages = [range(i * size, (i + 1) * size) for i in range(batch)]
        self.cache: KVCache = model.new_cache(batch * size)
        self.tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, longest + room).tolist()
        for pages in self.pages:
            for start in range(0, longest, FILL):
                chunk = self.tokens[start : min(start + FILL, longest)]
                model.forward(build_rows([Part(pages, start, chunk, logits="none")]), self.cache)

    def times(self, context: int, chunk: int, rounds: int) -> PassTimes:
        """Medians of the three kinds of passes, in turns; what decodes add is the median of the rounds' differences.

        Args:
            context: tokens before each decode; the chunk is from the middle of a prompt that long.
        """
        start = max(0, (context - chunk) // 2)
        prompt = Part(self.pages[0], start, self.tokens[start : start + chunk], logits="none")
        decodes = [Part(pages, context, self.tokens[context : context + 1], logits="last") for pages in self.pages]
        batches = [build_rows(parts) for parts in ([prompt], decodes, [prompt, *decodes[1:]])]
        seconds = np.array([[self._time(rows) for rows in batches] for _ in range(rounds + 1)])[1:]
        alone, apart, together = seconds.T
        return PassTimes(chunk, self.batch, median(alone), median(apart), median(alone) + median(together - alone))

    def _time(self, rows) -> float:
        started = time.perf_counter()
        self.model.forward(rows, self.cache)
        return time.perf_counter() - started


def describe(times: PassTimes, context: int) -> dict:
    """One row of the table of passes, in milliseconds per token; no speed-up where noise hid what decodes add."""
    riding = times.per_riding_decode
    return {
        "context": context,
        "chunk": times.chunk,
        "batch": times.batch,
        "prefill_only_ms": 1e3 * times.per_prefill_token,
        "decode_only_ms": 1e3 * times.per_decode,
        "decode_maximal_decode_ms": 1e3 * riding,
        "decode_speedup": times.decode_speedup if riding > 0 else None,
    }


def sweep(
    loaded: LoadedModel, config: EngineConfig, passes: Passes, rows: Sequence[int], ratios: Sequence[float],
    length: int, num_requests: int, rounds: int,
) -> list[dict]:  # fmt: skip
    """Throughput of whole runs by pass size and P:D ratio, measured, and computed from the times of single passes.

    Requests have `length` tokens in all. The baseline runs prompts in one piece and decodes in separate passes
    (`request_level`: equal requests leave no gaps in a batch).
    """
    batch, half = passes.batch, length // 2
    whole = passes.times(0, length, rounds).per_prefill_token
    chunks = [aligned_chunk(size, batch) for size in rows]
    times = [passes.times(half, chunk, rounds) for chunk in chunks]
    found = []
    for ratio in ratios:
        output = max(1, round(length / (1 + ratio)))
        apart = run(loaded, config, "request_level", length, batch, length - output, output, num_requests)
        for size, each in zip(rows, times, strict=True):
            together = run(loaded, config, "sarathi", size, batch, length - output, output, num_requests)
            loss = max(0.0, each.per_prefill_token / whole - 1)
            true_ratio = (length - output) / output
            found.append(
                {
                    "ratio": true_ratio,
                    "chunk": each.chunk,
                    "best_ratio": float(each.best_ratio),
                    "measured": together,
                    "measured_separate": apart,
                    "measured_gain": together / apart,
                    "modelled": each.throughput(true_ratio),
                    "modelled_gain": each.gain(true_ratio, loss),
                    "chunk_loss": loss,
                }
            )
    return found


def run(
    loaded: LoadedModel, config: EngineConfig, policy: str, budget: int, batch: int, prompt: int, output: int,
    num_requests: int,
) -> float:  # fmt: skip
    """Tokens, those of prompts included, per second of equal requests that are all there at the start."""
    limits = {"max_num_seqs": batch, "max_num_batched_tokens": budget, "prefix_caching": False}
    engine = build_engine(loaded, replace(config, scheduler=policy, **limits), None)
    rng = np.random.default_rng(1)
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    for number in range(num_requests):
        engine.add_request(str(number), rng.integers(0, loaded.model.config.vocab_size, prompt).tolist(), params)
    started = time.perf_counter()
    while engine.has_unfinished_requests:
        engine.step()
    return num_requests * (prompt + output) / (time.perf_counter() - started)
