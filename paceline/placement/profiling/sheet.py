"""A model's `TokenProfile` for every split, by its data sheet: what is read, what is computed, what is sent.

A pass takes the longer of reading its bytes and doing its operations, at the parts of the data sheet that engines reach
(the roofline of Williams et al. 2009), shared by the devices of a group, and what these tell each other.
"""

from paceline.errors import InvalidParameter
from paceline.placement.profile import ModelProfile, ParallelConfig, Stages
from paceline.placement.profiling.device import DeviceSheet
from paceline.placement.profiling.model_work import ModelWork
from paceline.placement.tokens import TokenProfile
from paceline.theory.distributed_draft import ALL_REDUCES_PER_LAYER

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
CONTEXTS = (0, 1024, 4096, 16384)
FREE = 0.9
"""Part of a device's memory that weights, keys and values may take."""


def profile_from_sheet(
    name: str, work: ModelWork, device: DeviceSheet, seats: int = 256, token_budget: int = 2048, scale: float = 1.0
) -> ModelProfile:
    """All splits of `work` over the devices of one node (`splits_of`) that its weights fit.

    Args:
        scale: of every time: measured over predicted, where somebody measured.

    Raises:
        InvalidParameter: the model fits on no split.
    """
    splits = splits_of(work, device)
    room = FREE * device.memory
    entries = {
        split: _stages(work, device, split, seats, token_budget, scale)
        for split in splits
        if fullest_bytes(work, split, seats) < room
    }
    if not entries:
        best = min(splits, key=lambda split: fullest_bytes(work, split, seats))
        taken, weights = fullest_bytes(work, best, seats), fullest_bytes(work, best, 0)
        split = f"in its finest split over a node ({best.tensor} x {best.pipeline}, tensor x pipeline)"
        if weights < room:
            problem = (
                f"{taken - weights:.3g} bytes of states beside {weights:.3g} of weights, of {room:.3g} on a device"
            )
            raise InvalidParameter("seats", f"{seats} requests at once have {problem}, {split}", "give fewer seats")
        problem = f"{name!r} takes {weights:.3g} bytes of a device {split}, of {room:.3g} that weights may take there"
        more = "" if work.is_whole else ", or more devices per node"
        raise InvalidParameter("device", problem, f"give a larger device{more}")
    return ModelProfile(name, entries)


def splits_of(work: ModelWork, device: DeviceSheet) -> list[ParallelConfig]:
    """All over a node's devices: tensor degrees divide what is shared evenly, stages have a layer or more."""
    if work.is_whole:
        return [ParallelConfig()]
    return [
        ParallelConfig(tensor, pipeline)
        for tensor in range(1, device.node_devices + 1)
        if work.shares % tensor == 0
        for pipeline in range(1, min(device.node_devices // tensor, work.num_layers) + 1)
    ]


def stage_layers(num_layers: int, num_stages: int) -> list[int]:
    """Layers of each stage, as even as can be; the first stages have those that are left over."""
    each, left = divmod(num_layers, num_stages)
    return [each + (stage < left) for stage in range(num_stages)]


def lasting_bytes(work: ModelWork, seats: int) -> float:
    """Weights, and two states for each seat, that after a text's last token and one before drafts."""
    return work.total_bytes + 2 * seats * work.state_bytes


def fullest_bytes(work: ModelWork, split: ParallelConfig, seats: int) -> float:
    """`lasting_bytes` on a device of the fullest stage; embedding and head are shared out like layers."""
    most = max(stage_layers(work.num_layers, split.pipeline))
    return lasting_bytes(work, seats) * most / work.num_layers / split.tensor


def pass_seconds(work: ModelWork, device: DeviceSheet, split: ParallelConfig, rows: float, context: float) -> float:
    """A pass of one request with `rows` rows after `context` tokens, through all stages."""
    read = work.read_bytes(rows) + work.request_bytes(context)
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
    reads = device.bandwidth * device.bandwidth_share * split.tensor
    shares = [layers / work.num_layers for layers in stage_layers(work.num_layers, split.pipeline)]
    overlap = 1 / max(shares) if min(shares) < max(shares) else None
    tokens = TokenProfile(
        seconds,
        segment_seconds={context: scale * work.request_bytes(context) / reads for context in CONTEXTS},
        step_overhead=scale * device.step_overhead,
        seats=seats,
        token_budget=token_budget,
        stages=split.pipeline,
        overlap=overlap,
        prefill_overlap=overlap,
    )
    weights = tuple(lasting_bytes(work, seats) * share / split.tensor for share in shares)
    kv_bytes = work.bytes_per_token * max(shares) / split.tensor
    latency = tuple(tokens.pass_seconds(1) * share for share in shares)
    return Stages(latency, weights, tokens=tokens, kv_bytes=kv_bytes)
