"""Prefill rate by rows of a pass: how large chunks of prompts must be before larger ones read no faster.

A prompt is read in chunks of each size, in turns. Models are the default one, and layers with RANDOM weights in the
shapes of larger ones: what counts is how often a weight is used once it is read. A pass computes the logits of its last
row only.

    python benchmarks/chunks.py
    python benchmarks/chunks.py --shapes 1.5b experts --dtypes w8a8 --rows 64 128 512 --json

The last line of standard output is one JSON object.
"""

import argparse
import time
from typing import Any

import numpy as np
from common import console, finish, median, show
from mixture import RandomCheckpoint

from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.experts import Experts
from paceline.models.base import pages_for
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import resolve_model
from paceline.models.rows import Part, build_rows

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
    finish({"length": args.length, "tokens_per_second": rates})


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
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
