"""`Material`: the inputs for building a draft network: the head's tensors, and what it shares with its target.

A head without an embedding or an output head of its own uses the target's. The target's packed weights are shared where
possible; rows of the output head for a draft vocabulary are packed again, once. Not for what a network computes.
"""

import numpy as np

from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.architecture.config import ModelConfig
from paceline.models.heads.record import HeadRecord
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.numba_executor.gemm import PANEL, padded_rows
from paceline.models.numba_executor.heads.machine import Machine
from paceline.models.numba_executor.heads.pool import Pool
from paceline.models.numba_executor.heads.program import (
    EMBED,
    LOOKUP,
    NONE,
    PRODUCT,
    TIMES,
    Buffer,
    Buffers,
    Program,
)
from paceline.models.numba_executor.weights import STORED

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


class Material:
    """A head's record beside its target.

    Args:
        record: the head.
        target: the model it drafts for.
        dtype: storage of the head's weights, one of `weights.STORED`.

    Raises:
        InvalidParameter: an unknown dtype.
        UnsupportedModel: a target on another executor, or widths the kernels do not cover.
    """

    def __init__(self, record: HeadRecord, target: LoadedModel, dtype: str) -> None:
        if dtype not in STORED:
            raise InvalidParameter("dtype", f"{dtype!r} is unknown", f"use one of {', '.join(STORED)}")
        if not isinstance(target.model, NumbaModel):
            raise UnsupportedModel(
                'executor: draft heads on the CPU kernels need a target on them; use executor="numba"'
            )
        self.record, self.dtype, self.pool, self.tensors = record, dtype, Pool(dtype), record.tensors
        self._target, self._model = target, target.model
        self._shares = self._model.dtype_choice.name == dtype
        self._uses_head = False
        for name, value, size in _widths(record, dtype):
            if value % size:
                raise UnsupportedModel(
                    f"{name}: {value} of a draft head is not a multiple of {size} as the CPU kernels need it; "
                    'run the head with executor="torch"'
                )

    @property
    def layer(self) -> ModelConfig:
        """Sizes of the head's decoder layers."""
        assert self.record.config.layer is not None
        return self.record.config.layer

    @property
    def target_config(self) -> ModelConfig:
        """The target's architecture."""
        return self._model.config

    @property
    def draft_vocab_size(self) -> int:
        """Outputs of the head."""
        ids = self.record.draft_ids
        return self.record.config.draft_vocab_size or (self._model.config.vocab_size if ids is None else len(ids))

    def vector(self, name: str) -> int:
        """Where the vector `name` begins in the pool."""
        return self.pool.vector(self.tensors[name])

    def vector_or_none(self, name: str) -> int:
        """`vector`, `NONE` where the head has no such tensor."""
        return self.vector(name) if name in self.tensors else NONE

    def matrix_or_none(self, name: str) -> int:
        """The number of the matrix `name` in the pool, `NONE` where the head has no such tensor."""
        return self.pool.matrix(self.tensors[name]) if name in self.tensors else NONE

    def linear(self, name: str) -> tuple[int, int]:
        """The number of the matrix ``NAME.weight`` in the pool and where ``NAME.bias`` begins, `NONE` without one."""
        return self.pool.matrix(self.tensors[f"{name}.weight"]), self.vector_or_none(f"{name}.bias")

    def embedding(self, name: str = EMBEDDING, scale: float = 1.0) -> "Embedding":
        """How the embedding of a token is looked up: in the tensor `name`, or in the target's, times `scale`."""
        factor = NONE if scale == 1.0 else self.pool.vector(np.array([scale], np.float32))
        if name in self.tensors:
            return Embedding(LOOKUP, self.pool.table(self.tensors[name]), self.tensors[name].shape[1], factor)
        return Embedding(EMBED, NONE, self.target_config.hidden_size, factor)

    def head(self, buffers: Buffers, name: str = HEAD) -> "OutputHead":
        """How logits come from hidden states: the tensor `name`, or rows of the target's head."""
        size = self.draft_vocab_size
        logits = buffers.floats(padded_rows(size), per_asked=True)
        if name in self.tensors:
            return OutputHead(*self.linear(name.removesuffix(".weight")), logits, size)
        if self.record.draft_ids is None and self._shares:
            self._uses_head = True
            return OutputHead(NONE, NONE, logits, size)
        rows = self._target_head()
        if self.record.draft_ids is not None:
            rows = rows[self.record.draft_ids]
        return OutputHead(self.pool.matrix(rows), NONE, logits, size)

    def machine(self, buffers: Buffers, num_layers: int, eps: float | None = None) -> Machine:
        """The `Machine` of the network, once all weights are in the pool. `eps` defaults to that of the layers."""
        weights, ids = self._model.shared_weights, self.record.draft_ids
        stored = self.pool.arrays()
        none, no_scales = _empty(stored["panels"].dtype), _empty(np.float32)
        shared = {  # the embedding whether it is used or not: what is compiled depends on its type
            "head": weights.head if self._uses_head else none,
            "head_scales": weights.head_scales if self._uses_head else no_scales,
            "embedding": weights.embedding,
            "embedding_scales": weights.embedding_scales,
        }
        draft_ids = _empty(np.int32) if ids is None else np.asarray(ids, np.int32).copy()
        draft_ids.flags.writeable = False
        layer = self.record.config.layer
        return Machine(
            {**stored, **shared, "draft_ids": draft_ids}, buffers.all, layer, num_layers, self._model.team,
            self.dtype, self._model.cache_dtype, self.layer.norm_eps if eps is None else eps,
        )  # fmt: skip

    def _target_head(self) -> np.ndarray:
        """[vocabulary, hidden] the target's output head as its file has it."""
        tied = self._model.config.tie_word_embeddings
        return self._target.source.checkpoint.tensor("model.embed_tokens.weight" if tied else "lm_head.weight")


class Embedding:
    """Looks up a row's token: in the target's embedding, or in a table of the head's own."""

    def __init__(self, code: int, table: int, width: int, factor: int) -> None:
        self._code, self._table, self._width, self._factor = code, table, width, factor

    def add(self, program: Program, span: int, target: Buffer, column: int = 0) -> None:
        """target[row, column:] = the embedding of the row's token."""
        places = {"target_column": column, "weight": self._table, "width": self._width}
        program.add(self._code, span, None, target, **places)
        if self._factor != NONE:
            program.add(TIMES, span, None, target, **places | {"scale": self._factor})


class OutputHead:
    """Logits, from rows of activations; `logits` is [asked rows, padded], of which `size` columns count."""

    def __init__(self, matrix: int, bias: int, logits: Buffer, size: int) -> None:
        self._matrix, self._bias, self.logits, self.size = matrix, bias, logits, size

    def add(self, program: Program, span: int, source: Buffer) -> None:
        """logits = head(source)."""
        program.add(PRODUCT, span, source, self.logits, weight=self._matrix, bias=self._bias)


def _empty(dtype: np.typing.DTypeLike) -> np.ndarray:
    """Nothing, read-only as a mapped array is: compiled code tells the two kinds apart."""
    empty = np.zeros(0, dtype)
    empty.flags.writeable = False
    return empty


def covers(record: HeadRecord, dtype: str) -> bool:
    """Whether the kernels run a head of these widths whose weights are stored so."""
    return not any(value % size for _, value, size in _widths(record, dtype))


def _widths(record: HeadRecord, dtype: str) -> list[tuple[str, int, int]]:
    """(field, value, what it must be a multiple of)."""
    layer, inner = record.config.layer, ("inner_size", record.config.inner_size, PANEL)
    if layer is None:
        return [inner]
    return [
        ("hidden_size", layer.hidden_size, PANEL), ("intermediate_size", layer.intermediate_size, PANEL),
        ("head_dim", layer.head_dim, PANEL if dtype == "w8a8" else 16),
        ("num_attention_heads * head_dim", layer.num_attention_heads * layer.head_dim, PANEL), inner,
    ]  # fmt: skip
