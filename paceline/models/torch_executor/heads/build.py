"""`make_net`: the network of a head in torch."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.errors import CorruptWeights, InvalidParameter, UnsupportedModel
from paceline.models.base import HasDevice
from paceline.models.heads.record import HeadRecord
from paceline.models.loaded import LoadedModel
from paceline.models.torch_executor.heads.nets import NETS
from paceline.models.torch_executor.heads.prediction import prediction_net


def make_net(record: HeadRecord, target: LoadedModel, dtype: str = "auto") -> Any:
    """The net of `record` in float32 on the device of `target`; on the CPU where the target has none.

    A layer in the target's own files has the target's number format.

    Raises:
        UnsupportedModel: the family is not supported here.
        InvalidParameter: the dtype is not ``auto`` or ``float32``.
        CorruptWeights: a tensor is missing or superfluous.
    """
    if dtype not in ("auto", "float32"):
        raise InvalidParameter("dtype", f"{dtype!r} is not known to heads in torch", "use auto or float32")
    if record.layer is not None:
        return prediction_net(record, target.model)
    device = target.model.device if isinstance(target.model, HasDevice) else torch.device("cpu")
    return net_of(record, *tables_of(target), device=device)


def draft_dtype(record: HeadRecord) -> str:
    """See `models/heads/build.make_net`: heads have the target's here."""
    return "auto"


def tables_of(target: LoadedModel) -> tuple[Tensor, Tensor]:
    """The target's embedding and the rows of its head, [vocabulary, hidden] each, on the CPU."""
    checkpoint = target.source.checkpoint
    embedding = torch.from_numpy(checkpoint.tensor("model.embed_tokens.weight"))
    tied = checkpoint.config.tie_word_embeddings
    return embedding, embedding if tied else torch.from_numpy(checkpoint.tensor("lm_head.weight"))


def net_of(record: HeadRecord, embedding: Tensor, head: Tensor, device: torch.device | None = None) -> Any:
    """The net of `record` for a target with these tables, [vocabulary, hidden] each; errors as `make_net`."""
    net = network_of(record, embedding, head)
    return NETS[record.config.family][1](record, net.to(device))


def network_of(record: HeadRecord, embedding: Tensor, head: Tensor) -> nn.Module:
    """The module of `record` with its weights, on the CPU; arguments and errors as `net_of`."""
    family = record.config.family
    if family not in NETS:
        raise UnsupportedModel(f"family: {family!r} heads do not run in torch; use executor='numba'")
    network = NETS[family][0]
    rows = head if record.draft_ids is None else head[torch.from_numpy(record.draft_ids).long()]
    net = network(record.config, embedding, rows)
    tensors = {name: torch.from_numpy(np.array(values, np.float32)) for name, values in record.tensors.items()}
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise CorruptWeights(f"{family} head: {error}; get the head's config and weights again") from None
    return net.eval()
