"""`HeadRecord`: a trained draft head as this project holds it, whatever file it came from.

One frozen description and the tensors by name. Names of tensors are those of vLLM's `speculators` format, without
prefixes (``fc.weight``, ``layers.0.self_attn.q_proj.weight``, ``norm.weight``, ``lm_head.weight``). Not the place for
reading files (`layouts/`) or for computing (`nets.py` and the executors).

Taps are those of `CausalLM.forward`. EAGLE-3 and block heads read the residual stream (numbers 0 to the number of
layers); EAGLE-1 and 2, HASS, Medusa, Hydra and MLP speculators read `NORMED`, the state after the final norm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from paceline.models.config import ModelConfig

Family = Literal[
    "eagle", "eagle3", "p_eagle", "dflash", "dspark", "mtp", "mlp_speculator", "lstm_speculator", "medusa", "hydra",
    "blockwise", "falcon",
]  # fmt: skip
MOST_STEPS = 1024
"""Layers, steps or tokens of a head: names are made for each of them before anything is compared."""


@dataclass(frozen=True, slots=True)
class TargetPrint:
    """What tells one target from another.

    Attributes:
        name: as the registry or the hub knows it.
        hidden_size, num_hidden_layers, vocab_size: sizes; no layers where nobody said how many.
        sha256: of the weights' file; empty where the head's file does not say.
        template_sha256: of the chat template it was trained under; empty where unknown.
    """

    name: str
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    sha256: str = ""
    template_sha256: str = ""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Everything that decides how a head computes; defaults are the plainest form.

    Attributes:
        family: who computes it.
        target: what it was trained for.
        taps: canonical ids of the hidden states it reads, in the order they are concatenated.
        layer: sizes of its decoder layers (hidden, heads, rope, norm_eps, qk_norm, ...), whose
            `max_position_embeddings` is how far they may go; None for heads without attention.
        num_layers: decoder layers.
        block_tokens: tokens that one pass of a half-autoregressive head names (Falcon's k).
        num_steps: tokens it was trained to draft: heads of Medusa, places of a block (its anchor's too where
            `sample_from_anchor`), TTT steps.
        draft_vocab_size: rows of its output head.
        norm_before_fc: one norm over the concatenated taps (`input_norm.weight`).
        fc_norm: one norm per tap (`fc_norm.{i}.weight`).
        fc_bias: `fc.bias` is there.
        norm_before_residual: the residual of the first layer is the normed hidden state.
        norm_output: the state after `norm` is fed to the next step, not the one before it (EAGLE-3.1).
        owns_embedding, owns_head: `embed_tokens.weight`, `lm_head.weight` are the head's own, not the target's rows.
        mask_token_id: the token whose embedding stands for a place to fill (block heads, P-EAGLE).
        sample_from_anchor: a block head's anchor row drafts too, so a block of n rows drafts n tokens, not n - 1.
        markov_rank: of the bias by the token before (DSpark); 0 for none.
        confidence: a confidence output is there (DSpark); `confidence_markov`: it reads the token before, too.
        inner_size: width of the state of an MLP or LSTM speculator, of the feed-forward of a blockwise head.
        embedding_scale: factor on the target's embeddings where an MLP speculator reads those.
        tied: all steps of an MLP speculator share their weights but the first projection.
        scale_input: an MLP speculator norms its input.
        block_depth: residual blocks per Medusa head, linear layers per Hydra head.
        variant: which of several forms: Hydra's (``mlp``, ``prefix-mlp``), DSpark's bias (``vanilla``, ``gated``,
            ``rnn``).
        max_positions: positions it was trained for; 0 where nobody says.
    """

    family: Family
    target: TargetPrint
    taps: tuple[int, ...]
    layer: ModelConfig | None = None
    num_layers: int = 0
    num_steps: int = 3
    draft_vocab_size: int = 0
    norm_before_fc: bool = False
    fc_norm: bool = False
    fc_bias: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    owns_embedding: bool = False
    owns_head: bool = False
    mask_token_id: int | None = None
    sample_from_anchor: bool = False
    markov_rank: int = 0
    confidence: bool = False
    confidence_markov: bool = True
    inner_size: int = 0
    embedding_scale: float = 1.0
    tied: bool = False
    scale_input: bool = False
    block_depth: int = 1
    variant: str = ""
    max_positions: int = 0
    block_tokens: int = 1

    @property
    def block_size(self) -> int:
        """Rows of a block head's pass: the anchor and the masks."""
        return self.num_steps + (not self.sample_from_anchor)


@dataclass(frozen=True, eq=False, slots=True)
class HeadRecord:
    """A head: its description, its tensors, and which target tokens its outputs stand for.

    Attributes:
        tensors: by name, float32, as `shapes.head_shapes` lists them.
        draft_ids: [draft_vocab_size] int32, ascending target ids of its outputs; None where they are all of them.
        card: what a card says of it (training, metrics), plain values by name.
        notes: what its reader had to infer, and settings of the file that it left aside; a sentence each.
    """

    config: HeadConfig
    tensors: Mapping[str, np.ndarray]
    draft_ids: np.ndarray | None = None
    card: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def weights_read(record: HeadRecord) -> int:
    """Weights that one drafted level reads: all of a head's matrices and its rows of the output head.

    A block head reads them once for all its levels, Falcon once for a block's, so each has its share; embeddings are
    read by the row.
    """
    config = record.config
    unread = ("embed_tokens.weight", "markov_head.markov_w1.weight", "emb.")
    own = sum(np.size(values) for name, values in record.tensors.items() if not name.startswith(unread))
    head = 0 if config.owns_head else config.draft_vocab_size * config.target.hidden_size
    levels = config.num_steps if config.family in ("dflash", "dspark", "medusa") else config.block_tokens
    return (own + head) // levels
