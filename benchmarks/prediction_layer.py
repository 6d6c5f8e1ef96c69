"""What drafts of a model's own layer for multi-token prediction cost, and what they gain at an assumed acceptance.

The model has RANDOM weights in Qwen3.5's form: gated delta nets in three of four layers, and a prediction layer with
full attention. So its drafts mean nothing and acceptance cannot be measured, but passes take their true time. Measured
are passes of the model over 1 to 5 rows and chains of 1 to 4 drafted tokens, in turns. The speed-up is that of chains
of k tokens, of which each is accepted with probability alpha if those before it are.

    python benchmarks/prediction_layer.py
    python benchmarks/prediction_layer.py --dtype bfloat16 --hidden 2048 --vocabulary 248320

The last line of standard output is one JSON object.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from common import console, finish, median, show
from mixture import Numbers, RandomCheckpoint

from paceline.drafters.runners.common_tokens import common_tokens
from paceline.models.architecture.config import ModelConfig
from paceline.models.base import NORMED, pages_for
from paceline.models.files.checkpoint import ENTRANCE
from paceline.models.heads.build import make_net
from paceline.models.heads.prediction import head_in
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource
from paceline.models.rows import Part, build_rows
from paceline.theory import expected_tokens

CONTEXT, LENGTHS, ALPHAS = 256, (1, 2, 3, 4), (0.5, 0.7, 0.8, 0.9)


class Predicting(RandomCheckpoint):
    """A random model with a prediction layer, which has one layer and `ENTRANCE` beside."""

    def prediction_layer(self) -> "Predicting":
        return Predicting(self.config.of_prediction(), seed=1)

    def tensor(self, name: str) -> np.ndarray:
        size = self.config.hidden_size
        if name not in ENTRANCE:
            return super().tensor(name)
        if "norm" in name:
            return np.ones(size, np.float32)
        return np.random.default_rng(2).standard_normal((size, 2 * size)).astype(np.float32) / size


def main() -> None:
    args = parse()
    checkpoint = Predicting(config_of(args))
    source = ModelSource("random", checkpoint, Numbers())  # type: ignore[arg-type]
    target = LoadedModel(source, NumbaModel(checkpoint, args.dtype, args.threads))
    record = head_in(source)
    assert record is not None
    net = make_net(record, target)
    common = common_tokens(net, args.draft_vocab_size)
    scored = args.vocabulary if common is None else len(common.ids)
    passes, chains = measure(target.model, net if common is None else common.model, args)
    one, whole = passes[1], {k: chains[k] + passes[k + 1] for k in LENGTHS}
    title = f"{args.dtype}, drafts score {scored} tokens, random weights"
    header = ["drafted tokens", "drafts, ms", "pass, ms", "both / a pass of one row"]
    show(title, header, [[0, 0.0, one, 1.0], *([k, chains[k], passes[k + 1], whole[k] / one] for k in LENGTHS)])
    gains = {alpha: [expected_tokens(alpha, k) * one / whole[k] for k in LENGTHS] for alpha in ALPHAS}
    header = ["acceptance", *(f"{k} drafted" for k in LENGTHS)]
    show("speed against plain decoding", header, [[alpha, *speeds] for alpha, speeds in gains.items()])
    finish({"weights": "random", "dtype": args.dtype, "scored": scored, "passes_ms": passes, "chains_ms": chains,
            "speed": gains})  # fmt: skip


def config_of(args: argparse.Namespace) -> ModelConfig:
    """Qwen3.5's form in these sizes."""
    return ModelConfig.from_hf({
        "model_type": "qwen3_5_text", "vocab_size": args.vocabulary, "hidden_size": args.hidden,
        "intermediate_size": 3 * args.hidden, "num_hidden_layers": args.layers, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096,
        "tie_word_embeddings": True, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * (args.layers // 4),
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    })  # fmt: skip


def measure(model, net, args: argparse.Namespace) -> tuple[dict[int, float], dict[int, float]]:
    """Median milliseconds of passes by rows, and of chains by tokens, after `CONTEXT` tokens."""
    rng, longest = np.random.default_rng(0), max(LENGTHS)
    pages = range(pages_for(CONTEXT + longest + 1))
    cache, own = model.new_cache(len(pages)), net.new_cache(len(pages))
    text = rng.integers(0, args.vocabulary, CONTEXT + longest + 1).tolist()
    prompt = build_rows([Part(pages, 0, text[:CONTEXT], logits="last")])
    states = model.forward(prompt, cache, (NORMED,)).taps[NORMED]
    net.forward(prompt, states, own)
    last = build_rows([Part(pages, CONTEXT - 1, text[CONTEXT - 1 : CONTEXT])])
    work: dict[tuple[str, int], Callable[[], object]] = {}
    for count in (*LENGTHS, longest + 1):
        rows = build_rows([Part(pages, CONTEXT, text[CONTEXT : CONTEXT + count])])
        work["pass", count] = lambda rows=rows: model.forward(rows, cache, (NORMED,))
        work["chain", count] = lambda count=count: net.draft_chains(last, states[-1:], own, count)
    times: dict[tuple[str, int], list[float]] = {key: [] for key in work}
    for _ in range(args.rounds):
        for key, run in work.items():
            start = time.perf_counter()
            run()
            times[key].append(1000 * (time.perf_counter() - start))
    console.print(f"{args.rounds} rounds")
    return tuple(  # type: ignore[return-value]
        {count: median(taken[1:]) for (kind, count), taken in times.items() if kind == wanted}
        for wanted in ("pass", "chain")
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="w8a8")
    parser.add_argument("--hidden", type=int, default=1024, help="width of the model")
    parser.add_argument("--layers", type=int, default=24, help="a multiple of 4")
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--draft-vocab-size", type=int, help="tokens that drafts score; 32768 by default")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
