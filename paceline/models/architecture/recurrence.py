"""`Recurrence`: layers that read a state of fixed size instead of the keys and values of all tokens before.

Two kinds. A *short convolution* (LFM2) sums the last few inputs of each channel. A *gated delta net* (Yang et al. 2025,
"Gated Delta Networks", equation 10; Qwen3-Next, Qwen3.5) puts such a convolution before a matrix S per head, with

    S <- exp(g) S;  S <- S + k (beta (v - S^T k))^T;  output = S^T q.

Not for which states a cache keeps (`models/state_book.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.models.fields import Fields, refuse

MOST_TAPS = 64
_LARGEST_HEAD = 1 << 12


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The recurrent layers of a model, all of one kind.

    Attributes:
        layers: their numbers, ascending. kernel: inputs that a channel's convolution sums, the row's own included.
        channels: of the convolution.
        key_heads, value_heads: of a gated delta net, 0 for a short convolution; value_heads / key_heads share a key.
        key_dim, value_dim: sizes of such heads.
        tiled: value head h reads key head h mod key_heads (GGUF) instead of h div (value_heads / key_heads).
    """

    layers: tuple[int, ...]
    kernel: int
    channels: int
    key_heads: int = 0
    value_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    tiled: bool = False

    def __post_init__(self) -> None:
        if self.is_delta and self.value_heads % self.key_heads:
            raise refuse("linear_num_value_heads", f"{self.value_heads} is no multiple of {self.key_heads} key heads")

    @property
    def is_delta(self) -> bool:
        """Whether the layers are gated delta nets."""
        return self.value_heads > 0

    @property
    def inputs(self) -> int:
        """Numbers of a row that its state depends on, per layer: channels, then those beta and g of each value head are
        computed from."""
        return self.channels + 2 * self.value_heads

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
    return Recurrence(layers, kernel, hidden) if layers else None


def gated_delta_net(
    layers: tuple[int, ...], fields: Fields, names: tuple[str, str, str, str, str], tiled: bool = False
) -> Recurrence | None:  # fmt: skip
    """Gated delta nets; None without such layers.

    Args:
        names: of the fields with kernel, key heads, value heads, and sizes of a key and of a value head.
    """
    if not layers:
        return None
    kernel = fields.whole(names[0], most=MOST_TAPS)
    key_heads, value_heads, key_dim, value_dim = (fields.whole(name, most=_LARGEST_HEAD) for name in names[1:])
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    return Recurrence(layers, kernel, channels, key_heads, value_heads, key_dim, value_dim, tiled)


def recurrent_shapes(recurrence: Recurrence, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name (inside a layer) and shape of every tensor that a recurrent layer has in place of attention."""
    channels, heads = recurrence.channels, recurrence.value_heads
    if not recurrence.is_delta:
        yield "conv.in_proj.weight", (3 * channels, hidden)
        yield "conv.conv.weight", (channels, recurrence.kernel)
        yield "conv.out_proj.weight", (hidden, channels)
        return
    width = heads * recurrence.value_dim
    yield "linear_attn.in_proj_qkv.weight", (channels, hidden)
    yield "linear_attn.in_proj_z.weight", (width, hidden)
    yield "linear_attn.in_proj_b.weight", (heads, hidden)
    yield "linear_attn.in_proj_a.weight", (heads, hidden)
    yield "linear_attn.conv1d.weight", (channels, recurrence.kernel)
    yield "linear_attn.dt.bias", (heads,)
    yield "linear_attn.A_log.weight", (heads,)
    yield "linear_attn.norm.weight", (recurrence.value_dim,)
    yield "linear_attn.out_proj.weight", (hidden, width)
