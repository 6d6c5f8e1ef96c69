"""`Recurrence`: layers that read a state of fixed size instead of the keys and values of all tokens before.

Three kinds. A *short convolution* (LFM2) sums the last few inputs of each channel. A *gated delta net* (Yang et al.
2025, "Gated Delta Networks", equation 10; Qwen3-Next, Qwen3.5) puts such a convolution before a matrix S per head, with

    S <- exp(g) S;  S <- S + k (beta (v - S^T k))^T;  output = S^T q.

A *state space* layer (Mamba-2; Dao and Gu 2024, "Transformers are SSMs", section 7; Granite 4) adds to the matrix
without reading it first. Its B, C and x are called k, q and v here, because they take the same places:

    S <- exp(-e^A d) S;  S <- S + k (d v)^T;  output = S^T q + D v.

Not for which states a cache keeps (`models/state_book.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.models.fields import Fields, refuse

Kind = Literal["short_convolution", "gated_delta_net", "state_space"]
MOST_TAPS = 64
_LARGEST_HEAD = 1 << 12


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The recurrent layers of a model, all of one kind.

    Attributes:
        layers: their numbers, ascending. kernel: inputs that a channel's convolution sums, the row's own included.
        channels: of the convolution. conv_bias: whether each of them has a bias.
        key_heads, value_heads: of matrices, 0 for a short convolution; value_heads / key_heads share a key.
        key_dim, value_dim: sizes of such heads.
        tiled: value head h reads key head h mod key_heads (GGUF) instead of h div (value_heads / key_heads).
    """

    kind: Kind
    layers: tuple[int, ...]
    kernel: int
    channels: int
    key_heads: int = 0
    value_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    tiled: bool = False
    conv_bias: bool = False

    def __post_init__(self) -> None:
        if self.has_matrices and self.value_heads % self.key_heads:
            name = "linear_num_value_heads" if self.kind == "gated_delta_net" else "mamba_n_heads"
            raise refuse(name, f"{self.value_heads} is no multiple of {self.key_heads} key heads")

    @property
    def has_matrices(self) -> bool:
        """Whether a state has a matrix for each value head."""
        return self.kind != "short_convolution"

    @property
    def gates(self) -> int:
        """Numbers of a row from which beta (of gated delta nets), then g, of all value heads are computed."""
        return self.value_heads * {"short_convolution": 0, "state_space": 1, "gated_delta_net": 2}[self.kind]

    @property
    def width(self) -> int:
        """Numbers of a row's output."""
        return self.value_heads * self.value_dim if self.has_matrices else self.channels

    @property
    def order(self) -> str:
        """The parts of the channels, in their order: q, k and v."""
        return "vkq" if self.kind == "state_space" else "qkv"

    def first_channel(self, part: str) -> int:
        """Where ``q``, ``k`` or ``v`` begins among the channels of matrices."""
        before = self.order[: self.order.index(part)]
        return sum(self.width if one == "v" else self.key_heads * self.key_dim for one in before)

    @property
    def inputs(self) -> int:
        """Numbers of a row that its state depends on, per layer: channels, then `gates`."""
        return self.channels + self.gates

    @property
    def state_size(self) -> int:
        """Numbers of one layer's state: inputs that the convolution still needs, then one matrix per value head."""
        return (self.kernel - 1) * self.channels + self.value_heads * self.key_dim * self.value_dim

    @property
    def num_bytes(self) -> int:
        """Bytes of the states of all layers after one token, in float32."""
        return 4 * len(self.layers) * self.state_size

    def key_head_of(self, value_head: int) -> int:
        """The key head that a value head reads."""
        return value_head % self.key_heads if self.tiled else value_head // (self.value_heads // self.key_heads)


def short_convolution(layers: tuple[int, ...], kernel: int, hidden: int) -> Recurrence | None:
    """Short convolutions over all channels of a model; None without such layers."""
    return Recurrence("short_convolution", layers, kernel, hidden) if layers else None


def with_matrices(
    kind: Kind, layers: tuple[int, ...], fields: Fields, names: Sequence[str], conv_bias: bool = False
) -> Recurrence | None:  # fmt: skip
    """Gated delta nets or state spaces; None without such layers.

    Args:
        names: of the fields with kernel, key heads, value heads, and sizes of a key and of a value head.
    """
    if not layers:
        return None
    kernel = fields.whole(names[0], most=MOST_TAPS)
    key_heads, value_heads, key_dim, value_dim = (fields.whole(name, most=_LARGEST_HEAD) for name in names[1:])
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    return Recurrence(
        kind, layers, kernel, channels, key_heads, value_heads, key_dim, value_dim, conv_bias=conv_bias
    )  # fmt: skip


def recurrent_shapes(recurrence: Recurrence, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name (inside a layer) and shape of every tensor that a recurrent layer has in place of attention."""
    channels, heads = recurrence.channels, recurrence.value_heads
    if not recurrence.has_matrices:
        yield "conv.in_proj.weight", (3 * channels, hidden)
        yield "conv.conv.weight", (channels, recurrence.kernel)
        yield "conv.out_proj.weight", (hidden, channels)
        return
    width, keys = recurrence.width, recurrence.key_heads * recurrence.key_dim
    is_delta = recurrence.kind == "gated_delta_net"
    for part, rows in (("q", keys), ("k", keys), ("v", width), ("z", width)):
        yield f"linear_attn.in_proj_{part}.weight", (rows, hidden)
    if is_delta:
        yield "linear_attn.in_proj_b.weight", (heads, hidden)
    yield "linear_attn.in_proj_a.weight", (heads, hidden)
    yield "linear_attn.conv1d.weight", (channels, recurrence.kernel)
    if recurrence.conv_bias:
        yield "linear_attn.conv1d.bias", (channels,)
    yield "linear_attn.dt.bias", (heads,)
    yield "linear_attn.A_log.weight", (heads,)
    yield "linear_attn.norm.weight", (recurrence.value_dim if is_delta else width,)
    if not is_delta:
        yield "linear_attn.D.weight", (heads,)
    yield "linear_attn.out_proj.weight", (hidden, width)
