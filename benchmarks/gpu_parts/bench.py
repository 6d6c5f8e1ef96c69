"""`Bench`: what the parts of the program share: the device, the model, an engine around it, and clocks."""

import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_parts.stand_ins import NumberTokenizer, RandomWeights, make_recorded, qwen_config

_SETTLING = 1.0
"""Seconds of work until a GPU's clock no longer rises."""
_MOST_RUNS = 40


@dataclass
class Bench:
    """One run.

    Attributes:
        device: torch's name of it.
        quick: a tiny model and few repetitions, to see that everything runs.
        deadline: `time.perf_counter` after which no part begins.
        errors: probability that a drafted token is wrong.
        shape: of the model that is measured, see `qwen_config`; ignored where it is quick.
        model_path: of a real model, if one is given.
        results: of the parts so far, by name.
    """

    device: str
    quick: bool
    deadline: float
    errors: float = 0.2
    shape: str = "1.5b"
    model_path: Path | None = None
    results: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))

    @cached_property
    def on(self) -> torch.device:
        """The device."""
        return torch.device(self.device)

    @cached_property
    def dtype(self) -> str:
        """What weights are stored in."""
        return "float32" if self.quick else "bfloat16"

    @cached_property
    def attention(self) -> str:
        """Name of the attention: the kernel, or its reference implementation where there is no GPU."""
        from paceline.models.cuda_executor.attention import choose_attention

        return choose_attention("auto", self.on) if self.on.type == "cuda" else "by_position"

    @cached_property
    def checkpoint(self) -> RandomWeights:
        """Random weights of the shape that is measured."""
        return RandomWeights(qwen_config("quick" if self.quick else self.shape))

    @cached_property
    def reference(self) -> Any:
        """[positions, vocab] the torch executor's logits in float32 of `text`, on the host."""
        from paceline.models.torch_executor import TorchModel

        return self.logits_of(TorchModel(self.checkpoint, self.device, "float32"), self.text)

    @cached_property
    def text(self) -> list[int]:
        """Random token ids whose logits are compared."""
        return self.prompts(1, 24 if self.quick else 256)[0]

    def logits_of(self, model: Any, text: Sequence[int]) -> Any:
        """[positions, vocab] of `text`, in two chunks."""
        from paceline.models.rows import Part, build_rows

        pages, half = list(range(len(text) // 16 + 2)), len(text) // 2
        cache = model.new_cache(len(pages))
        parts = (Part(pages, 0, text[:half]), Part(pages, half, text[half:]))
        return np.concatenate([model.forward(build_rows([part]), cache).logits for part in parts])

    @cached_property
    def model(self) -> Any:
        """The executor with default settings."""
        return self.make_model(self.dtype, deterministic=False)

    @cached_property
    def exact(self) -> Any:
        """The executor in its deterministic mode, with sums in one order."""
        return self.make_model(self.dtype, deterministic=True)

    def make_model(self, dtype: str, deterministic: bool) -> Any:
        """A `CudaModel` of the weights."""
        from paceline.models.cuda_executor import CudaModel

        return CudaModel(
            self.checkpoint, self.device, dtype, attention=self.attention, deterministic=deterministic  # type: ignore
        )  # fmt: skip

    def engine(
        self, model: Any, num_drafts: int = 0, answers: dict | None = None, policy: Any = "fixed", drafter: Any = None,
        method: str = "ngram",
    ) -> Any:  # fmt: skip
        """An engine around `model` that drafts up to `num_drafts` tokens of the recorded `answers` each step, or by
        `drafter`, or by `method`."""
        from paceline.config import EngineConfig, SpeculativeConfig
        from paceline.engine.setup.build import build_engine
        from paceline.models.loaded import LoadedModel
        from paceline.models.resolve import ModelSource

        source = ModelSource("random", self.checkpoint, NumberTokenizer(model.config.vocab_size))  # type: ignore
        room = 1 << (23 if self.quick else 30)
        config = EngineConfig(
            executor="cuda", device=self.device, kv_cache_memory_bytes=room, profile="none", prefix_caching=False
        )  # fmt: skip
        spec = SpeculativeConfig(method if num_drafts else "plain", policy=policy, num_draft_tokens=num_drafts)
        drafter = make_recorded(answers, self.errors) if answers else drafter
        return build_engine(LoadedModel(source, model), config, spec, drafter=drafter)

    def prompts(self, count: int, length: int | None = None) -> list[list[int]]:
        """Random token ids, the same ones every time."""
        rng, length = np.random.default_rng(count), length or (8 if self.quick else 32)
        return rng.integers(0, self.checkpoint.config.vocab_size, (count, length)).tolist()

    def warm_up(self, run: Callable[[], Any]) -> None:
        """Repeat `run` for a second, or twice on a tiny model: a GPU that was idle begins at a lower clock."""
        until, count = time.perf_counter() + _SETTLING, 0
        while count < 2 or (not self.quick and time.perf_counter() < until):
            run()
            self.wait()
            count += 1

    def seconds(self, run: Callable[[], Any], repeats: int = 20) -> float:
        """The median time of `run`, the device's work included, after two runs that do not count."""
        times = []
        for _ in range(2 + (2 if self.quick else repeats)):
            self.wait()
            began = time.perf_counter()
            run()
            self.wait()
            times.append(time.perf_counter() - began)
        return statistics.median(times[2:])

    def current(self) -> Any:
        """A context in which the device is current, for kernels that are called directly: Triton launches there."""
        from paceline.models.cuda_executor.graphs import on_device

        return on_device(self.on)

    def tidy(self) -> None:
        """Free unused memory, unless all is small: engines are in reference cycles, and their caches are large."""
        if self.quick:
            return
        gc.unfreeze()
        gc.collect()
        if self.on.type == "cuda":
            torch.cuda.empty_cache()

    def wait(self) -> None:
        """Wait until the device has finished all work."""
        if self.on.type == "cuda":
            torch.cuda.synchronize(self.on)


def compared(logits: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """Measures of the difference between logits [positions, vocab] and a reference's."""
    scale, apart = float(reference.std()), np.abs(logits - reference)
    return {
        "mean_difference_in_deviations": float(apart.mean() / scale),
        "largest_difference_in_deviations": float(apart.max() / scale),
        "same_argmax": float((logits.argmax(1) == reference.argmax(1)).mean()),
    }


def measured(engine: Any, prompts: Sequence[Sequence[int]], max_tokens: int, **sampling: Any) -> dict:
    """The figures of `answer_all` in a run that records no graph, at least a second after the latest recording.

    Recording takes some milliseconds per graph, and a GPU that waited for it runs at a lower clock at first. Searching
    all loaded libraries for garbage takes a tenth of a second, so they are excepted, as in `paceline serve`.
    """
    gc.collect()
    gc.freeze()
    settling, recorded = (_SETTLING if engine.cache.device.type == "cuda" else 0.0), time.perf_counter()
    figures: dict = {}
    for _ in range(_MOST_RUNS):
        known, is_settled = len(engine.cache.graphs), time.perf_counter() - recorded >= settling
        _, figures = answer_all(engine, prompts, max_tokens, **sampling)
        if len(engine.cache.graphs) > known:
            recorded = time.perf_counter()
        elif is_settled:
            break
    return figures


def answer_all(
    engine: Any, prompts: Sequence[Sequence[int]], max_tokens: int, **sampling: Any
) -> tuple[list[list[int]], dict]:
    """Answers to `prompts`, greedy by default, decoded together, and figures of the time after all first tokens."""
    from paceline.types import SamplingParams

    params = SamplingParams(**({"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True} | sampling))
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), prompt, params)
    begun: set[str] = set()
    finished, said, started, steps = {}, 0, 0.0, 0
    while engine.has_unfinished_requests:
        for output in engine.step():
            said += len(output.tokens) if started else 0
            begun.add(output.request_id)
            if output.finished:
                finished[output.request_id] = output.finished
        steps += bool(started)
        if not started and len(begun) == len(prompts):
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    done = [finished[str(number)] for number in range(len(prompts))]
    stats = [each.stats for each in done]
    figures = {
        "tokens_per_second": said / seconds,
        "steps": steps,
        "tokens_per_step_and_request": said / max(steps, 1) / len(prompts),
        "drafted": sum(each.num_draft_tokens for each in stats),
        "accepted": sum(each.num_accepted_tokens for each in stats),
    }
    return [[*prompt, *each.token_ids] for prompt, each in zip(prompts, done, strict=True)], figures
