"""`make_net`: a draft head ready to run beside its target."""

from typing import Any

from paceline.errors import UnsupportedModel
from paceline.models.heads.record import HeadRecord
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.numba_executor.heads.autoregressive import NumbaAutoregressiveNet
from paceline.models.numba_executor.heads.block import NumbaBlockNet
from paceline.models.numba_executor.heads.falcon import NumbaFalcon
from paceline.models.numba_executor.heads.hydra import NumbaHydra
from paceline.models.numba_executor.heads.material import HEAD, Material, covers
from paceline.models.numba_executor.heads.medusa import NumbaBlockwise, NumbaMedusa
from paceline.models.numba_executor.heads.mlp_speculator import NumbaMlpSpeculator
from paceline.models.numba_executor.heads.parallel_eagle import NumbaParallelEagle
from paceline.models.numba_executor.heads.prediction import prediction_net
from paceline.models.numba_executor.weights import STORED

NETS = {
    "eagle": NumbaAutoregressiveNet, "eagle3": NumbaAutoregressiveNet, "mtp": NumbaAutoregressiveNet,
    "p_eagle": NumbaParallelEagle, "falcon": NumbaFalcon,
    "dflash": NumbaBlockNet, "dspark": NumbaBlockNet,
    "mlp_speculator": NumbaMlpSpeculator, "medusa": NumbaMedusa, "hydra": NumbaHydra, "blockwise": NumbaBlockwise,
}  # fmt: skip
"""Network by family."""


def make_net(record: HeadRecord, target: LoadedModel, dtype: str = "auto") -> Any:
    """The network of `record` on the CPU kernels, on the target's threads: one of the two runs at a time.

    Args:
        record: a head whose tensors and sizes have been checked.
        target: the model it drafts for.
        dtype: storage of the head's weights, ``bfloat16``, ``float32``, ``int8`` or ``w8a8``; ``auto`` takes the
            target's.

    Raises:
        InvalidParameter: an unknown dtype.
        UnsupportedModel: a target on another executor, or widths or a family that the kernels do not support.
    """
    family, material = record.config.family, Material(record, target, _dtype_of(target, dtype))
    if record.layer is not None and isinstance(target.model, NumbaModel):
        return prediction_net(material, target.model)
    if family in NETS:
        return NETS[family](material)
    raise UnsupportedModel(f'family: the CPU kernels do not run {family!r}; use executor="torch"')


def draft_dtype(record: HeadRecord) -> str:
    """The dtype with the fewest bytes, with which a head drafts fastest; a drafter's rounding alters no text.

    ``auto`` for heads that read the target's whole output head, to avoid a copy, and where w8a8 is not supported.
    """
    shares_head = record.draft_ids is None and HEAD not in record.tensors
    return "auto" if shares_head or not covers(record, "w8a8") else "w8a8"


def _dtype_of(target: LoadedModel, dtype: str) -> str:
    if dtype != "auto" or not isinstance(target.model, NumbaModel):
        return dtype
    name = target.model.dtype_choice.name
    return name if name in STORED else "w8a8"
