"""Part of `sarathi.py`: simulates whole prompts and prompt chunks in a pipeline."""

import numpy as np

from paceline.placement.cost import Device
from paceline.placement.pipeline_bubbles import PipelineResult, StageSeconds, arithmetic_stage, simulate_pipeline
from paceline.scheduling import SchedulerConfig

A100 = Device(peak=312e12, bandwidth=2.0e12, link_bandwidth=300e9, link_latency=5e-6)
"""Data sheet: bfloat16 operations, memory of the 80 GB model, one direction of NVLink."""
GPT3_LAYERS, GPT3_WIDTH, TENSOR, STAGES, TILE = 96, 12288, 8, 8, 128
BATCH, PROMPT_TO_OUTPUT, ZIPF = 27, 10, 0.4
SHORTEST, LONGEST, ROWS = 1024, 4096, 256


def gpt3_stage() -> StageSeconds:
    """One of eight stages of GPT-3, on eight devices."""
    return arithmetic_stage(GPT3_LAYERS // STAGES, GPT3_WIDTH, A100, TENSOR, TILE)


def zipf_lengths(num_requests: int, shortest: int, longest: int, seed: int = 0) -> list[tuple[int, int]]:
    """(prompt, output) tokens: totals between the bounds with probability ~ total^-0.4, split 10 to 1."""
    totals = np.arange(shortest, longest + 1)
    chances = totals**-ZIPF
    drawn = np.random.default_rng(seed).choice(totals, num_requests, p=chances / chances.sum())
    outputs = np.maximum(1, drawn // (PROMPT_TO_OUTPUT + 1))
    return list(zip((drawn - outputs).tolist(), outputs.tolist(), strict=True))


def compare(
    stage: StageSeconds, lengths: list[tuple[int, int]], num_stages: int, batch: int, rows: int, tile: int
) -> dict:
    """Compare whole prompts (`orca`) with chunks that share passes with decodes (`sarathi`) on the same stages."""
    longest = max(map(sum, lengths))
    results = {
        policy: simulate_pipeline(
            lengths, SchedulerConfig(policy, rows, batch, longest, prefix_caching=False, tile=tile), num_stages, stage
        )
        for policy in ("orca", "sarathi")
    }
    orca, sarathi = results["orca"], results["sarathi"]
    medians = {policy: float(np.median(result.request_bubbles)) for policy, result in results.items()}
    return {
        "requests": len(lengths),
        "stages": num_stages,
        "batch": batch,
        "rows": rows,
        "policies": {policy: describe(result) for policy, result in results.items()},
        "median_bubble_ratio": medians["orca"] / medians["sarathi"] if medians["sarathi"] else None,
        "throughput_ratio": sarathi.throughput / orca.throughput,
    }


def describe(result: PipelineResult) -> dict:
    """The result as a record; seconds are summed over stages."""
    return {
        "seconds": result.seconds,
        "tokens_per_second": result.throughput,
        "bubble_share": result.bubble_share,
        "median_request_bubble_seconds": float(np.median(result.request_bubbles)),
        "bubble_seconds": result.bubbles,
    }
