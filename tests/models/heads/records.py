"""Random draft heads for a small target that the CPU kernels run, as `HeadRecord`s, and the target itself."""

from dataclasses import replace

import numpy as np

from paceline.models.architecture.config import ModelConfig
from paceline.models.base import NORMED
from paceline.models.heads.record import HeadConfig, HeadRecord, TargetPrint
from paceline.models.heads.shapes import head_shapes
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource
from tests.fakes import ByteTokenizer, RandomCheckpoint, small_config

TARGET = small_config("llama", head_dim=32, num_attention_heads=3, num_key_value_heads=1)
PRINT = TargetPrint("random", TARGET.hidden_size, TARGET.num_hidden_layers, TARGET.vocab_size)
DRAFTED = 40
"""Size of a draft vocabulary."""


def load_target(dtype: str, num_threads: int = 1, config: ModelConfig = TARGET) -> LoadedModel:
    """The random target."""
    checkpoint = RandomCheckpoint(config)
    return LoadedModel(ModelSource("random", checkpoint, ByteTokenizer()), NumbaModel(checkpoint, dtype, num_threads))


def draft_layer(**changes) -> ModelConfig:
    """Sizes of a draft layer, unlike the target's where they may be."""
    sizes = {"num_hidden_layers": 1, "intermediate_size": 128, "num_attention_heads": 2, "rope_theta": 500.0}
    return replace(TARGET, **(sizes | changes))


def random_head(config: HeadConfig, seed: int = 0) -> HeadRecord:
    """Norm weights around 1, the rest around 0; a random draft vocabulary where it is not the whole one."""
    rng = np.random.default_rng(seed)
    tensors = {
        name: (1.0 * (name.endswith("weight") and len(shape) == 1) + 0.2 * rng.standard_normal(shape)).astype(
            np.float32
        )
        for name, shape in head_shapes(config).items()
    }
    ids = None
    if config.draft_vocab_size != TARGET.vocab_size:
        ids = np.sort(rng.choice(TARGET.vocab_size, config.draft_vocab_size, replace=False)).astype(np.int32)
    return HeadRecord(config, tensors, ids)


def eagle3(**changes) -> HeadRecord:
    """EAGLE-3 with a draft vocabulary."""
    config = HeadConfig("eagle3", PRINT, (1, 2, 3), draft_layer(), num_layers=1, draft_vocab_size=DRAFTED)
    return random_head(replace(config, **changes))


def p_eagle(**changes) -> HeadRecord:
    """P-EAGLE of two layers with a draft vocabulary."""
    layer = draft_layer(num_hidden_layers=2)
    config = HeadConfig(
        "p_eagle", PRINT, (1, 2, 3), layer, num_layers=2, draft_vocab_size=DRAFTED, mask_token_id=129, owns_head=True
    )
    return random_head(replace(config, **changes))


def dspark(**changes) -> HeadRecord:
    """DSpark of two layers with a draft vocabulary and all its parts."""
    layer = draft_layer(num_hidden_layers=2, qk_norm=True)
    config = HeadConfig(
        "dspark", PRINT, (1, 2), layer, num_layers=2, num_steps=4, draft_vocab_size=DRAFTED, mask_token_id=129,
        sample_from_anchor=True, markov_rank=32, confidence=True, variant="vanilla",
    )  # fmt: skip
    return random_head(replace(config, **changes))


def dflash(**changes) -> HeadRecord:
    """DFlash of one layer over the whole vocabulary."""
    layer = draft_layer(qk_norm=True)
    config = HeadConfig(
        "dflash", PRINT, (2,), layer, num_layers=1, num_steps=3, draft_vocab_size=TARGET.vocab_size, mask_token_id=129
    )
    return random_head(replace(config, **changes))


def reduced(family: str, **changes) -> HeadRecord:
    """EAGLE-1 or MTP over the whole vocabulary."""
    config = HeadConfig(family, PRINT, (NORMED,), draft_layer(), num_layers=1, draft_vocab_size=TARGET.vocab_size)
    return random_head(replace(config, **changes))


def mlp_speculator(**changes) -> HeadRecord:
    """An MLP speculator with a draft vocabulary."""
    config = HeadConfig("mlp_speculator", PRINT, (NORMED,), draft_vocab_size=DRAFTED, inner_size=64)
    return random_head(replace(config, **changes))


def medusa(**changes) -> HeadRecord:
    """Medusa with a draft vocabulary."""
    config = HeadConfig("medusa", PRINT, (NORMED,), draft_vocab_size=DRAFTED, fc_bias=True)
    return random_head(replace(config, **changes))


def hydra(**changes) -> HeadRecord:
    """Hydra with two layers per head and a draft vocabulary."""
    config = HeadConfig(
        "hydra", PRINT, (NORMED,), draft_vocab_size=DRAFTED, block_depth=2, owns_head=True, fc_bias=True, variant="mlp"
    )
    return random_head(replace(config, **changes))


def blockwise(**changes) -> HeadRecord:
    """Blockwise heads with a draft vocabulary."""
    config = HeadConfig("blockwise", PRINT, (NORMED,), draft_vocab_size=DRAFTED, inner_size=64)
    return random_head(replace(config, **changes))


def falcon(**changes) -> HeadRecord:
    """Falcon, two tokens in a pass, with a draft vocabulary."""
    config = HeadConfig(
        "falcon", PRINT, (NORMED,), draft_layer(), num_layers=1, draft_vocab_size=DRAFTED, num_steps=4, block_tokens=2
    )
    return random_head(replace(config, **changes))


def tables(target: LoadedModel, record: HeadRecord) -> tuple[np.ndarray, np.ndarray]:
    """The target's embedding, and the rows of its head that the record's outputs stand for."""
    tied = target.source.checkpoint.tensor("model.embed_tokens.weight")
    return tied, tied if record.draft_ids is None else tied[record.draft_ids]
