"""Chunks of prompts: how large they must be before larger ones read no faster, and what they mean to others.

A prompt is read in chunks of each size, in turns. Models are the default one, and layers with RANDOM weights in the
shapes of larger ones: what counts is how often a weight is used once it is read. A pass computes the logits of its last
row only. Then a request decodes while another reads a long prompt: the time between its tokens, with chunks of one size
and with those that shrink as their attention grows.

    python benchmarks/chunks.py
    python benchmarks/chunks.py --shapes 1.5b experts --dtypes w8a8 --rows 64 128 512 --json

The last line of standard output is one JSON object.
"""

import argparse
import time
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
from common import console, finish, median, show
from mixture import RandomCheckpoint

from paceline.config import EngineConfig
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.step import StepOutput
from paceline.engine.setup.build import build_engine
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.experts import Experts
from paceline.models.base import pages_for
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import resolve_model
from paceline.models.rows import Part, build_rows
from paceline.types import SamplingParams

DEFAULT = "smollm2-135m"
SHAPES: dict[str, dict[str, Any]] = {
    "1.5b": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 6,
             "num_attention_heads": 12, "num_key_value_heads": 2},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 1,
           "num_attention_heads": 32, "num_key_value_heads": 8},
    "experts": {"hidden_size": 2048, "intermediate_size": 768, "num_hidden_layers": 2,
                "num_attention_heads": 32, "num_key_value_heads": 4,
                "experts": Experts(num_experts=128, num_experts_per_tok=8, norm_topk_prob=True)},
}  # fmt: skip
"""A few layers of Qwen2.5-1.5B, Llama 3.1 8B and Qwen3-30B-A3B, with a small vocabulary."""
VOCAB = 8000


def main() -> None:
    args = parse()
    rates = {name: {dtype: prefill_rates(name, dtype, args) for dtype in args.dtypes} for name in args.shapes}
    kinds = [(name, dtype) for name in args.shapes for dtype in args.dtypes]
    body = [[size, *(rates[name][dtype][str(size)] for name, dtype in kinds)] for size in args.rows]
    header = ["rows", *(f"{name}, {dtype}" for name, dtype in kinds)]
    show(f"prompt tokens per second, {args.length} tokens in chunks", header, body)
    beside = {dtype: beside_a_prompt(dtype, args) for dtype in args.dtypes}
    table = [[dtype, kind, *times.values()] for dtype, kinds in beside.items() for kind, times in kinds.items()]
    title = f"between tokens of a request beside a prompt of {args.long} tokens, ms"
    show(title, ["dtype", "chunks", "p50", "p99", "prompt read, s", "tokens meanwhile"], table)
    finish({"length": args.length, "tokens_per_second": rates, "long": args.long, "beside": beside})


def beside_a_prompt(dtype: str, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """By kind of chunks: times between tokens of one request while another reads a prompt of `args.long` tokens."""
    source = resolve_model(DEFAULT)
    loaded = LoadedModel(source, NumbaModel(source.checkpoint, dtype, args.threads))
    config = EngineConfig(dtype=dtype, profile="none", prefix_caching=False)
    prompt = np.random.default_rng(0).integers(0, VOCAB, args.long).tolist()
    of_one_size = {"balanced_context": inf}
    kinds = {"512 rows": of_one_size | {"max_num_batched_tokens": 512}, "128 rows": of_one_size, "shrinking": {}}
    found = {}
    for kind in [*kinds] * 2:  # the first round warms up
        engine = build_engine(loaded, config, None)
        engine.scheduler.config = replace(engine.scheduler.config, **kinds[kind])
        engine.add_request("decodes", prompt[:8], SamplingParams(temperature=0, max_tokens=4000, ignore_eos=True))
        engine.step()
        engine.add_request("reads", prompt, SamplingParams(temperature=0, max_tokens=1))
        times = []
        while "reads" not in {one.request_id for one in _timed_step(engine, times) if one.finished}:
            pass
        p50, p99 = np.quantile(times, (0.5, 0.99))
        found[kind] = {"p50": 1000 * p50, "p99": 1000 * p99, "seconds": sum(times), "tokens": len(times)}
        console.print(f"{dtype}, chunks beside a decode, {kind}: done")
    loaded.close()
    return found


def _timed_step(engine: Engine, times: list[float]) -> list[StepOutput]:
    began = time.perf_counter()
    outputs = engine.step()
    times.append(time.perf_counter() - began)
    return outputs


def prefill_rates(name: str, dtype: str, args: argparse.Namespace) -> dict[str, float]:
    """Prompt tokens per second by rows of a pass."""
    model = NumbaModel(checkpoint_of(name), dtype, args.threads)
    pages = range(pages_for(args.length))
    tokens = np.random.default_rng(0).integers(0, VOCAB, args.length).tolist()
    cache = model.new_cache(len(pages))
    passes = {
        size: [
            build_rows([Part(pages, start, tokens[start : start + size], logits="last")])
            for start in range(0, args.length, size)
        ]
        for size in args.rows
    }
    seconds: dict[int, list[float]] = {size: [] for size in args.rows}
    for number in range(args.rounds + 1):
        for size, chunks in passes.items():
            began = time.perf_counter()
            for rows in chunks:
                model.forward(rows, cache)
            if number:  # the first round warms up
                seconds[size].append(time.perf_counter() - began)
    model.close()
    console.print(f"{name}, {dtype}: {args.rounds} rounds done")
    return {str(size): args.length / median(times) for size, times in seconds.items()}


def checkpoint_of(name: str):
    if name == DEFAULT:
        return resolve_model(name).checkpoint
    sizes = SHAPES[name]
    config = ModelConfig(
        model_type="qwen2_moe" if "experts" in sizes else "qwen2", vocab_size=VOCAB, norm_eps=1e-6,
        head_dim=128, max_position_embeddings=8192, tie_word_embeddings=True,
        attention_bias=False, **sizes,
    )  # fmt: skip
    return RandomCheckpoint(config)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=[DEFAULT, *SHAPES], choices=[DEFAULT, *SHAPES])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "w8a8"])
    parser.add_argument("--rows", nargs="+", type=int, default=[32, 64, 128, 256, 512])
    parser.add_argument("--length", type=int, default=1024, help="tokens of the prompt")
    parser.add_argument("--long", type=int, default=6000, help="tokens of the prompt beside a request that decodes")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
