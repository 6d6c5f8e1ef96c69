"""Random heads of a few thousand numbers for a target of 6 layers, 16 wide, with 40 tokens."""

from dataclasses import replace

import numpy as np

from paceline.models.architecture.config import ModelConfig
from paceline.models.base import NORMED
from paceline.models.heads.layouts.base import TargetTables
from paceline.models.heads.record import HeadConfig, HeadRecord, TargetPrint
from paceline.models.heads.shapes import head_shapes

VOCAB, WIDTH = 40, 16
TARGET = TargetPrint("tiny", WIDTH, 6, VOCAB, "ab" * 32, "cd" * 32)
LAYER = ModelConfig(
    "llama", VOCAB, hidden_size=WIDTH, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2, head_dim=4, norm_eps=1e-5, max_position_embeddings=64, rope_theta=5000.0,
)  # fmt: skip
QWEN = replace(LAYER, model_type="qwen3", qk_norm=True)

OURS = {
    "eagle3.1": HeadConfig(
        "eagle3", TARGET, (2, 3, 3), LAYER, 1, 3, 20, fc_norm=True, norm_output=True, max_positions=64
    ),
    "eagle3 of its own": HeadConfig(
        "eagle3", TARGET, (0, 6), QWEN, 1, 4, VOCAB, norm_before_fc=True, norm_before_residual=True,
        owns_embedding=True, owns_head=True, fc_bias=True, max_positions=32,
    ),
    "p_eagle": HeadConfig(
        "p_eagle", TARGET, (2, 3, 3), replace(LAYER, num_hidden_layers=2), 2, 4, 20, owns_embedding=True,
        owns_head=True, mask_token_id=7, max_positions=64,
    ),
    "dflash": HeadConfig(
        "dflash", TARGET, (2, 4), replace(QWEN, num_hidden_layers=2), 2, 5, VOCAB, mask_token_id=39, max_positions=64
    ),
    "dspark": HeadConfig(
        "dspark", TARGET, (1, 4), replace(QWEN, num_hidden_layers=2), 2, 4, 20, mask_token_id=39,
        sample_from_anchor=True, markov_rank=4, confidence=True, variant="vanilla", max_positions=64,
    ),
    "dspark gated": HeadConfig(
        "dspark", TARGET, (1, 4), QWEN, 1, 4, 20, mask_token_id=39, sample_from_anchor=True, markov_rank=4,
        variant="gated", owns_head=True, max_positions=64,
    ),
    "mtp": HeadConfig("mtp", TARGET, (NORMED,), LAYER, 1, 3, VOCAB, norm_output=True, max_positions=64),
    "medusa": HeadConfig("medusa", TARGET, (NORMED,), None, 0, 3, 20, fc_bias=True, block_depth=2),
    "medusa of its own": HeadConfig("medusa", TARGET, (NORMED,), None, 0, 2, VOCAB, owns_head=True),
    "mlp tied": HeadConfig(
        "mlp_speculator", TARGET, (NORMED,), None, 0, 3, 20, inner_size=8, tied=True, embedding_scale=2.5
    ),
    "mlp": HeadConfig(
        "mlp_speculator", TARGET, (NORMED,), None, 0, 3, VOCAB, inner_size=WIDTH, scale_input=True,
        owns_embedding=True, owns_head=True,
    ),
}  # fmt: skip
"""Every form of the families that this project trains or saves first."""

THEIRS = {
    "eagle": (HeadConfig("eagle", TARGET, (NORMED,), LAYER, 1, 5, VOCAB, fc_bias=True, max_positions=64), "eagle"),
    "eagle with embeddings": (
        HeadConfig("eagle", TARGET, (NORMED,), replace(LAYER, num_hidden_layers=2), 2, 5, VOCAB, owns_embedding=True,
                   max_positions=64), "eagle",
    ),
    "eagle3 sglang": (
        HeadConfig("eagle3", TARGET, (2, 3, 3), LAYER, 1, 5, 20, norm_before_fc=True, owns_head=True,
                   owns_embedding=True, max_positions=64), "sglang",
    ),
    "dflash z-lab": (
        HeadConfig("dflash", TARGET, (2, 4), replace(QWEN, num_hidden_layers=2), 2, 5, VOCAB, mask_token_id=39,
                   max_positions=64), "dflash",
    ),
    "dspark deepspec": (
        HeadConfig("dspark", TARGET, (2, 4), QWEN, 1, 4, 20, mask_token_id=39, sample_from_anchor=True, markov_rank=4,
                   confidence=True, variant="vanilla", owns_head=True, max_positions=64), "dflash",
    ),
    "mtp qwen": (
        HeadConfig("mtp", TARGET, (NORMED,), replace(LAYER, num_hidden_layers=6), 1, 3, VOCAB, norm_output=True,
                   max_positions=64), "mtp",
    ),
    "medusa": (
        HeadConfig("medusa", TARGET, (NORMED,), None, 0, 3, VOCAB, fc_bias=True, owns_head=True, block_depth=2),
        "medusa",
    ),
    "arctic lstm": (
        HeadConfig("lstm_speculator", TARGET, (NORMED,), None, 0, 3, VOCAB, inner_size=8, owns_embedding=True,
                   owns_head=True, scale_input=True), "arctic-lstm",
    ),
    "arctic lstm tied": (
        HeadConfig("lstm_speculator", TARGET, (NORMED,), None, 0, 3, VOCAB, inner_size=8, owns_embedding=True,
                   owns_head=True, tied=True), "arctic-lstm",
    ),
    "hydra": (
        HeadConfig("hydra", TARGET, (NORMED,), None, 0, 3, VOCAB, fc_bias=True, owns_head=True, block_depth=2,
                   variant="mlp"), "hydra",
    ),
    "hydra prefix": (
        HeadConfig("hydra", TARGET, (NORMED,), LAYER, 1, 2, VOCAB, fc_bias=True, owns_head=True, block_depth=2,
                   variant="prefix-mlp", max_positions=64), "hydra",
    ),
    "blockwise": (HeadConfig("blockwise", TARGET, (NORMED,), None, 0, 3, 20, inner_size=12), "blockwise"),
    "falcon": (
        HeadConfig("falcon", TARGET, (NORMED,), LAYER, 1, 4, 20, max_positions=64, block_tokens=2), "falcon",
    ),
}  # fmt: skip
"""Every other layout: a head that it can hold, and the layout's name."""


def random_head(config: HeadConfig, seed: int = 0) -> HeadRecord:
    """A head of this description with random tensors, a random draft vocabulary and a small card."""
    rng = np.random.default_rng(seed)
    ids = None
    if config.draft_vocab_size != VOCAB:
        ids = np.sort(rng.permutation(VOCAB)[: config.draft_vocab_size]).astype(np.int32)
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in head_shapes(config).items()}
    return HeadRecord(config, tensors, ids, {"licence": "Apache-2.0", "acceptance": {"chat": 0.5}})


def random_tables(seed: int = 1) -> TargetTables:
    """Embeddings and an output head for the target."""
    first, second = np.random.default_rng(seed).standard_normal((2, VOCAB, WIDTH)).astype(np.float32)
    return TargetTables(first, second)


def assert_equal(found: HeadRecord, expected: HeadRecord, tolerance: float = 0.0) -> None:
    """Two records are the same head."""
    assert found.config == expected.config
    assert dict(found.card) == dict(expected.card)
    assert list(found.tensors) == list(expected.tensors)
    for name, values in expected.tensors.items():
        np.testing.assert_allclose(found.tensors[name], values, rtol=0, atol=tolerance, err_msg=name)
    if expected.draft_ids is None:
        assert found.draft_ids is None
    else:
        np.testing.assert_array_equal(found.draft_ids, expected.draft_ids)
