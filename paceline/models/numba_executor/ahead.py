"""Compiles kernels before they are needed, while weights are still downloaded and converted.

Compiled code depends only on the types of the arrays, so a model of one small layer has the same kernels as every model
of the same dtypes and parts: dense ones with attention, as the built-in models are. Not for running models.
"""

import tempfile
import threading
from functools import cache
from pathlib import Path

import numpy as np

from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.tensor_names import tensor_shapes
from paceline.models.files.checkpoint import Checkpoint
from paceline.models.heads.record import HeadConfig, HeadRecord, TargetPrint
from paceline.models.heads.shapes import head_shapes
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor.blocks.kernels import addresses
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.numba_executor.heads.build import make_net
from paceline.models.numba_executor.weights import convert, stored_arrays
from paceline.models.resolve import ModelSource
from paceline.models.rows import Part, build_rows

_SMALL = ModelConfig(
    model_type="llama", vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1,
    num_key_value_heads=1, head_dim=32, norm_eps=1e-5, max_position_embeddings=32, tie_word_embeddings=True,
)  # fmt: skip


@cache
def compile_ahead(dtype: str, kv_cache_dtype: str = "auto", blocks: tuple[str, ...] = ()) -> threading.Thread:
    """Start a thread that compiles the pass for these dtypes, or loads it from disk; the first pass waits for it.

    With dtype gguf, `blocks` names the formats whose kernels will be needed.

    The program does not exit before the thread ends, because the compiler cannot be interrupted.
    """
    thread = threading.Thread(target=_compile, args=(dtype, kv_cache_dtype, blocks), name="paceline-compiler")
    thread.start()
    return thread


def _compile(dtype: str, kv_cache_dtype: str, blocks: tuple[str, ...]) -> None:
    for name in blocks if dtype == "gguf" else ():
        addresses(name)
    model = NumbaModel(_Blank(), dtype, 1, kv_cache_dtype=kv_cache_dtype, load=_in_memory)
    model.warm_up()
    model.close()


def compile_heads(dtype: str, kv_cache_dtype: str = "auto") -> None:
    """Compile the function that runs draft heads of all families for a target of these dtypes, in this thread."""
    model = NumbaModel(_Blank(), dtype, 1, kv_cache_dtype=kv_cache_dtype, load=_in_memory)
    _run_head(model)
    model.close()


def _run_head(model: NumbaModel) -> None:
    about = TargetPrint("blank", _SMALL.hidden_size, 1, _SMALL.vocab_size)
    config = HeadConfig("eagle3", about, (0,), _SMALL, num_layers=1, draft_vocab_size=_SMALL.vocab_size)
    tensors = {name: np.zeros(shape, np.float32) for name, shape in head_shapes(config).items()}
    target = LoadedModel(ModelSource("blank", _Blank(), None), model)  # type: ignore[arg-type]
    net = make_net(HeadRecord(config, tensors), target)
    rows = build_rows([Part([0], 0, [0])])
    net.forward(rows, np.zeros((1, _SMALL.hidden_size), np.float32), net.new_cache(1))  # type: ignore[union-attr]


class _Blank:
    """A checkpoint of zeros."""

    config = _SMALL
    fingerprint = "blank"
    storage = "F32"

    def names(self) -> tuple[str, ...]:
        return tuple(tensor_shapes(_SMALL))

    def tensor(self, name: str) -> np.ndarray:
        return np.zeros(tensor_shapes(_SMALL)[name], np.float32)


def _in_memory(checkpoint: Checkpoint, dtype: str, progress: object = None) -> dict:
    """As `load_weights`, without the cache."""
    with tempfile.TemporaryDirectory() as folder:
        convert(Path(folder), checkpoint, dtype)
        return stored_arrays(Path(folder), checkpoint.config, dtype, mapped=False)
