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
from paceline.training.heads.losses import OutputHead


@dataclass(frozen=True, eq=False, slots=True)
class Target:
    """The model that heads are trained for.

    Attributes:
        about: what tells it from others.
        config: its sizes.
        embedding, head: [vocabulary, hidden] bfloat16; one tensor where they are tied.
        norm: [hidden] float32, of its final norm.
        mask_token_id: a token that texts do not hold, whose embedding stands for a place to fill.
        embedding_scale: factor on its embeddings.
        logit_scale, logit_softcap: see `OutputHead`.

    Heads are trained on the device where these tensors are.
    """

    about: TargetPrint
    config: ModelConfig
    embedding: Tensor
    head: Tensor
    norm: Tensor
    mask_token_id: int = 0
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0

    def output_head(self, ids: Tensor | None = None) -> OutputHead:
        """What makes its logits, of tokens `ids` [m] only; of all by default."""
        rows = self.head if ids is None else self.head[ids].contiguous()
        return OutputHead(rows, self.logit_scale, self.logit_softcap)


def training_target(source: ModelSource, device: str = "cpu", any_logits: bool = False) -> Target:
    """The tensors and sizes of a model that training heads for it needs, on `device`.

    Args:
        any_logits: take models whose logits are scaled or capped, too; see `Recipe.learns_any_logits`.

    Raises:
        UnsupportedModel: the model's logits are, and may not be.
        InvalidParameter: torch cannot put anything on the device.
    """
    place = usable_device(device)
    checkpoint = source.checkpoint
    config = checkpoint.config
    if not any_logits:
        _check_logits(config)
    embedding = torch.from_numpy(checkpoint.tensor("model.embed_tokens.weight")).bfloat16()
    tied = config.tie_word_embeddings
    head = embedding if tied else torch.from_numpy(checkpoint.tensor("lm_head.weight")).bfloat16()
    norm = torch.from_numpy(checkpoint.tensor("model.norm.weight")).float()
    on_device = embedding.to(place)
    head = on_device if tied else head.to(place)
    layers = plain_layers(config)
    return Target(
        target_print(source), layers, on_device, head, norm.to(place), _unused_token(source), config.embedding_scale,
        config.logit_scale, config.logit_softcap,
    )  # fmt: skip


def _check_logits(config: ModelConfig) -> None:
    """Raise UnsupportedModel for a model whose logits are not the product of its output head alone."""
    found = {"logit_scale": ("scale", config.logit_scale != 1.0), "logit_softcap": ("cap", bool(config.logit_softcap))}
    for name, (verb, is_so) in found.items():
        if is_so:
            problem = f"this is not trained for models that {verb} their logits, such as this one ({config.model_type})"
            remedy = "train a head of eagle3, p_eagle or dspark, whose own norm learns that"
            raise UnsupportedModel(f"{name}: {problem}; {remedy}")


def _unused_token(source: ModelSource) -> int:
    """A special token that neither begins nor ends a text; the last id of the vocabulary where there is none."""
    taken = {*source.eos_token_ids, source.tokenizer.bos_token_id, source.checkpoint.config.bos_token_id}
    template = source.tokenizer.special_token_ids
    free = [one for one in sorted(template) if one not in taken]
    return free[-1] if free else source.checkpoint.config.vocab_size - 1
