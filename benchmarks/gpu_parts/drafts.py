"""Drafts on the device: chains of a model and of an EAGLE-3 head beside it, alone and in an engine."""

from functools import partial
from typing import Any

import numpy as np
import torch

from gpu_parts.bench import Bench, measured
from gpu_parts.speeds import interpolated, pass_times
from gpu_parts.stand_ins import RandomWeights
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


def heads(bench: Bench) -> dict[str, Any]:
    """An EAGLE-3 head in an engine: tokens per second of one request plainly, with drafts that are fetched before the
    pass that verifies them is launched, and with both launched before the verdict on the drafts before is known.

    The head, as costly as any, says the target's latest token again, and the model is one that repeats itself. Theory:
    tokens of a pass, as measured, times the time of a plain pass over that of a pass with drafts and a draft after it.
    """
    own = Bench(bench.device, bench.quick, bench.deadline, bench.errors, bench.shape)
    own.__dict__["checkpoint"] = RandomWeights(bench.checkpoint.config, spoken=1)
    net, prompts, length = _head(own, repeats=True), own.prompts(1), 12 if bench.quick else 256
    times = pass_times(own, own.model, (1, 5))
    found: dict[str, Any] = {"passes": times, "draft_ms": _draft_ms(own, net)}
    verify, foreseen = net.verify, own.model._foreseen
    for name in ("plain", "waiting", "early"):
        if name == "waiting":
            net.verify, foreseen.verifies_early = None, False
        elif name == "early":
            net.verify, foreseen.verifies_early = verify, verify is not None
        engine = own.engine(own.model) if name == "plain" else _engine_with(own, net)
        before = foreseen.num_foreseen, foreseen.num_taken
        found[name] = measured(engine, prompts, length)
        begun = foreseen.num_foreseen - before[0], foreseen.num_taken - before[1]
        found[name] |= {"passes_launched_ahead": begun[0], "of_these_taken": begun[1]}
    for name in ("waiting", "early"):
        per_step = found[name]["tokens_per_step_and_request"]
        step = interpolated(times, 1 + LENGTH) + found["draft_ms"]
        speedup = found[name]["tokens_per_second"] / found["plain"]["tokens_per_second"]
        found[name] |= {"speedup": speedup, "of_theory": speedup / (per_step * times[1] / step)}
    return found


def _draft_ms(bench: Bench, net: Any) -> float:
    """Milliseconds that a draft takes the device, after a pass that hides the host's part."""
    from paceline.models.rows import Part, build_rows
    from paceline.models.torch_executor.device_states import DeviceStates

    prompt, width = bench.prompts(1, 3)[0], len(net.record.config.taps) * bench.checkpoint.config.hidden_size
    rows = build_rows([Part((0, 1), 0, prompt, logits="last")])
    caches = bench.model.new_cache(2), net.new_cache(2)
    taps = net.project(DeviceStates(torch.randn(len(prompt), width, device=bench.on)))

    def passes(draft: bool = True) -> None:
        with torch.inference_mode():
            bench.model.launch(rows, caches[0])
            if draft:
                net.launch_chains(rows, taps, caches[1], LENGTH, net._picks(None))

    bench.warm_up(passes)
    return 1e3 * (bench.seconds(passes) - bench.seconds(partial(passes, False)))


def _engine_with(bench: Bench, net: Any) -> Any:
    """An engine that drafts with a head."""
    from paceline.drafters.heads.head import HeadDrafter, make_runner
    from paceline.drafters.heads.hidden_states import HiddenStates

    config, states = net.record.config, HiddenStates(net.record.config.taps, bench.model, None)  # type: ignore[arg-type]
    runner = make_runner(net, states, 256, bench.checkpoint.config.vocab_size)
    engine = bench.engine(bench.model, LENGTH, drafter=HeadDrafter(config.family, runner, net.record))
    states._cache = engine.cache
    return engine


def _head(bench: Bench, repeats: bool = False) -> Any:
    """An EAGLE-3 head with random weights beside the model, or one that predicts the target's latest token again."""
    from paceline.models.heads.build import make_net
    from paceline.models.loaded import LoadedModel
    from paceline.models.resolve import ModelSource
    from paceline.training.heads.recipes import recipe_of

    ids = np.arange(min(32_768, bench.checkpoint.config.vocab_size), dtype=np.int32)
    torch.manual_seed(0)
    recipe = recipe_of("eagle3")(random_target(bench), ids, LENGTH)
    weights = {name: values.clone() for name, values in recipe.net.state_dict().items()}
    if repeats:
        width = bench.checkpoint.config.hidden_size
        for name, values in weights.items():
            if name.endswith(("o_proj.weight", "down_proj.weight", "fc.weight")):
                values.zero_()
        weights["fc.weight"][:, -width:] = torch.eye(width)
    source = ModelSource("random", bench.checkpoint, None)  # type: ignore[arg-type]
    return make_net(recipe.record(weights, {}), LoadedModel(source, bench.model))


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
