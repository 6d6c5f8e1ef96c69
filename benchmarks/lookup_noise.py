"""How much the target's noise says about the next token, beside the chances of lookups.

The model answers prompts at some temperatures, with seeds. At every token of an answer the candidates of `suffix` are
taken with their chances q and the noise e of their draw; the score log q - b log e of a candidate, and c + d log(rest)
of all other tokens together, are fitted to the tokens that were said, by likelihood. `grow.py` uses b, c and d.

    python benchmarks/lookup_noise.py --prompts prompts.jsonl
    python benchmarks/lookup_noise.py --prompts prompts.jsonl --temperatures 0.7 1 --top-p 0.9 --limit 64

The last line of standard output is one JSON object.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from common import finish, read_prompts, show

from paceline import LLM, SamplingParams
from paceline.drafters.lookup.blended import NO_KEYS, Blended
from paceline.drafters.lookup.grow import MOST_CANDIDATES
from paceline.drafters.lookup.texts import PastOutputs, TextIndex
from paceline.sampling import CounterRandomness

HEADER = ["temperature", "tokens", "first", "of four", "with noise", "of four", "b", "c", "d", "nats", "with noise"]


def main() -> None:
    args = parse()
    plain = LLM(args.model, speculative=None, dtype=args.dtype, kv_cache_memory_bytes=1 << 30)
    drafter = plain.drafting_with("suffix").engine.drafter
    assert isinstance(drafter, Blended)
    prompts = [plain.user_prompt(one["text"]) for one in read_prompts(args.prompts)][: args.limit]
    found = {}
    for temperature in args.temperatures:
        law = {"temperature": temperature, "top_p": args.top_p, "max_tokens": args.max_tokens}
        outputs = plain.generate(prompts, [SamplingParams(**law, seed=n) for n in range(len(prompts))], progress=True)
        answers = [(one.prompt_token_ids, one.outputs[0].token_ids) for one in outputs]
        found[temperature] = fitted(*evidence(drafter, answers))
    show(f"{args.model}, top-p {args.top_p:g}", HEADER, [[t, *one.values()] for t, one in found.items()])
    finish({"temperatures": found})


def evidence(drafter: Blended, answers: Sequence[tuple]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(chances [n, candidates], 0 after the last one; their noise; the index of the token said, -1 for another)."""
    chances, noises, said = [], [], []
    nothing = PastOutputs(0).index
    for seed, (prompt, answer) in enumerate(answers):
        noise, own = CounterRandomness(seed), TextIndex()
        own.append(prompt)
        for position, token in enumerate(answer, start=len(prompt)):
            size = drafter._grown(own, nothing, MOST_CANDIDATES, 1, NO_KEYS, 0.0)
            tokens, _, reached = (array[:size] for array in drafter._room.tree)
            chances.append(np.pad(reached, (0, MOST_CANDIDATES - size)))
            values = noise.exponentials(tokens, position, "target")
            noises.append(np.pad(values, (0, MOST_CANDIDATES - size), constant_values=1.0))
            said.append(next(iter(np.flatnonzero(tokens == token).tolist()), -1))
            own.append([token])
    return torch.tensor(np.array(chances)), torch.tensor(np.array(noises)), torch.tensor(said)


def fitted(chances: torch.Tensor, noise: torch.Tensor, said: torch.Tensor) -> dict[str, float]:
    """The most likely b, c and d, and how often the token said is the first or among the first four of a ranking."""
    rest = torch.log((1 - chances.sum(1)).clamp_min(1e-3))
    place = torch.where(said < 0, MOST_CANDIDATES, said)
    numbers = torch.tensor([0.5, 0.5, 0.3], dtype=torch.float64, requires_grad=True)

    def scores(b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        known = (torch.log(chances.clamp_min(1e-12)) - b * torch.log(noise)).masked_fill(chances == 0, -1e9)
        return torch.cat([known, (c + d * rest)[:, None]], 1)

    def loss(*values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(scores(*values), place)

    def step() -> torch.Tensor:
        search.zero_grad()
        error = loss(*numbers)
        error.backward()
        return error

    search = torch.optim.LBFGS([numbers], max_iter=200, line_search_fn="strong_wolfe")
    search.step(step)
    b, c, d = numbers.detach()
    zero, one = torch.zeros(()), torch.ones(())
    return {
        "tokens": len(said),
        **_ranks("", scores(zero, zero, one), said),
        **_ranks("with noise ", scores(b, c, d), said),
        "b": float(b), "c": float(c), "d": float(d),
        "nats": float(loss(zero, zero, one)), "nats with noise": float(loss(b, c, d)),
    }  # fmt: skip


def _ranks(name: str, scores: torch.Tensor, said: torch.Tensor) -> dict[str, float]:
    order = scores[:, :-1].argsort(1, descending=True)
    return {f"{name}{k}": float((order[:, :k] == said[:, None]).any(1).double().mean()) for k in (1, 4)}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="a .jsonl file")
    parser.add_argument("--limit", type=int, default=96, help="most prompts")
    parser.add_argument("--model", default="smollm2-135m", help="as for `paceline generate`")
    parser.add_argument("--dtype", default="w8a8")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.3, 0.5, 0.7, 1.0, 1.3])
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--max-tokens", type=int, default=128)
    return parser.parse_args()


if __name__ == "__main__":
    main()
