"""`make_net`: a head's record as a network in torch."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.errors import CorruptWeights, InvalidParameter, UnsupportedModel
from paceline.models.heads.record import HeadRecord
from paceline.models.loaded import LoadedModel
from paceline.models.torch_executor.heads.nets import NETS


def make_net(record: HeadRecord, target: LoadedModel, dtype: str = "auto") -> Any:
    """The net of `record` beside `target`, in float32 on the CPU.

    Raises:
        UnsupportedModel: a family that does not run here.
        InvalidParameter: another dtype.
        CorruptWeights: a tensor is missing or left over.
    """
    if dtype not in ("auto", "float32"):
        raise InvalidParameter("dtype", f"{dtype!r} is not known to heads in torch", "use auto or float32")
    checkpoint = target.source.checkpoint
    embedding = torch.from_numpy(checkpoint.tensor("model.embed_tokens.weight"))
    tied = checkpoint.config.tie_word_embeddings
    head = embedding if tied else torch.from_numpy(checkpoint.tensor("lm_head.weight"))
    return net_of(record, embedding, head)


def net_of(record: HeadRecord, embedding: Tensor, head: Tensor) -> Any:
    """The net of `record` for a target with these tables, [vocabulary, hidden] each; errors as `make_net`."""
    family = record.config.family
    if family not in NETS:
        raise UnsupportedModel(f"family: {family!r} heads do not run in torch; use executor='numba'")
    network, shape = NETS[family]
    rows = head if record.draft_ids is None else head[torch.from_numpy(record.draft_ids).long()]
    net = network(record.config, embedding, rows)
    tensors = {name: torch.from_numpy(np.array(values, np.float32)) for name, values in record.tensors.items()}
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise CorruptWeights(f"{family} head: {error}") from None
    return shape(record, net.eval())
