"""A real model: differences of its logits on its own text, whether drafts change its text, and speeds.

Each figure is also printed when it is known: the part takes a minute or two, which a short lease of a GPU may not have.
"""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from gpu_parts.bench import Bench, compared

QUESTIONS = (
    "Explain why the sky is blue to a curious child.",
    "Write a short letter to a neighbour about a noisy dog.",
    "What are three good habits for learning a language?",
    "Describe how bread is made, step by step.",
    "List five facts about the moon.",
    "Give advice to someone who starts a new job next week.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "What is the difference between weather and climate?",
)
DRAFTERS = {"auto": None, "suffix": 8, "eagle3": 3, "dspark": 3, "mlp_speculator": 3, "medusa": 3}
"""Tokens that each drafts at most, None for its own choice; heads that do not exist for the model are left out."""


def real(bench: Bench) -> dict[str, Any]:
    """Of the model that ``--model`` names: tokens per second plainly and with drafts, alone and eight at once."""
    if bench.model_path is None:
        return {"skipped": "name a model with --model"}
    llm = _load(bench, None)
    texts, plain = _measured(bench, llm)
    found: dict[str, Any] = {"parity": _parity(bench, llm, texts), "plain": plain}
    _say(found)
    del llm
    for name in DRAFTERS:
        try:
            drafting = _load(bench, name)
        except Exception as error:
            found[name] = {"skipped": f"{type(error).__name__}: {error}"}
            continue
        said, figures = _measured(bench, drafting)
        found[name] = figures | {"same_texts": sum(a == b for a, b in zip(said, texts, strict=True))}
        _say({name: found[name]})
        del drafting
        bench.tidy()
    return found | {"texts": len(QUESTIONS), "deterministic": _same_texts(bench, [*found][2:])}


def _say(figures: dict[str, Any]) -> None:
    print(f"real: {json.dumps(figures)}", file=sys.stderr, flush=True)


def _load(bench: Bench, drafter: str | None, policy: str = "auto", **options: Any) -> Any:
    """The model, drafting by one of `DRAFTERS` or not at all."""
    from paceline import LLM

    number = DRAFTERS.get(drafter or "")
    wanted = drafter if number is None else {"method": drafter, "num_draft_tokens": number, "policy": policy}
    dtype = "bfloat16" if bench.on.type == "cuda" else "float32"
    return LLM(
        str(bench.model_path), device=bench.device, executor="cuda", dtype=dtype, prefix_caching=False,
        kv_cache_memory_bytes=1 << 30, speculative=wanted, **options,
    )  # fmt: skip


def _answers(llm: Any, bench: Bench, count: int = len(QUESTIONS), **sampling: Any) -> list[Any]:
    from paceline import SamplingParams

    params = SamplingParams(max_tokens=12 if bench.quick else 128, **({"temperature": 0} | sampling))
    return llm.chat([[{"role": "user", "content": question}] for question in QUESTIONS[:count]], params)


def _measured(bench: Bench, llm: Any) -> tuple[list[tuple[int, ...]], dict[str, Any]]:
    """(greedy texts, tokens per second of all and of one), after a run that records graphs and compiles kernels."""
    figures = {}
    for name, count in (("all", len(QUESTIONS)), ("one", 1)):
        for _ in range(2):
            began = time.perf_counter()
            found = _answers(llm, bench, count)
            seconds = time.perf_counter() - began
        figures[name] = sum(len(each.outputs[0].token_ids) for each in found) / seconds
        if name == "all":
            answers = found
    stats = [answer.stats for answer in answers]
    drafted, accepted = (sum(getattr(each, f"num_{what}_tokens") for each in stats) for what in ("draft", "accepted"))
    texts = [tuple(answer.outputs[0].token_ids) for answer in answers]
    return texts, {"tokens_per_second": figures, "drafted": drafted, "accepted": accepted}


def _parity(bench: Bench, llm: Any, texts: Sequence[Sequence[int]]) -> dict[str, float]:
    """See `compared`, on what the model said."""
    from paceline.models.resolve import resolve_model
    from paceline.models.torch_executor import TorchModel

    ids = [token for text in texts for token in text][:480]
    ours = bench.logits_of(llm.engine._model, ids)
    wanted = bench.logits_of(TorchModel(resolve_model(str(bench.model_path)).checkpoint, bench.device, "float32"), ids)
    return {"positions": len(ids), **compared(ours, wanted)}


def _same_texts(bench: Bench, methods: Sequence[str]) -> dict[str, Any]:
    """With sums in one order: texts alone and together, and with drafts, greedy and seeded, that are the plain ones."""
    seeded = {"temperature": 1.0, "seed": 7}

    def texts(answers: Sequence[Any]) -> list[Any]:
        return [answer.outputs[0].token_ids for answer in answers]

    exact = {"deterministic": bench.attention == "triton"}
    plain = _load(bench, None, **exact)
    wanted = texts(_answers(plain, bench)), texts(_answers(plain, bench, **seeded))
    found: dict[str, Any] = {"alone": int(_answers(plain, bench, 1)[0].outputs[0].token_ids == wanted[0][0])}
    for method in methods:
        try:
            llm = _load(bench, method, "fixed", **exact)
        except Exception as error:
            found[method] = {"skipped": f"{type(error).__name__}: {error}"}
            continue
        answers = _answers(llm, bench)
        drafted = sum(answer.stats.num_draft_tokens for answer in answers)
        said = texts(answers), texts(_answers(llm, bench, **seeded))
        greedy, drawn = ([a == b for a, b in zip(*both, strict=True)] for both in zip(said, wanted, strict=True))
        found[method] = {"greedy": sum(greedy), "seeded": sum(drawn), "drafted": drafted}
        _say({f"{method}, deterministic": found[method]})
        del llm
        bench.tidy()
    return found
