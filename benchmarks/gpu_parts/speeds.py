"""How fast: memory, passes by their rows, plain and speculative decoding, and transformers where it is installed."""

import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch

from gpu_parts.bench import Bench, answer_all, compared, measured
from gpu_parts.checks import model_in_blocks, random_blocks
from gpu_parts.stand_ins import RandomWeights, make_lookups, mixture_config

NUM_DRAFTS = 4
_SPOKEN = 64
"""Tokens of texts that repeat themselves within some dozens of tokens."""
_CONTEXT = 96
"""Tokens before the rows of a pass that is timed, as many as requests that decode have on average here."""


def bandwidth(bench: Bench) -> dict[str, Any]:
    """Bytes per second of reading memory, by a sum and by a copy (which reads and writes); the larger is the limit."""
    count = 1 << (20 if bench.quick else 29)
    source = torch.ones(count, dtype=torch.float32, device=bench.on)
    target = torch.empty_like(source)
    read = source.nbytes / bench.seconds(lambda: source.sum())
    copied = 2 * source.nbytes / bench.seconds(lambda: target.copy_(source))
    return {"read_gb_per_second": read / 1e9, "copy_gb_per_second": copied / 1e9, "limit": max(read, copied) / 1e9}


def passes(bench: Bench) -> dict[str, Any]:
    """t(M): milliseconds of a pass over M rows after a short context, as users get it and with sums in one order."""
    counts = (1, 2, 5, 8) if bench.quick else (1, 2, 4, 5, 8, 16, 32, 64, 128, 256)
    found: dict[str, Any] = {"context": _CONTEXT}
    for name, model in (("default", bench.model), ("deterministic", bench.exact)):
        found[name] = pass_times(bench, model, counts)
    limit = bench.results["bandwidth"].get("limit")
    weights = bench.model.num_bytes
    found["weights_gb"] = weights / 1e9
    if limit:
        found["one_row_of_bandwidth_limit"] = weights / 1e9 / limit / (found["default"][1] / 1e3)
    return found


def pass_times(bench: Bench, model: Any, counts: Sequence[int]) -> dict[int, float]:
    """Milliseconds of passes over so many rows, from their launch until the device has done them."""
    from paceline.models.rows import Part, build_rows

    pages, found = list(range((_CONTEXT + max(counts)) // 16 + 1)), {}
    cache = model.new_cache(len(pages))
    for count in counts:
        rows = build_rows([Part(pages, _CONTEXT, bench.prompts(1, count)[0])])

        def run(rows: Any = rows) -> None:
            with torch.inference_mode():
                model.launch(rows, cache)

        if not found:
            bench.warm_up(run)
        found[count] = 1e3 * bench.seconds(run)
    return found


def blocks(bench: Bench) -> dict[str, Any]:
    """Weights in blocks of 4 and 8 bits: products over few rows, and milliseconds of passes of the whole model."""
    from paceline.models.cuda_executor.block_layers import times

    found: dict[str, Any] = {}
    outputs, inputs = (64, 64) if bench.quick else (17_920, 1536)
    for bits in (4, 8):
        matrices = [random_blocks(bench, bits, outputs, inputs) for _ in range(1 if bench.quick else 8)]
        for rows in (1, 16):
            x = torch.randn(rows, inputs, device=bench.on, dtype=getattr(torch, bench.dtype))

            def run(x: torch.Tensor = x, matrices: Any = matrices) -> None:
                with bench.current():
                    for matrix in matrices:
                        times(matrix, x)

            seconds = bench.seconds(run) / len(matrices)
            rate = matrices[0].nbytes / 1e9 / seconds
            found[f"{bits}_bits_{rows}_rows"] = {"microseconds": 1e6 * seconds, "gb_per_second": rate}
        del matrices
        model = model_in_blocks(bench, bits)
        counts = (1, 5) if bench.quick else (1, 5, 16, 64, 256)
        found[f"{bits}_bits"] = {"weights_gb": model.num_bytes / 1e9, "passes": pass_times(bench, model, counts)}
    return found


def decoding(bench: Bench) -> dict[str, Any]:
    """Tokens per second at 1 to 64 requests: plainly, greedy and at a temperature, with drafts of one length, and of a
    length that adapts.

    Theory of drafts of one length: tokens of a pass, as measured, times the time of a plain pass over that of a pass
    with drafts.
    """
    return _at_sizes(bench, (1, 2) if bench.quick else (1, 4, 16, 64))


def larger(bench: Bench) -> dict[str, Any]:
    """`decoding` of one request by a model of the shape of Qwen2.5-7B: what a pass takes besides its weights matters
    less the larger these are."""
    own = Bench(bench.device, bench.quick, bench.deadline, bench.errors, "7b")
    own.results["bandwidth"] = bench.results["bandwidth"]
    own.results["passes"]["default"] = pass_times(own, own.model, (1, 5))
    return {"weights_gb": own.model.num_bytes / 1e9, "passes": own.results["passes"]["default"], **_at_sizes(own, (1,))}


def mixtures(bench: Bench) -> dict[str, Any]:
    """t(M) of a mixture of experts, and the share of the bandwidth at which a pass over one row reads the weights that
    it needs: all but those of the experts that its row did not choose. Drafts make passes read more experts."""
    own = Bench(bench.device, bench.quick, bench.deadline, bench.errors)
    own.__dict__["checkpoint"] = RandomWeights(mixture_config(bench.quick))
    times = pass_times(own, own.model, (1, 2, 5) if bench.quick else (1, 2, 4, 5, 8, 16, 32, 64))
    config, limit = own.model.config, bench.results["bandwidth"].get("limit")
    per_expert = 3 * config.hidden_size * config.intermediate_size * config.num_hidden_layers
    spared = config.experts.num_experts - config.experts.num_experts_per_tok
    needed = own.model.num_bytes - spared * per_expert * getattr(torch, own.dtype).itemsize
    found = {"weights_gb": own.model.num_bytes / 1e9, "needed_gb": needed / 1e9, "passes": times,
             "recorded": own.model.passes.records}  # fmt: skip
    return found | ({"one_row_of_bandwidth_limit": needed / 1e9 / limit / (times[1] / 1e3)} if limit else {})


def lookups(bench: Bench) -> dict[str, Any]:
    """Prompt lookup, whose steps are launched before their drafts are known: tokens per second of one request whose
    text repeats itself, plainly, with drafts that wait for verification, and with drafts found on the device."""
    from paceline.theory.speedup import measured_speedup

    own = Bench(bench.device, bench.quick, bench.deadline, bench.errors, bench.shape)
    own.__dict__["checkpoint"] = RandomWeights(bench.checkpoint.config, spoken=_SPOKEN)
    prompts, length = [[token % _SPOKEN for token in own.prompts(1)[0]]], 12 if bench.quick else 256
    engines = {
        "plain": own.engine(own.model),
        "waiting": own.engine(own.model, NUM_DRAFTS, drafter=make_lookups()),
        "ahead": own.engine(own.model, NUM_DRAFTS, drafter=make_lookups()),
    }
    engines["waiting"].cache.lookups = None
    found, foreseen = {}, own.model._foreseen
    for name, engine in engines.items():
        before = foreseen.num_foreseen, foreseen.num_taken
        found[name] = measured(engine, prompts, length)
        begun = foreseen.num_foreseen - before[0], foreseen.num_taken - before[1]
        found[name] |= {"passes_launched_ahead": begun[0], "of_these_taken": begun[1]}
    times = pass_times(own, own.model, (1, 5))
    found["passes"] = times
    for name in ("waiting", "ahead"):
        per_step = found[name]["tokens_per_step_and_request"]
        theory = float(measured_speedup(per_step, NUM_DRAFTS, lambda rows: interpolated(times, rows)))
        speedup = found[name]["tokens_per_second"] / found["plain"]["tokens_per_second"]
        found[name] |= {"speedup": speedup, "of_theory": speedup / theory}
    return found


def _at_sizes(bench: Bench, sizes: Sequence[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for size in sizes:
        if time.perf_counter() > bench.deadline:
            found[str(size)] = {"skipped": "no time left"}
            continue
        found[str(size)] = _decoding(bench, size, 12 if bench.quick else 128)
        bench.tidy()
    limit, weights = bench.results["bandwidth"].get("limit"), bench.model.num_bytes
    if limit:
        found["plain_of_bandwidth_limit"] = found["1"]["plain"]["tokens_per_second"] * weights / 1e9 / limit
    return found


def _decoding(bench: Bench, size: int, length: int) -> dict[str, Any]:
    """All three ways with `size` requests."""
    from paceline.theory.speedup import measured_speedup

    prompts = bench.prompts(size)
    engine = bench.engine(bench.model)
    texts, _ = answer_all(engine, prompts, length)
    plain = measured(engine, prompts, length)
    drawn = measured(engine, prompts, length, temperature=0.8, seed=1)
    answers = {tuple(prompt): text for prompt, text in zip(prompts, texts, strict=True)}
    drafted = measured(bench.engine(bench.model, NUM_DRAFTS, answers), prompts, length)
    adaptive = measured(bench.engine(bench.model, NUM_DRAFTS, answers, "auto"), prompts, length)
    speedup, adapted = (each["tokens_per_second"] / plain["tokens_per_second"] for each in (drafted, adaptive))
    found = {
        "plain": plain, "drawn": drawn, "speculative": drafted, "adaptive": adaptive, "speedup": speedup,
        "adaptive_speedup": adapted,
    }  # fmt: skip
    times = bench.results["passes"].get("default")
    if times:
        by_theory = measured_speedup(
            drafted["tokens_per_step_and_request"], NUM_DRAFTS, lambda rows: interpolated(times, size * rows)
        )
        found |= {"speedup_by_theory": float(by_theory), "of_theory": speedup / float(by_theory)}
    return found


def interpolated(times: dict[int, float], rows: int) -> float:
    """Milliseconds of a pass over `rows`, between those measured; beyond the last, in proportion."""
    counts = sorted(times)
    above = next((count for count in counts if count >= rows), None)
    if above is None:
        return times[counts[-1]] * rows / counts[-1]
    below = max((count for count in counts if count <= rows), default=above)
    share = (rows - below) / max(above - below, 1)
    return times[below] + share * (times[above] - times[below])


def transformers(bench: Bench) -> dict[str, Any]:
    """Tokens per second of transformers' `generate` with the same weights; how near its logits are, see `parity`."""
    if find_spec("transformers") is None:
        return {"skipped": "transformers is not installed"}
    from transformers import AutoModelForCausalLM, Qwen2Config

    ours = bench.checkpoint.config
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "max_position_embeddings", "tie_word_embeddings", "rope_theta")  # fmt: skip
    config = Qwen2Config(**{name: getattr(ours, name) for name in names}, rms_norm_eps=ours.norm_eps)
    with bench.on:
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, bench.dtype)).eval()
    model.load_state_dict({name: torch.from_numpy(bench.checkpoint.tensor(name)) for name in bench.checkpoint.names()},
                          strict=False)  # fmt: skip
    with torch.inference_mode():
        logits = model(torch.tensor([bench.text], device=bench.on)).logits[0].float().cpu().numpy()
    length, found = (8 if bench.quick else 64), {"parity": compared(logits, bench.reference)}
    for size in (1, 2) if bench.quick else (1, 16):
        prompts = torch.tensor(bench.prompts(size), device=bench.on)

        def run(prompts: torch.Tensor = prompts, length: int = length) -> None:
            model.generate(
                prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=length, min_new_tokens=length,
                do_sample=False, pad_token_id=0,
            )  # fmt: skip

        found[str(size)] = {"tokens_per_second": size * length / bench.seconds(run, repeats=1)}
    return found
