"""Save a model in transformers' layout: ``config.json``, ``model.safetensors`` in bfloat16, the tokenizer's files.

For Llama-like draft models trained by Paceline. Not for reading (`safetensors_folder.py`) or for draft heads
(`heads/files.py`).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paceline.disk import in_one_move
from paceline.errors import UnsupportedModel
from paceline.models.architecture.config import ModelConfig
from paceline.models.files.sources import check_complete, transformers_sources
from paceline.models.heads.tensor_file import write_safetensors
from paceline.models.text.tokenizer import Tokenizer

CARD = "paceline.json"
"""Name of the file that describes how a model was made."""
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
                  "qwen3": "Qwen3ForCausalLM"}  # fmt: skip


def save_model(folder: Path, config: ModelConfig, tensors: Mapping[str, np.ndarray], tokenizer: Tokenizer,
               card: Mapping[str, Any]) -> Path:  # fmt: skip
    """Write a model and return its folder; `card` is saved as ``paceline.json``, which describes how it was made.

    Raises:
        UnsupportedModel: a ``config.json`` cannot express the family or a setting.
        CorruptWeights: `tensors` are not those of `config`.
    """
    values = config_values(config)
    shapes = {name: one.shape for name, one in tensors.items()}
    check_complete(transformers_sources(config, shapes), shapes, folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"config.json": json.dumps(values, indent=2), CARD: json.dumps(card, indent=2)}
    for name, text in {**texts, **tokenizer.files()}.items():
        (folder / name).write_text(text, encoding="utf-8")
    with in_one_move(folder / "model.safetensors") as file:
        write_safetensors(file, {name: np.asarray(one, np.float32) for name, one in tensors.items()}, "bfloat16")
    return folder


def config_values(config: ModelConfig) -> dict[str, Any]:
    """The ``config.json`` of a model. Raises UnsupportedModel, see `save_model`."""
    values = {
        "architectures": [_ARCHITECTURES.get(config.model_type)],
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_out_bias,
        "mlp_bias": config.mlp_bias,
        "hidden_act": "silu",
        "sliding_window": None,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "torch_dtype": "bfloat16",
    }
    if config.model_type not in _ARCHITECTURES or ModelConfig.from_hf(values) != config:
        raise UnsupportedModel(
            f"model_type: a {config.model_type} model with these settings cannot be written; "
            f"take one of {', '.join(_ARCHITECTURES)} with plain rotary positions"
        )
    return values
