"""A model's `TokenProfile` for every split, by its data sheet: what is read, what is computed, what is sent.

A pass takes the longer of reading its bytes and doing its operations, at the parts of the data sheet that engines reach
(the roofline of Williams et al. 2009), shared by the devices of a group, and what these tell each other.
"""

from paceline.errors import InvalidParameter
from paceline.placement.profile import ModelProfile, ParallelConfig, Stages
from paceline.placement.profiling.device import DeviceSheet
from paceline.placement.profiling.model_work import ModelWork
from paceline.placement.tokens import TokenProfile

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
CONTEXTS = (0, 1024, 4096, 16384)
ALL_REDUCES_PER_LAYER = 2
FREE = 0.9
"""Part of a device's memory that weights, keys and values may take."""


def profile_from_sheet(
    name: str, work: ModelWork, device: DeviceSheet, seats: int = 256, token_budget: int = 2048, scale: float = 1.0
) -> ModelProfile:
    """All splits of `work` over the devices of one node that its weights fit.

    Args:
        scale: of every time: measured over predicted, where somebody measured.

    Raises:
        InvalidParameter: the model fits on no split.
    """
    entries = {}
    for split in splits_of(work, device):
        weights = work.total_bytes / split.num_devices
        if weights < FREE * device.memory:
            entries[split] = _stages(work, device, split, seats, token_budget, scale)
    if not entries:
        problem = f"{name!r} needs {work.total_bytes:.3g} bytes, a node has {device.node_devices} x {device.memory:.3g}"
        raise InvalidParameter("device", problem, "give a larger device, or more devices per node")
    return ModelProfile(name, entries)


def splits_of(work: ModelWork, device: DeviceSheet) -> list[ParallelConfig]:
    """Powers of two that divide the heads and layers, up to a node's devices."""
    powers = [2**i for i in range(device.node_devices.bit_length()) if 2**i <= device.node_devices]
    return [
        ParallelConfig(tensor, pipeline)
        for tensor in powers
        for pipeline in powers
        if tensor * pipeline <= device.node_devices and work.kv_heads % tensor == 0 and work.num_layers % pipeline == 0
    ]


def pass_seconds(work: ModelWork, device: DeviceSheet, split: ParallelConfig, rows: float, context: float) -> float:
    """A pass of one request with `rows` rows after `context` tokens, through all stages."""
    read = work.read_bytes(rows) + context * work.bytes_per_token
    alone = max(
        read / (device.bandwidth * device.bandwidth_share),
        work.operations(rows, context) / (device.operations * device.compute_share),
    )
    output = rows * work.hidden * 2.0
    joined = 0.0
    if split.tensor > 1:
        message = device.link_latency + output / split.tensor / device.link_bandwidth
        joined = work.num_layers * ALL_REDUCES_PER_LAYER * 2 * (split.tensor - 1) * message
    handed = (split.pipeline - 1) * (device.link_latency + output / device.link_bandwidth)
    return alone / split.tensor + joined + handed


def _stages(
    work: ModelWork, device: DeviceSheet, split: ParallelConfig, seats: int, token_budget: int, scale: float
) -> Stages:
    seconds = {
        context: {rows: scale * pass_seconds(work, device, split, rows, context) for rows in ROWS}
        for context in CONTEXTS
    }
    each = work.bytes_per_token / (device.bandwidth * device.bandwidth_share * split.tensor)
    tokens = TokenProfile(
        seconds,
        segment_seconds={context: scale * context * each for context in CONTEXTS},
        step_overhead=scale * device.step_overhead,
        seats=seats,
        token_budget=token_budget,
    )
    weights = work.total_bytes / split.num_devices
    kv_bytes = work.bytes_per_token / split.num_devices
    part = tokens.pass_seconds(1) / split.pipeline
    return Stages((part,) * split.pipeline, (weights,) * split.pipeline, tokens=tokens, kv_bytes=kv_bytes)
