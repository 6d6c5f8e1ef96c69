"""Drafts on the device: chains of a model and of an EAGLE-3 head beside it, against passes level by level."""

from functools import partial
from typing import Any

import numpy as np
import torch

from gpu_parts.bench import Bench
from gpu_parts.training import random_target

LENGTH = 4


def drafting(bench: Bench) -> dict[str, Any]:
    """Milliseconds of chains after some text, greedy and drawn, and the share of the greedy ones' tokens that passes
    level by level find."""
    from paceline.models.rows import Part, build_rows

    found: dict[str, Any] = {"tokens_of_a_chain": LENGTH}
    net, width = _head(bench), bench.checkpoint.config.hidden_size
    for count in (1, 2) if bench.quick else (1, 16):
        prompts = bench.prompts(count, 20)
        pages = [(2 * number, 2 * number + 1) for number in range(count)]
        rows = build_rows([Part(own, 0, text, logits="last") for own, text in zip(pages, prompts, strict=True)])
        model_cache, head_cache = bench.model.new_cache(2 * count), net.new_cache(2 * count)
        fed = np.random.default_rng(0).standard_normal((len(rows.token_ids), width)).astype(np.float32)

        def model(rows: Any = rows, cache: Any = model_cache, length: int = LENGTH, draws: Any = None) -> Any:
            return bench.model.draft_chains(rows, cache, length, draws)

        def head(
            rows: Any = rows, fed: Any = fed, cache: Any = head_cache, length: int = LENGTH, draws: Any = None
        ) -> Any:
            return net.draft_chains(rows, fed, cache, length, draws)

        drawn = partial(model, draws=_draws(count)), partial(head, draws=_draws(count))
        found[str(count)] = {
            "model_ms": 1e3 * bench.seconds(model),
            "model_first_token_ms": 1e3 * bench.seconds(lambda: model(length=1)),
            "model_drawn_ms": 1e3 * bench.seconds(drawn[0]),
            "head_ms": 1e3 * bench.seconds(head),
            "head_first_token_ms": 1e3 * bench.seconds(lambda: head(length=1)),
            "head_drawn_ms": 1e3 * bench.seconds(drawn[1]),
            "same_as_level_by_level": float((head().tokens == _by_levels(net, pages, prompts, rows, fed)).mean()),
        }  # fmt: skip
    return found


def _draws(count: int) -> Any:
    """Noise for `count` chains at temperature 1, with top-p."""
    from paceline.models.chains import Draws

    ones = np.ones(count)
    return Draws(ones, 0 * ones, 0 * ones, 0.9 * ones, np.arange(count * LENGTH, dtype=np.uint64).reshape(count, -1))


def _head(bench: Bench) -> Any:
    """An EAGLE-3 head with random weights beside the model."""
    from paceline.models.heads.build import make_net
    from paceline.models.loaded import LoadedModel
    from paceline.models.resolve import ModelSource
    from paceline.training.heads.recipes import recipe_of

    ids = np.arange(min(32_768, bench.checkpoint.config.vocab_size), dtype=np.int32)
    torch.manual_seed(0)
    recipe = recipe_of("eagle3")(random_target(bench), ids, LENGTH)
    record = recipe.record(recipe.net.state_dict(), {})
    source = ModelSource("random", bench.checkpoint, None)  # type: ignore[arg-type]
    return make_net(record, LoadedModel(source, bench.model))


def _by_levels(net: Any, pages: Any, prompts: Any, rows: Any, fed: np.ndarray) -> np.ndarray:
    """[requests, LENGTH] the same chains by passes whose logits are fetched."""
    from paceline.models.rows import Part, build_rows

    cache, tokens, last = net.new_cache(2 * len(pages)), [], rows.logit_rows
    for level in range(LENGTH):
        logits, hidden = net.forward(rows, fed, cache)
        tokens.append(logits.argmax(axis=1))
        fed, last = hidden[last].copy(), np.arange(len(pages))
        at = [len(prompt) + level for prompt in prompts]
        rows = build_rows([Part(own, start, [token]) for own, start, token in zip(pages, at, tokens[-1], strict=True)])
    return np.stack(tokens, axis=1)
