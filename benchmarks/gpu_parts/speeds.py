"""How fast: memory, passes by their rows, plain and speculative decoding, and transformers where it is installed."""

import time
from importlib.util import find_spec
from typing import Any

import torch

from gpu_parts.bench import Bench, answer_all

NUM_DRAFTS = 4


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
    from paceline.models.rows import Part, build_rows

    counts = (1, 2, 5, 8) if bench.quick else (1, 2, 4, 5, 8, 16, 32, 64, 128, 256)
    context, found = 16 if bench.quick else 256, {}
    pages = list(range((context + max(counts)) // 16 + 1))
    for name, model in (("default", bench.model), ("deterministic", bench.exact)):
        cache = model.new_cache(len(pages))
        found[name] = {}
        for count in counts:
            rows = build_rows([Part(pages, context, bench.prompts(1, count)[0])])

            def run(model: Any = model, rows: Any = rows, cache: Any = cache) -> None:
                with torch.inference_mode():
                    model.launch(rows, cache)

            found[name][count] = 1e3 * bench.seconds(run)
        found[f"graphs_{name}"] = len(cache.graphs)
    limit = bench.results["bandwidth"].get("limit")
    weights = bench.model.num_bytes
    found["weights_gb"] = weights / 1e9
    if limit:
        found["one_row_of_bandwidth_limit"] = weights / 1e9 / limit / (found["default"][1] / 1e3)
    return found


def decoding(bench: Bench) -> dict[str, Any]:
    """Tokens per second at 1 to 64 requests: plainly, with drafts of one length, and of a length that adapts.

    Theory of the former: tokens of a pass, as measured, times the time of a plain pass over that of a pass with drafts.
    """
    sizes, length = ((1, 2), 12) if bench.quick else ((1, 4, 16, 64), 128)
    found: dict[str, Any] = {}
    for size in sizes:
        if time.perf_counter() > bench.deadline:
            found[str(size)] = {"skipped": "no time left"}
            continue
        found[str(size)] = _decoding(bench, size, length)
        bench.tidy()
    limit, weights = bench.results["bandwidth"].get("limit"), bench.model.num_bytes
    if limit:
        found["plain_of_bandwidth_limit"] = found["1"]["plain"]["tokens_per_second"] * weights / 1e9 / limit
    return found


def _decoding(bench: Bench, size: int, length: int) -> dict[str, Any]:
    """Both ways with `size` requests; what is first run records graphs and does not count."""
    from paceline.theory.speedup import measured_speedup

    prompts = bench.prompts(size)
    engine = bench.engine(bench.model)
    texts, _ = answer_all(engine, prompts, length)
    _, plain = answer_all(engine, prompts, length)
    answers = {tuple(prompt): text for prompt, text in zip(prompts, texts, strict=True)}
    engine = bench.engine(bench.model, NUM_DRAFTS, answers)
    answer_all(engine, prompts, length)
    _, drafted = answer_all(engine, prompts, length)
    engine = bench.engine(bench.model, NUM_DRAFTS, answers, "auto")
    answer_all(engine, prompts, length)
    _, adaptive = answer_all(engine, prompts, length)
    speedup, adapted = (each["tokens_per_second"] / plain["tokens_per_second"] for each in (drafted, adaptive))
    found = {
        "plain": plain, "speculative": drafted, "adaptive": adaptive, "speedup": speedup, "adaptive_speedup": adapted,
    }  # fmt: skip
    times = bench.results["passes"].get("default")
    if times:
        by_theory = measured_speedup(
            drafted["tokens_per_step_and_request"], NUM_DRAFTS, lambda rows: _interpolated(times, size * rows)
        )
        found |= {"speedup_by_theory": float(by_theory), "of_theory": speedup / float(by_theory)}
    return found


def _interpolated(times: dict[int, float], rows: int) -> float:
    """Milliseconds of a pass over `rows`, between those measured; beyond the last, in proportion."""
    counts = sorted(times)
    above = next((count for count in counts if count >= rows), None)
    if above is None:
        return times[counts[-1]] * rows / counts[-1]
    below = max((count for count in counts if count <= rows), default=above)
    share = (rows - below) / max(above - below, 1)
    return times[below] + share * (times[above] - times[below])


def transformers(bench: Bench) -> dict[str, Any]:
    """Tokens per second of transformers' `generate` on random weights of the same shape and dtype."""
    if find_spec("transformers") is None:
        return {"skipped": "transformers is not installed"}
    from transformers import AutoModelForCausalLM, Qwen2Config

    ours = bench.checkpoint.config
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "max_position_embeddings", "tie_word_embeddings")  # fmt: skip
    config = Qwen2Config(**{name: getattr(ours, name) for name in names})
    with bench.on:
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, bench.dtype)).eval()
    length, found = (8 if bench.quick else 64), {}
    for size in (1, 2) if bench.quick else (1, 16):
        prompts = torch.tensor(bench.prompts(size), device=bench.on)

        def run(prompts: torch.Tensor = prompts, length: int = length) -> None:
            model.generate(
                prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=length, min_new_tokens=length,
                do_sample=False, pad_token_id=0,
            )  # fmt: skip

        found[str(size)] = {"tokens_per_second": size * length / bench.seconds(run, repeats=2)}
    return found
