"""The target's embedding, output head and final norm, which draft heads share, as torch tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.errors import UnsupportedModel
from paceline.models.architecture.config import ModelConfig
from paceline.models.heads.fingerprint import target_print
from paceline.models.heads.layer_config import plain_layers
from paceline.models.heads.record import TargetPrint
from paceline.models.resolve import ModelSource
from paceline.models.torch_executor.model import usable_device


@dataclass(frozen=True, eq=False, slots=True)
class Target:
    """The model that heads are trained for.

    Attributes:
        about: what tells it from others.
        config: its sizes.
        embedding, head: [vocabulary, hidden] bfloat16; one tensor where they are tied.
        norm: [hidden] float32, of its final norm.
        mask_token_id: a token that texts do not hold, whose embedding stands for a place to fill.

    Heads are trained on the device where these tensors are.
    """

    about: TargetPrint
    config: ModelConfig
    embedding: Tensor
    head: Tensor
    norm: Tensor
    mask_token_id: int = 0


def training_target(source: ModelSource, device: str = "cpu") -> Target:
    """The tensors and sizes of a model that training heads for it needs, on `device`.

    Raises:
        UnsupportedModel: the published layouts of heads cannot express the model's embeddings or logits.
        InvalidParameter: torch cannot put anything on the device.
    """
    place = usable_device(device)
    checkpoint = source.checkpoint
    config = checkpoint.config
    _check_ends(config)
    embedding = torch.from_numpy(checkpoint.tensor("model.embed_tokens.weight")).bfloat16()
    tied = config.tie_word_embeddings
    head = embedding if tied else torch.from_numpy(checkpoint.tensor("lm_head.weight")).bfloat16()
    norm = torch.from_numpy(checkpoint.tensor("model.norm.weight")).float()
    on_device = embedding.to(place)
    head = on_device if tied else head.to(place)
    layers = plain_layers(config)
    return Target(target_print(source), layers, on_device, head, norm.to(place), _unused_token(source))


_KINDS = {
    "norm": "with other norms than RMS norms",
    "embedding_scale": "that scale their embeddings (Gemma)",
    "logit_scale": "that scale their logits",
    "logit_softcap": "that cap their logits",
}
"""Models whose embeddings or logits are more than their tables say, by the field of `ModelConfig`."""


def _check_ends(config: ModelConfig) -> None:
    """Refuse a model whose embeddings or logits are more than its tables say, which heads could not share.

    Raises:
        UnsupportedModel: naming what differs.
    """
    ends = {"norm": config.norm == "rms", "embedding_scale": config.embedding_scale == 1.0,
            "logit_scale": config.logit_scale == 1.0, "logit_softcap": not config.logit_softcap}  # fmt: skip
    for name, is_plain in ends.items():
        if not is_plain:
            problem = f"heads for models {_KINDS[name]}, such as this one ({config.model_type}), are not trained"
            reason = "the layouts that heads are published in have no place for that"
            raise UnsupportedModel(f"{name}: {problem}: {reason}; take another target, or another way to draft")


def _unused_token(source: ModelSource) -> int:
    """A special token that neither begins nor ends a text; the last id of the vocabulary where there is none."""
    taken = {*source.eos_token_ids, source.tokenizer.bos_token_id, source.checkpoint.config.bos_token_id}
    template = source.tokenizer.special_token_ids
    free = [one for one in sorted(template) if one not in taken]
    return free[-1] if free else source.checkpoint.config.vocab_size - 1
