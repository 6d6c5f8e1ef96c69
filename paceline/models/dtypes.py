"""Chooses the dtype for ``auto``: the fastest one on this machine that does not round the weights noticeably.

A dtype changes a model's text, so ``auto`` never chooses int8 or w8a8, which round weights far more than the file did.
Not for what a dtype is (`numba_executor/weights.py`, `torch_executor`).
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal, TypeGuard

from paceline.models.architecture.tensor_names import tensor_shapes
from paceline.models.files.checkpoint import FLOATS, Checkpoint, KeepsBlocks
from paceline.models.numba_executor.blocks.formats import FORMATS, GROUP

AUTO = "auto"
_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_NATIVE_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


@dataclass(frozen=True, slots=True)
class DtypeChoice:
    """A dtype, and why ``auto`` chose it (empty when it was asked for)."""

    name: str
    reason: str = ""


def choose_dtype(asked: str, checkpoint: Checkpoint, executor: Literal["numba", "torch"], device: str) -> DtypeChoice:
    """`asked`, or for ``auto`` the dtype for these weights on this machine (docs/dtypes.md has the rules and reasons).

    Args:
        executor: the CPU kernels (``numba``) compute in float32 whatever the storage, torch in the dtype itself.
        device: torch device.
    """
    if asked != AUTO:
        return DtypeChoice(asked)
    if executor == "torch" and not _multiplies_bfloat16(device):
        return DtypeChoice("float32", f"{device} has no arithmetic in bfloat16")
    stored = checkpoint.storage
    if executor == "numba" and _multiplies_blocks(checkpoint):
        return DtypeChoice("gguf", f"multiplies the file's {stored} blocks as they are")
    if stored == "BF16":
        return DtypeChoice("bfloat16", "as the file has it")
    if stored == "F16" and executor == "numba":
        return DtypeChoice("float16", "as the file has it")
    if stored not in FLOATS:
        return DtypeChoice("bfloat16", f"its rounding is far below that of the file's {stored} blocks")
    num_parameters = sum(prod(shape) for shape in tensor_shapes(checkpoint.config).values())
    if 4 * num_parameters > _available_memory() // 2:
        return DtypeChoice(
            "bfloat16", f"the file has {stored}, which in float32 would take over half of the free memory"
        )
    return DtypeChoice("float32", f"holds the file's {stored} unrounded; bfloat16 takes half the bytes")


def has_blocks(checkpoint: Checkpoint) -> TypeGuard[KeepsBlocks]:
    """Whether at least one matrix is stored in blocks that kernels multiply."""
    return isinstance(checkpoint, KeepsBlocks) and not checkpoint.storages.isdisjoint(FORMATS)


def activations_beside_blocks(device: str) -> str:
    """The dtype of activations for blocks: on a GPU bfloat16 where it supports it, else float16; float32 elsewhere."""
    if not device.startswith("cuda"):
        return "float32"
    return "bfloat16" if _multiplies_bfloat16(device) else "float16"


def _multiplies_blocks(checkpoint: Checkpoint) -> bool:
    """Whether most weights are blocks, each kind has a kernel, and `head_dim` is a multiple of the group size."""
    return (
        isinstance(checkpoint, KeepsBlocks)
        and checkpoint.storage in FORMATS
        and checkpoint.storages <= {*FORMATS, *FLOATS}
        and all(dim % GROUP == 0 for dim in checkpoint.config.head_dims)
    )


def _multiplies_bfloat16(device: str) -> bool:
    """Whether a device has bfloat16 instructions; a CPU without them is slower in bfloat16 than in float32."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_capability(device) >= (8, 0)
    if not device.startswith("cpu") or not _CPUINFO.exists():
        return False
    return any(_NATIVE_FLAGS & set(line.split()) for line in _CPUINFO.read_text().splitlines() if ":" in line)


def _available_memory() -> int:
    """Bytes of free memory; a very large number where the system does not report it."""
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 1 << 62
