"""`Family`: how a model family's files and layers differ from Llama's, and GGUF's names of the parts they share.

Parts of a layer have the names of Llama's in transformers (``self_attn.q_proj``, ``mlp.down_proj``), where
``input_layernorm`` and ``post_attention_layernorm`` are the norms before attention and feed-forward. Parts that Llama
lacks are ``self_attn.out_norm`` and ``mlp.out_norm``, the norms after them, and ``model.position_embeddings``. Not for
what a family's differences are (`families.py`, `family_parts.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.models.fields import Fields

SWIGLU_ALPHA, SWIGLU_LIMIT = 1.702, 7.0
"""A and L of gpt-oss's feed-forward (``gated_clamped`` of `ModelConfig.mlp`)."""
MOST_LAYERS = 10_000
"""Most layers of a model; a file that says more is damaged."""


def _as_llama(fields: Fields) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Family:
    """How one ``model_type`` differs from Llama.

    Attributes:
        model_type: transformers' name. architecture: GGUF's name. mixture_architecture: GGUF's name of models with
            experts, where that is another.
        differs: a summary of the differences, for the documentation.
        keys: our key to the family's in ``config.json``, where they differ. defaults: values of keys that it omits.
        layers: transformers' prefix of a layer's tensors, with ``{}`` for its number.
        names: our part to transformers', or our tensor to transformers', where it does not end so. stacked:
            transformers' part to our parts, whose rows it holds in this order, as far as the model has them. woven: the
            same where they take turns, row by row or, in attention, head by head.
        gguf_names, gguf_stacked, gguf_woven: the same for GGUF, in addition to `GGUF_PARTS`.
        transposed: beginnings of the parts that transformers stores as [in, out].
        either: whether experts may be stored the other way round than `transposed` says.
        pairs: whether GGUF interleaves the rows of queries and keys, (2i, 2i + 1) instead of (i, i + head_dim / 2).
        interleaved: whether the model itself turns pairs (2i, 2i + 1) of a head, so that all files interleave its rows.
        norm_shift: what must be added to norm weights of transformers' files (GGUF has it added), but for those in
            recurrent layers.
        activation: values of ``hidden_act`` that mean the activation of `mlp`.
        window: which layers use ``sliding_window``: ``none``, ``all``, ``typed`` (by ``layer_types``, where these are
            given) or ``listed`` (by ``layer_types``, which must be given).
        window_asked: whether windows apply only if ``use_sliding_window`` is true.
        window_every: without ``layer_types``, every layer of this number has full attention (0: none has). If set, a
            window as long as the context is kept.
        gguf_window: the window of GGUF files that state none; 0 for full attention.
        turns_windows: whether, in models with windows, only the layers with a window have rotary positions.
        turns_part: whether ``partial_rotary_factor`` is supported.
        latent: whether attention is latent (`latent.py`).
        norms_asked: whether only models that ask for them (``use_qk_norm``) have norms of queries and keys.
        yarn_truncates: YaRN's ``truncate``, of which GGUF says nothing.
        parts: fields of `ModelConfig` that differ, from ``config.json``. gguf_parts: the same from GGUF.
    """

    model_type: str
    architecture: str
    differs: str
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    layers: str = "model.layers.{}"
    names: Mapping[str, str] = field(default_factory=dict)
    stacked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    woven: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gguf_names: Mapping[str, str] = field(default_factory=dict)
    gguf_stacked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gguf_woven: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()
    either: bool = False
    pairs: bool = False
    interleaved: bool = False
    norm_shift: float = 0.0
    activation: tuple[str, ...] = ("silu",)
    window: Literal["none", "all", "typed", "listed"] = "none"
    window_asked: bool = False
    window_every: int = 0
    gguf_window: int = 0
    turns_windows: bool = False
    turns_part: bool = False
    latent: bool = False
    norms_asked: bool = False
    yarn_truncates: bool = True
    parts: Callable[[Fields], dict[str, Any]] = _as_llama
    gguf_parts: Callable[[Fields], dict[str, Any]] = _as_llama
    mixture_architecture: str = ""


GGUF_PARTS: Mapping[str, str] = {
    "model.embed_tokens": "token_embd", "model.position_embeddings": "position_embd", "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_norm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj": "attn_kv_a_mqa", "self_attn.kv_a_norm": "attn_kv_a_norm",
    "self_attn.k_b_proj": "attn_k_b", "self_attn.v_b_proj": "attn_v_b",
    "self_attn.sinks": "attn_sinks", "self_attn.out_norm": "post_attention_norm", "mlp.out_norm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "mlp.gate.e_score_correction": "exp_probs_b",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}  # fmt: skip
"""Our part to GGUF's; ``mlp.experts.*`` holds all experts of a layer, one after the other."""
