"""Speculation on a mixture of experts, where verification reads more experts: speed of fixed lengths and of policies.

The model has RANDOM weights in the Qwen2-MoE layout, so its text has no meaning. Drafts are the model's own answer with
each token replaced by a wrong one with probability 1 - alpha, which sets the acceptance rate, and they take no time.
Measured are seconds and experts of a pass by rows, and tokens per second of plain decoding, fixed lengths, goodput and
Cascade at each acceptance rate, for one request, in rotating order.

    python benchmarks/mixture.py
    python benchmarks/mixture.py --experts 64 --per-token 4 --alpha 0.3 0.9 --json

The last line of standard output is one JSON object.
"""

import argparse
import hashlib
import time

import numpy as np
from common import console, finish, median, show
from rich.progress import Progress
from window import decode_window, same_as_far_as_both_go

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.guarded_policy import GuardedPolicy
from paceline.engine.setup.build import build_engine
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.experts import Experts
from paceline.models.architecture.tensor_names import tensor_shapes
from paceline.models.base import PAGE_SIZE
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource
from paceline.models.rows import Part, build_rows
from paceline.sampling import TokenTree
from paceline.speculation import DrafterTraits, Fixed
from paceline.theory.experts import expected_experts
from paceline.types import SamplingParams

VOCAB = 512
ROWS = (1, 2, 3, 5, 9)


def main() -> None:
    args = parse()
    loaded = random_mixture(args)
    passes = measure_passes(loaded.model, args)
    table = [[m, p["ms"], p["ratio"], p["experts"], p["expected"]] for m, p in passes.items()]
    header = ["rows", "ms", "t(M) / t(1)", "experts per layer", "if chosen at random"]
    show(f"a pass, {args.experts} experts, {args.per_token} per token, random weights", header, table)
    prompt = np.random.default_rng(1).integers(0, VOCAB, 32).tolist()
    params = SamplingParams(temperature=0, max_tokens=args.max_tokens, ignore_eos=True)
    answer = decode_window(engine_for(loaded, "fixed", 0), [prompt], params).texts[0]
    results = {}
    with Progress(console=console, transient=True) as bars:
        task = bars.add_task("decoding", total=len(args.alpha) * args.rounds)
        for alpha in args.alpha:
            drafter = Corrupted([*prompt, *answer], alpha)
            results[str(alpha)] = compare(loaded, drafter, prompt, params, args, lambda: bars.advance(task))
    methods = list(next(iter(results.values()))["vs_plain"])
    body = [[a, *(r["vs_plain"][m] for m in methods), r["cascade_draft_length"]] for a, r in results.items()]
    show("speed against plain decoding, random weights", ["acceptance", *methods, "Cascade's drafts"], body)
    finish({"weights": "random", "experts": args.experts, "per_token": args.per_token, "passes": passes,
            "alpha": results})  # fmt: skip


class RandomCheckpoint:
    """Weights of `config` drawn from a seed."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self.config, self._seed = config, seed
        self._shapes = tensor_shapes(config)
        self.fingerprint = f"random-{hashlib.sha256(repr(config).encode()).hexdigest()[:16]}-{seed}"

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def tensor(self, name: str) -> np.ndarray:
        rng = np.random.default_rng([self._seed, self.names().index(name)])
        shape = self._shapes[name]
        if name.endswith("norm.weight"):
            return np.ones(shape, np.float32)
        scale = 1.0 if name.endswith("mlp.gate.weight") else shape[-1] ** -0.5
        return (scale * rng.standard_normal(shape)).astype(np.float32)


class Numbers:
    """A tokenizer that spells a token as its number."""

    special_token_ids = hidden_token_ids = frozenset()
    speaks_harmony = False
    eos_token_ids = ()
    vocab_size = VOCAB

    def token_bytes(self, token_id: int) -> bytes:
        return f" {token_id}".encode()


class Corrupted:
    """Drafts the true continuation, each token right with probability `alpha`."""

    name = "corrupted"
    traits = DrafterTraits(deterministic=True)

    def __init__(self, truth: list[int], alpha: float) -> None:
        rng = np.random.default_rng(2)
        wrong = rng.random(len(truth)) >= alpha
        self._drafts = [(token + bad) % VOCAB for token, bad in zip(truth, wrong, strict=True)]

    def propose(self, contexts):
        return [TokenTree.chain(self._drafts[len(c.token_ids) :][: c.budget]) for c in contexts]

    def observe(self, outcome) -> None:
        pass

    def release(self, request_id) -> None:
        pass


def random_mixture(args: argparse.Namespace) -> LoadedModel:
    config = ModelConfig(
        model_type="qwen2_moe", vocab_size=VOCAB, hidden_size=args.hidden, intermediate_size=args.inner,
        num_hidden_layers=args.layers, num_attention_heads=args.hidden // 64, num_key_value_heads=args.hidden // 64,
        head_dim=64, norm_eps=1e-6, max_position_embeddings=2048, tie_word_embeddings=True, attention_bias=False,
        experts=Experts(args.experts, args.per_token, norm_topk_prob=True),
    )  # fmt: skip
    checkpoint = RandomCheckpoint(config)
    source = ModelSource("random mixture", checkpoint, Numbers())  # type: ignore[arg-type]
    return LoadedModel(source, NumbaModel(checkpoint, "bfloat16", args.threads))


def measure_passes(model, args: argparse.Namespace) -> dict[str, dict]:
    """Milliseconds and experts touched by rows, after 64 tokens."""
    rng, context = np.random.default_rng(0), 64
    pages = range((context + max(ROWS)) // PAGE_SIZE + 1)
    cache = model.new_cache(len(pages))
    model.forward(build_rows([Part(pages, 0, rng.integers(0, VOCAB, context).tolist(), logits="last")]), cache)
    times: dict[int, list[float]] = {m: [] for m in ROWS}
    touched: dict[int, list[float]] = {m: [] for m in ROWS}
    for _ in range(args.passes):
        for m in ROWS:
            rows = build_rows([Part(pages, context, rng.integers(0, VOCAB, m).tolist())])
            start = time.perf_counter()
            model.forward(rows, cache)
            times[m].append(1000 * (time.perf_counter() - start))
            touched[m].append(model.experts_touched.mean())
    one = median(times[1])
    return {
        str(m): {
            "ms": median(times[m]),
            "ratio": median(times[m]) / one,
            "experts": float(np.mean(touched[m])),
            "expected": expected_experts(args.experts, args.per_token, m),
        }
        for m in ROWS
    }


def engine_for(loaded: LoadedModel, policy: str, length: int, drafter=None) -> Engine:
    """An engine with its own costs; `drafter` replaces prompt lookup."""
    config = EngineConfig(kv_cache_memory_bytes=1 << 27, profile="none", max_model_len=1024)
    speculative = SpeculativeConfig("ngram", length, policy=policy)  # type: ignore[arg-type]
    return build_engine(loaded, config, speculative, drafter=drafter)


def compare(loaded: LoadedModel, drafter: Corrupted, prompt, params, args: argparse.Namespace, advance) -> dict:
    """Every method in turns; ratios within a round, medians over rounds."""
    engines = {f"fixed {k}": engine_for(loaded, "fixed", k, drafter) for k in args.lengths}
    for policy in ("goodput", "cascade"):
        engines[policy] = engine_for(loaded, policy, max(args.lengths), drafter)
    plain = engine_for(loaded, "fixed", 0, drafter)
    assert isinstance(plain.speculation.policy, GuardedPolicy) and plain.speculation.policy.inner == Fixed(0)
    ratios: dict[str, list[float]] = {name: [] for name in engines}
    lengths, same = [], True
    for number in range(args.rounds):
        base = decode_window(plain, [prompt], params)
        names = list(engines)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            window = decode_window(engines[name], [prompt], params)
            ratios[name].append(window.tokens_per_second / base.tokens_per_second)
            same = same and same_as_far_as_both_go(window, base)
            if name == "cascade":
                lengths.append(window.draft_length)
        advance()
    vs_plain = {name: median(values) for name, values in ratios.items()}
    return {"vs_plain": vs_plain, "cascade_draft_length": median(lengths), "same_text": same}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.1, 0.3, 0.6, 0.9], help="acceptance rates")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 4, 8], help="fixed lengths")
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--per-token", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--inner", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=30, help="per number of rows")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
