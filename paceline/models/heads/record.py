"""`HeadRecord`: a trained draft head in Paceline's own form, independent of the file it came from.

A frozen config and the tensors by name. Names of tensors are those of vLLM's `speculators` format, without
prefixes (``fc.weight``, ``layers.0.self_attn.q_proj.weight``, ``norm.weight``, ``lm_head.weight``). Not for reading
files (`layouts/`) or for running heads (`nets.py` and the executors).

Taps are those of `CausalLM.forward`. EAGLE-3 and block heads read the residual stream (numbers 0 to the number of
layers); EAGLE-1 and 2, HASS, Medusa, Hydra and MLP speculators read `NORMED`, the state after the final norm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.size import weights_per_row
from paceline.models.files.checkpoint import Checkpoint

Family = Literal[
    "eagle", "eagle3", "p_eagle", "dflash", "dspark", "mtp", "mlp_speculator", "lstm_speculator", "medusa", "hydra",
    "blockwise", "falcon",
]  # fmt: skip
NOT_TRAINED: frozenset[Family] = frozenset({"dflash", "mtp", "lstm_speculator", "hydra"})
"""Families whose heads run here, and that `paceline train head` does not make."""
MOST_STEPS = 1024
"""Most layers, steps or tokens of a head; bounds the list of tensor names that is built before checking files."""


VARIANTS = ("vanilla", "gated", "rnn")
"""Forms of DSpark's bias."""


@dataclass(frozen=True, slots=True)
class TargetPrint:
    """Identifies a target model.

    Attributes:
        name: name in the registry or on the hub.
        hidden_size, num_hidden_layers, vocab_size: sizes; 0 layers where unknown.
        sha256: of the weights' file; empty where unknown.
        template_sha256: of the chat template in training; empty where unknown.
    """

    name: str
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    sha256: str = ""
    template_sha256: str = ""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """The architecture of a head.

    Attributes:
        family: the method, which selects the network.
        target: the model that it was trained for.
        taps: canonical ids of the hidden states it reads, in the order of their concatenation.
        layer: config of its decoder layers (hidden size, heads, rope, norm_eps, qk_norm, ...), whose
            `max_position_embeddings` limits the positions it can run at; None for heads without attention.
        num_layers: number of decoder layers.
        block_tokens: tokens that one pass of a half-autoregressive head drafts (Falcon's k).
        num_steps: tokens it was trained to draft: the number of Medusa heads, the drafted positions of a block
            (including its anchor if `sample_from_anchor`), or the steps of training-time test.
        draft_vocab_size: rows of its output head.
        norm_before_fc: one norm over the concatenated taps (`input_norm.weight`).
        fc_norm: one norm per tap (`fc_norm.{i}.weight`).
        fc_bias: whether `fc.bias` exists.
        norm_before_residual: whether the residual of the first layer is the normed hidden state.
        norm_output: whether the next step reads the state after `norm` rather than before it (EAGLE-3.1).
        owns_embedding, owns_head: whether `embed_tokens.weight`, `lm_head.weight` are its own rather than the target's.
        mask_token_id: the token whose embedding marks a position to fill in (block heads, P-EAGLE).
        sample_from_anchor: whether a block head's anchor row drafts too: n rows draft n tokens instead of n - 1.
        markov_rank: rank of the logit bias that depends on the previous token (DSpark); 0 for none.
        confidence: whether it has a confidence output (DSpark), which also reads the previous token if
            `confidence_markov`.
        inner_size: width of the state of an MLP or LSTM speculator, of the feed-forward of a blockwise head.
        embedding_scale: factor on the target's embeddings where an MLP speculator or a block reads those.
        tied: whether all steps of an MLP speculator share their weights, except for the first projection.
        scale_input: whether an MLP speculator norms its input.
        block_depth: residual blocks per Medusa head, linear layers per Hydra head.
        variant: the form of Hydra (``mlp``, ``prefix-mlp``) or of DSpark's bias (`VARIANTS`).
        max_positions: positions it was trained for; 0 where unknown.
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
    """A head: its config, its tensors, and its draft vocabulary.

    Attributes:
        tensors: by name, float32, as `shapes.head_shapes` lists them.
        draft_ids: [draft_vocab_size] int32, ascending target ids of its outputs; None for the whole vocabulary.
        card: its model card (training, metrics) as plain values by name.
        notes: sentences on what the reader inferred and which settings of the file it ignored.
        layer: its decoder layer as a model of one layer, where that is in the target's own files
            (`Predicts.prediction_layer`); else layers are among `tensors`.
    """

    config: HeadConfig
    tensors: Mapping[str, np.ndarray]
    draft_ids: np.ndarray | None = None
    card: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    layer: Checkpoint | None = None


def weights_read(record: HeadRecord, scored: int | None = None) -> int:
    """Number of weights read per drafted level: all of the head's tensors, and the output head.

    Of the latter as many rows as tokens are `scored`; all by default.

    A block head reads them once for all its levels and Falcon once for `block_tokens`, so the number is divided by
    that. Embeddings are not counted, as single rows of them are read.
    """
    config = record.config
    unread = ("embed_tokens.weight", "markov_head.markov_w1.weight", "emb.")
    own = sum(np.size(values) for name, values in record.tensors.items() if not name.startswith(unread))
    own += 0 if record.layer is None else weights_per_row(record.layer.config, scored=0)
    head = 0 if config.owns_head else (scored or config.draft_vocab_size) * config.target.hidden_size
    levels = config.num_steps if config.family in ("dflash", "dspark", "medusa") else config.block_tokens
    return (own + head) // levels
