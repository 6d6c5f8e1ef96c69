"""What the tests of several ranks have in common: models, and the texts of an engine on one."""

from contextlib import contextmanager

import numpy as np
import pytest

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.drafters.draft_models.draft_model import DraftModel
from paceline.engine.setup.build import build_engine
from paceline.models.architecture.experts import Experts
from paceline.models.cuda_executor import CudaModel
from paceline.models.cuda_executor.parallel import assignment
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource
from paceline.types import SamplingParams
from tests.fakes import ByteTokenizer, RandomCheckpoint, mixture_config, run_to_end, small_config

from ..tiny import as_gguf, gguf_name
from .batches import tokens_of

CHECKPOINT = RandomCheckpoint(small_config(intermediate_size=256))
"""A multiple of what torch's activations compute at a time on a CPU, whose last digits differ in the remainder."""
FAMILIES = {
    "one key head": small_config("qwen2", num_key_value_heads=1, tie_word_embeddings=False),
    "gemma": small_config("gemma2", windows=(5, 0, 7), attention_softcap=3.0, logit_softcap=4.0, post_norms=True,
                          qk_norm=False),
    "learned": small_config("gpt2", norm="layer", mlp="gelu_tanh", position_embedding="learned", mlp_bias=True,
                            attention_out_bias=True),
    "shared expert": mixture_config(),
    "gpt-oss": mixture_config("gpt_oss", experts=Experts(8, 3, True, bias=True), mlp="gated_clamped",
                              attention_sinks=True, attention_bias=True, attention_out_bias=True),
    "dense first layer": mixture_config("glm4_moe"),
}  # fmt: skip
HEAD = "tests.drafters.heads.random_heads:make_random_head"
CONFIG = EngineConfig(kv_cache_memory_bytes=1 << 22, profile="none", dtype="float32")
LAWS = {"greedy": {"temperature": 0}, "seeded": {"temperature": 0.8, "seed": 5}}


@contextmanager
def kept_followers():
    """A list of rank 1 of every model that is made within."""
    kept = []

    class Kept(assignment.Follower):
        def __init__(self, *given):
            super().__init__(*given)
            kept.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "Follower", Kept)
        yield kept


def alone(checkpoint=CHECKPOINT, **options):
    return CudaModel(checkpoint, "cpu", "float32", attention="by_position", **options)


def check_texts_with_drafters(model, one, num_layers, start):
    """With a head, and with a draft model of `num_layers` on one rank or on those that `start` starts, the texts of
    `model` are plain ones of one rank."""
    greedy, seeded = LAWS.values()
    plain, checkpoint = texts(one, **greedy), RandomCheckpoint(small_config(num_hidden_layers=num_layers), seed=1)
    assert texts(model, {"method": HEAD, "policy": "fixed", "num_draft_tokens": 3}, **greedy) == plain
    assert texts(model, drafter=DraftModel(alone(checkpoint), 64), **greedy) == plain
    with start(checkpoint) as draft:
        assert texts(model, drafter=DraftModel(draft, 64), **seeded) == texts(one, **seeded)


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, atol=2e-4, rtol=0)


def in_blocks(plain, folder):
    matrices = [gguf_name(plain.config, name) for name in plain.names() if plain.tensor(name).ndim == 2]
    storage = {name: ("Q8_0", "Q4_0", "Q4_1")[i % 3] for i, name in enumerate(matrices)}
    return GGUFCheckpoint(as_gguf(folder / "blocks.gguf", plain, storage=storage))


def texts(model, spec=None, drafter=None, **params):
    source = ModelSource("random", CHECKPOINT, ByteTokenizer())  # type: ignore[arg-type]
    spec = SpeculativeConfig("plain", num_draft_tokens=3, policy="fixed") if drafter else SpeculativeConfig.of(spec)
    engine = build_engine(LoadedModel(source, model), CONFIG, spec, drafter=drafter)
    for number in range(3):
        prompt = (tokens_of(4, number) * 4)[: 5 + 4 * number]
        engine.add_request(str(number), prompt, SamplingParams(max_tokens=16, ignore_eos=True, **params))
    found = {name: done.outputs[0].token_ids for name, done in run_to_end(engine).items()}
    assert bool(spec) == (engine.metrics.spec_decode_num_draft_tokens > 0)
    return found
