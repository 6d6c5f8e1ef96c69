"""`make_net`: the network of a head for a target that is a `CudaModel`."""

from typing import Any, cast

import torch
from torch import Tensor

from paceline.errors import InvalidParameter
from paceline.models.cuda_executor.heads.autoregressive import CudaAutoregressiveNet
from paceline.models.cuda_executor.heads.nets import CudaBlockNet, CudaStepNet
from paceline.models.cuda_executor.heads.stored import store
from paceline.models.cuda_executor.model import CudaModel
from paceline.models.heads.record import HeadRecord
from paceline.models.loaded import LoadedModel
from paceline.models.torch_executor.heads import build as in_torch
from paceline.models.torch_executor.heads.nets import NETS, TorchAutoregressiveNet, TorchBlockNet, TorchStepNet

_PAGED = {TorchAutoregressiveNet: CudaAutoregressiveNet, TorchBlockNet: CudaBlockNet}
_FORMATS = ("auto", "float32", "bfloat16", "float16")


def make_net(record: HeadRecord, target: LoadedModel, dtype: str = "auto") -> Any:
    """The net of `record` on the target's device.

    Falcon and P-EAGLE, and all heads if the target uses PyTorch's attention, run as in the torch executor, in float32;
    so does a layer in the target's own files, in the target's format.

    Args:
        dtype: dtype of its matrices and keys; ``auto`` is that of the target's activations.

    Raises:
        UnsupportedModel, CorruptWeights: as `torch_executor.heads.build.make_net`.
        InvalidParameter: another dtype.
    """
    model = target.model
    assert isinstance(model, CudaModel)
    if dtype not in _FORMATS:
        raise InvalidParameter(
            "dtype", f"{dtype!r} is not known to heads on a GPU", f"use one of {', '.join(_FORMATS)}"
        )
    shape = NETS[record.config.family][1] if record.config.family in NETS else None
    if record.layer is not None or shape not in (*_PAGED, TorchStepNet) or model.attention == "sdpa":
        return in_torch.make_net(record, target)
    kind = model.activations if dtype == "auto" else getattr(torch, dtype)
    net = in_torch.network_of(record, *_tables(model, target)).to(model.device)
    net, capture = store(net, kind), model.passes.capture
    if shape is TorchStepNet:
        made = CudaStepNet(record, net, capture)
    else:
        longest = model.config.max_position_embeddings
        made = _PAGED[shape](record, net, kind, model.attention, capture, longest)
    made.kernels = model.chain_kernels
    drafts_ahead = isinstance(made, CudaAutoregressiveNet)
    if model.records_passes and model.expect_drafts(made.ahead.follow if drafts_ahead else None):
        made.verify = model.verify_early
        if drafts_ahead:
            made.verify_after = model.verify_after
    return made


def draft_dtype(record: HeadRecord) -> str:
    """See `models/heads/build.make_net`: heads have the target's here."""
    return "auto"


def _tables(model: CudaModel, target: LoadedModel) -> tuple[Tensor, Tensor]:
    """The target's embedding and head on its device; where it has them in blocks or in shares, copies of the file's."""
    stack = model.stack
    layers = [stack.embedding] if stack.head is None else [stack.embedding, stack.head]
    tables = [layer.weight for layer in layers]
    if model.peers.shard is not None or not all(isinstance(table, Tensor) for table in tables):
        tables = in_torch.tables_of(target)
    tables = [cast(Tensor, table).detach().to(model.device, model.activations) for table in tables]
    return tables[0], tables[-1]
