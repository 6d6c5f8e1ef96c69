"""A stack of fused layers (`fused_layers.py`), its ends, and which of the forms of its layers a pass takes.

A pass over few rows uses the kernel of `kernels/products.py` for its products, whose parts are added by the kernels of
`kernels/entries.py`: a layer is eight kernels, nine where contexts are split. A deterministic model does so for any
number of rows.
"""

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.base import NORMED
from paceline.models.cuda_executor.block_layers import MANY, BlockEmbedding, BlockLinear, widened
from paceline.models.cuda_executor.block_matrix import BlockMatrix
from paceline.models.cuda_executor.fused_layers import FusedLayer, FusedNorm, Unsummed, all_of, fused_layer
from paceline.models.cuda_executor.graphs import on_device, release_unused_memory
from paceline.models.cuda_executor.kernels.ends import embedded, peaks_of, row_angles
from paceline.models.cuda_executor.kernels.products import Weights, product
from paceline.models.cuda_executor.peers import Peers
from paceline.models.torch_executor.layers import Layer, MixtureOfExperts, Pass, RMSNorm
from paceline.models.torch_executor.model import DecoderStack, Stage, Taps, last_taps
from paceline.models.torch_executor.split_layers import VocabularyParallelEmbedding

FEW = 32
"""Most rows for which the kernels for few are faster: on an H100 a pass of 32 rows of a 1.5B model takes 1.73 ms with
them and 2.29 with a library's products, one of 64 rows 2.52 and 2.41."""


class Fused:
    """The layers, final norm and head of a loaded stack; fused ones replace those of the stack.

    Args:
        deterministic: use products of one order for any number of rows.
        peers: the ranks that share the layers.
    """

    row_angles = staticmethod(row_angles)

    def __init__(self, stack: DecoderStack, deterministic: bool, peers: Peers) -> None:
        self._stack, self._deterministic = stack, deterministic
        self.peaks_of = partial(peaks_of, begins_early=peers.shard is None)
        for name, layer in stack.layers.items():
            stack.layers[name] = fused_layer(cast(Layer, layer), peers, deterministic)
            release_unused_memory()  # the separate matrices, which the allocator would keep beside the joined ones
        if stack.layer_inputs is not None:
            stack.layer_inputs.norm = FusedNorm(stack.layer_inputs.norm, peers)  # type: ignore[assignment]
        layers = list(stack.layers.values())
        self._widens = all_of(FusedLayer, layers) and (stack.norm is None or isinstance(stack.norm, RMSNorm))
        self._is_plain = self._widens and all(cast(FusedLayer, layer).is_plain for layer in layers)
        self._scale = stack.config.residual_scale if self._widens else 1.0
        if isinstance(stack.norm, RMSNorm):
            stack.norm = FusedNorm(stack.norm, peers, self._scale)
            table = stack.embedding if stack.head is None else stack.head
            if type(table) in (nn.Linear, VocabularyParallelEmbedding, BlockLinear, BlockEmbedding):
                stack.head = FusedOutputHead(cast(Weights, table.weight), self._narrows)  # type: ignore[assignment]

    @property
    def asks_host(self) -> bool:
        """Whether a layer needs the host in the middle of a pass, which then cannot be recorded."""
        return any(isinstance(part, MixtureOfExperts) for part in self._stack.modules())

    @property
    def embeds(self) -> bool:
        """Whether `embedded` does everything before the first layer."""
        stack = self._stack
        is_plain = stack.config.embedding_scale == self._scale == 1.0 and stack.position_embedding is None
        return self._widens and is_plain and type(stack.embedding) is VocabularyParallelEmbedding

    def embedded(self, tokens: Tensor, picks: Tensor) -> Tensor:
        """[M, hidden] float32; see `kernels.ends.embedded`."""
        table = self._stack.embedding
        return table.total(embedded(tokens, picks, table.weight, table.first))

    def run(
        self, stage: Stage, x: Tensor, step: Pass, taps: tuple[int, ...], asked: Tensor,
        out: Tensor | None,
    ) -> tuple[Tensor, Taps]:  # fmt: skip
        """(logits [K, vocab] of the rows `asked` [K], taps) of embedded rows x [M, hidden].

        A stage without the last layer returns its hidden states [M, hidden] in place of logits, and one without the
        first is given those before its layers. Both are as between layers: float32 if all layers and norms are fused,
        and `divided`. Taps are not divided.

        Args:
            out: buffer for logits.
        """
        found, tapped = self._run(stage, x, step, taps, asked, out)
        if self._scale == 1.0:
            return found, tapped
        return found, {tap: states if tap == NORMED else states * self._scale for tap, states in tapped.items()}

    def divided(self, x: Tensor) -> Tensor:
        """Embeddings divided by the factor on what layers add, which is then added as it is: a norm of x / s with
        epsilon / s^2 is that of x."""
        return x if self._scale == 1.0 else x.float() / self._scale

    def _run(
        self, stage: Stage, x: Tensor, step: Pass, taps: tuple[int, ...], asked: Tensor,
        out: Tensor | None,
    ) -> tuple[Tensor, Taps]:  # fmt: skip
        """`run` with hidden states as they are between layers."""
        x = x.float() if self._widens else x.to(stage.dtype)
        to_add, tapped, norm = (), {}, cast(FusedNorm, self._stack.norm)
        if self._is_plain and self._narrows(len(x), stage.dtype):
            x, to_add, tapped = self._run_narrow(stage, x, step, taps)
        else:
            x, tapped = stage.run_layers(x, step, taps)
        if not stage.shard.is_last:
            return self._added(x, *to_add), tapped
        if self._is_plain and not {NORMED, stage.shard.config.num_hidden_layers}.intersection(taps):
            return self._logits(norm.after(x, *to_add, asked=asked)[1], out), tapped
        x, normed = norm.after(x, *to_add) if self._widens else (x, norm(x))
        return self._logits(normed[asked], out), tapped | last_taps(stage.shard.config, taps, x, normed)

    def _run_narrow(
        self, stage: Stage, x: Tensor, step: Pass, taps: tuple[int, ...]
    ) -> "tuple[Tensor, Unsummed | tuple[()], Taps]":
        """`Stage.run_layers` with products for few rows, and what must be added to the last hidden states."""
        to_add: Unsummed | tuple[()] = ()
        tapped: Taps = {}
        for number in stage.running:
            layer = cast(FusedLayer, self._stack.layers[str(number)])
            x, normed = layer.attention_norm.after(x, *to_add)
            if number in taps:
                tapped[number] = x
            x, to_add = layer.unsummed(x, normed, number - stage.shard.layers.start, step)
        return x, to_add, tapped

    def _added(self, x: Tensor, *to_add: Tensor | None) -> Tensor:
        """Hidden states with what must be added to them, in the order in which the next layer's norm would."""
        layer = next(iter(self._stack.layers.values()))
        return cast(FusedLayer, layer).attention_norm.after(x, *to_add)[0] if to_add else x

    def _logits(self, x: Tensor, out: Tensor | None) -> Tensor:
        head, config = self._stack.head, self._stack.config
        if isinstance(head, FusedOutputHead) and config.logit_scale == 1.0 and not config.logit_softcap:
            return head(x, out)
        return self._stack.logits(x)

    def _narrows(self, rows: int, dtype: torch.dtype) -> bool:
        """Whether products of `rows` rows of `dtype` use the kernel for few; in float32 libraries are as fast."""
        return self._deterministic or (rows <= FEW and dtype.itemsize == 2)


class FusedOutputHead(nn.Module):
    """The output head; on a GPU logits are summed and returned in float32.

    Args:
        narrows: whether a number of rows in a number format use the kernel for few rows.
    """

    def __init__(self, weight: Weights, narrows: Callable[[int, torch.dtype], bool]) -> None:
        super().__init__()
        self.weight, self._narrows = weight, narrows

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        with on_device(x.device):  # a layer for multi-token prediction calls it from outside a pass
            return self._logits(x, out)

    def _logits(self, x: Tensor, out: Tensor | None) -> Tensor:
        weight = self.weight
        in_blocks = isinstance(weight, BlockMatrix)
        if self._narrows(len(x), x.dtype) or (in_blocks and len(x) <= MANY):
            out = torch.empty(len(x), weight.shape[0], device=x.device) if out is None else out
            return product(x, weight, out=out)
        wide = widened(weight, x.dtype) if in_blocks else weight
        if x.is_cuda and x.itemsize == 2:
            return torch.mm(x, wide.T, out_dtype=torch.float32)
        return functional.linear(x, wide)
