"""Costs of layers: from operations, bytes and links (roofline), or from measured seconds by rows.

A layer on t devices takes max(operations / peak, bytes / bandwidth) / t plus its all-reduces. Traffic of keys and
values is ignored: a pass here is one forward pass over a fixed number of tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.parallelise import LayerCosts
from paceline.speculation import CostProfile
from paceline.theory.distributed_draft import ALL_REDUCES_PER_LAYER


@dataclass(frozen=True, slots=True)
class Device:
    """A device: operations per second, memory bandwidth in bytes/s, and link to its peers in bytes/s and seconds."""

    peak: float
    bandwidth: float
    link_bandwidth: float = float("inf")
    link_latency: float = 0.0

    def __post_init__(self) -> None:
        for field in ("peak", "bandwidth", "link_bandwidth"):
            if not getattr(self, field) > 0:
                raise InvalidParameter(field, f"{getattr(self, field)} is not above 0", "give it per second")
        if not self.link_latency >= 0:
            raise InvalidParameter("link_latency", f"{self.link_latency} is below 0", "give seconds")

    def send_seconds(self, num_bytes: float) -> float:
        """Seconds of one message to a peer."""
        return self.link_latency + num_bytes / self.link_bandwidth

    def all_reduce_seconds(self, num_bytes: float, num_devices: int) -> float:
        """Seconds of a ring all-reduce: 2 (n - 1) messages of bytes / n each; 0 on one device."""
        return 2 * (num_devices - 1) * self.send_seconds(num_bytes / num_devices)


@dataclass(frozen=True, slots=True)
class LayerWork:
    """The work of one layer in a pass.

    Attributes:
        operations: floating-point operations.
        weight_bytes: of its weights, which are read once per pass.
        output_bytes: of its activations, sent to the next layer and summed by an all-reduce.
        all_reduces: number of all-reduces under tensor parallelism.
    """

    operations: float
    weight_bytes: float
    output_bytes: float
    all_reduces: int = ALL_REDUCES_PER_LAYER

    def seconds(self, device: Device, tensor: int) -> float:
        """Seconds of this layer in a pass on `tensor` devices."""
        alone = max(self.operations / device.peak, self.weight_bytes / device.bandwidth)
        return alone / tensor + self.all_reduces * device.all_reduce_seconds(self.output_bytes, tensor)


def transformer_layers(
    num_layers: int,
    hidden_size: int,
    num_tokens: int,
    vocab_size: int = 0,
    intermediate_size: int | None = None,
    bytes_per_parameter: float = 2.0,
) -> list[LayerWork]:
    """The work of a plain transformer over `num_tokens` tokens: its layers, and a head if `vocab_size` > 0.

    A layer has 4 h^2 attention and 2 h f feed-forward parameters (f = 4 h when left out), costs 2 operations per
    parameter and token, and 4 h operations per pair of tokens in attention.
    """
    if min(num_layers, hidden_size, num_tokens) < 1:
        problem = f"{num_layers} layers of width {hidden_size} over {num_tokens} tokens"
        raise InvalidParameter("layers", problem, "give whole numbers of at least 1")
    parameters = 4 * hidden_size**2 + 2 * hidden_size * (intermediate_size or 4 * hidden_size)
    operations = 2 * parameters * num_tokens + 4 * hidden_size * num_tokens**2
    output = num_tokens * hidden_size * bytes_per_parameter
    layers = [LayerWork(operations, parameters * bytes_per_parameter, output)] * num_layers
    if vocab_size:
        head = hidden_size * vocab_size
        layers.append(LayerWork(2 * head * num_tokens, head * bytes_per_parameter, output, all_reduces=1))
    return layers


def analytic_costs(layers: Sequence[LayerWork], device: Device, tensor_degrees: Sequence[int] = (1,)) -> LayerCosts:
    """Costs of `layers` on devices of one kind, for `parallelise.profile_from_layers`."""
    return LayerCosts(
        seconds={t: np.array([layer.seconds(device, t) for layer in layers]) for t in tensor_degrees},
        weight_mem=np.array([layer.weight_bytes for layer in layers]),
        hand_over=np.array([device.send_seconds(layer.output_bytes) for layer in layers]),
    )


def measured_costs(
    seconds_by_rows: CostProfile, num_rows: int, num_layers: int, weight_mem: float, hand_over: float = 0.0
) -> LayerCosts:
    """Costs of a model of equal layers, from measured passes of the whole model on one device.

    Args:
        seconds_by_rows: t(M), e.g. the ``prefill_cost`` of a `scheduling.profile.Profile` that `paceline tune` wrote.
        num_rows: rows of a pass: tokens times batch size.
        weight_mem: bytes of the whole model.
        hand_over: seconds to send a pass's activations to the next stage.
    """
    if min(num_rows, num_layers) < 1:
        problem = f"{num_rows} rows through {num_layers} layers"
        raise InvalidParameter("layers", problem, "give whole numbers of at least 1")
    each = np.full(num_layers, seconds_by_rows(num_rows) / num_layers)
    mem = np.full(num_layers, weight_mem / num_layers)
    return LayerCosts({1: each}, mem, np.full(num_layers, hand_over))
