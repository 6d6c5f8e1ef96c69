"""How fast a head is trained: updates of the loop of `paceline train head --device`, on made-up hidden states."""

import statistics
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_parts.bench import Bench

SHARE, STEPS = 0.5, 3


def head_training(bench: Bench) -> dict[str, Any]:
    """Tokens of text per second of an EAGLE-3 head's updates, the reading of their hidden states from disk included."""
    if bench.on.type == "cpu" and find_spec("numba") is None:
        return {"skipped": "losses on a CPU need numba"}
    from paceline.training.heads.recipes import recipe_of
    from paceline.training.run.loop import LoopSettings, Trainer

    target, rows = random_target(bench), 128 if bench.quick else 4096
    ids = np.arange(min(32_768, target.config.vocab_size), dtype=np.int32)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_of("eagle3")(target, ids, STEPS)
        store = _store(Path(folder), recipe, 24 if bench.quick else 512, 12 if bench.quick else 32)
        trainer = Trainer(recipe, store, LoopSettings(num_steps=1000, rows=rows, share=SHARE), Path(folder) / "run")
        times, seen = [], trainer.progress.tokens
        for number in range(5 if bench.quick else 13):
            bench.wait()
            began, seen = time.perf_counter(), trainer.progress.tokens
            trainer.step()
            bench.wait()
            if number > 2:
                times.append((time.perf_counter() - began) / (trainer.progress.tokens - seen))
        loss = trainer.progress.loss
    found = {
        "tokens_per_second": 1 / statistics.median(times),
        "rows_of_an_update": rows,
        "anchors": SHARE,
        "loss": loss,
    }
    if bench.on.type == "cuda":
        found["peak_gb"] = torch.cuda.max_memory_allocated(bench.on) / 1e9
    return found


def random_target(bench: Bench) -> Any:
    """The tables of the random model on the device."""
    from paceline.models.heads.record import TargetPrint
    from paceline.training.heads.target import Target

    config = bench.checkpoint.config
    embedding = torch.from_numpy(bench.checkpoint.tensor("model.embed_tokens.weight")).bfloat16().to(bench.on)
    about = TargetPrint("random", config.hidden_size, config.num_hidden_layers, config.vocab_size)
    return Target(about, config, embedding, embedding, torch.ones(config.hidden_size, device=bench.on))


def _store(folder: Path, recipe: Any, length: int, count: int) -> Any:
    """`count` random texts of `length` tokens to train on, and one that is held out."""
    from paceline.models.base import NORMED
    from paceline.models.files.bfloat16 import to_bfloat16
    from paceline.training.heads.conversations import Conversation, is_held_out
    from paceline.training.heads.shards import TapStore

    config, rng = recipe.target.config, np.random.default_rng(0)
    texts: list[Any] = []
    while len(texts) <= count:
        ids = rng.integers(0, config.vocab_size, length).astype(np.int32)
        if is_held_out(ids[:8]) == (len(texts) == count):
            texts.append(Conversation(ids, 8, 0.0))
    store = TapStore(folder, (*recipe.config.taps, NORMED))
    shape = (length - 1, len(store.taps), config.hidden_size)
    store.add(texts, [to_bfloat16(rng.standard_normal(shape, np.float32)) for _ in texts])
    return store
