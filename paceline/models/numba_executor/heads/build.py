"""`make_net`: a draft head ready to run beside its target."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from paceline.errors import UnsupportedModel
from paceline.models.heads.record import HeadRecord
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.numba_executor.heads.autoregressive import NumbaAutoregressiveNet
from paceline.models.numba_executor.heads.block import NumbaBlockNet
from paceline.models.numba_executor.heads.hydra import NumbaHydra
from paceline.models.numba_executor.heads.material import Material
from paceline.models.numba_executor.heads.medusa import NumbaBlockwise, NumbaMedusa
from paceline.models.numba_executor.heads.mlp_speculator import NumbaMlpSpeculator
from paceline.models.numba_executor.heads.parallel_eagle import NumbaParallelEagle
from paceline.models.numba_executor.heads.stepwise import NumbaStepNet
from paceline.models.numba_executor.weights import STORED

AUTOREGRESSIVE = {
    "eagle": NumbaAutoregressiveNet,
    "eagle3": NumbaAutoregressiveNet,
    "mtp": NumbaAutoregressiveNet,
    "p_eagle": NumbaParallelEagle,
}

BLOCK = ("dflash", "dspark")
STEPWISE = {
    "mlp_speculator": NumbaMlpSpeculator,
    "medusa": NumbaMedusa,
    "hydra": NumbaHydra,
    "blockwise": NumbaBlockwise,
}

IN_TORCH = ("falcon",)
"""Families without kernels of their own, which run in torch beside a target on the CPU kernels."""

Net = NumbaAutoregressiveNet | NumbaBlockNet | NumbaStepNet


def make_net(record: HeadRecord, target: LoadedModel, dtype: str = "auto") -> Any:
    """The network of `record` on the CPU kernels, on the target's threads: one of the two runs at a time.

    Args:
        record: a head whose tensors and sizes have been checked.
        target: the model it drafts for.
        dtype: storage of the head's weights, ``bfloat16``, ``float32``, ``int8`` or ``w8a8``; ``auto`` takes the
            target's.

    Raises:
        InvalidParameter: an unknown dtype.
        UnsupportedModel: a target on another executor, or widths or a family that the kernels do not cover.
    """
    family = record.config.family
    if family in IN_TORCH:
        return _in_torch(record, target, dtype)
    material = Material(record, target, _dtype_of(target, dtype))
    if family in AUTOREGRESSIVE:
        return AUTOREGRESSIVE[family](material)
    if family in BLOCK:
        return NumbaBlockNet(material)
    if family in STEPWISE:
        return STEPWISE[family](material)
    raise UnsupportedModel(f'family: the CPU kernels do not run {family!r}; use executor="torch"')


def _in_torch(record: HeadRecord, target: LoadedModel, dtype: str) -> Any:
    """The network in torch, in float32 whatever the target's storage is."""
    if find_spec("torch") is None:
        problem = f"family: {record.config.family} heads run in torch, which is not installed"
        raise UnsupportedModel(f"{problem}; pip install 'paceline[torch]', or draft with eagle3")
    builder = import_module("paceline.models.torch_executor.heads.build")
    return builder.make_net(record, target, "float32" if dtype == "float32" else "auto")


def _dtype_of(target: LoadedModel, dtype: str) -> str:
    if dtype != "auto" or not isinstance(target.model, NumbaModel):
        return dtype
    name = target.model.dtype_choice.name
    return name if name in STORED else "w8a8"
