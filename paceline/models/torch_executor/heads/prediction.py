"""A target's own layer for multi-token prediction in torch, on the target's device; see `models/heads/prediction.py`.

The layer runs as `TorchModel` runs one, also where the target's executor has kernels of its own.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.errors import UnsupportedModel
from paceline.models.base import ForwardOutput, KVCache, Rows
from paceline.models.files.checkpoint import ENTRANCE, Checkpoint
from paceline.models.heads.prediction import PredictionNet
from paceline.models.heads.record import HeadRecord
from paceline.models.states import States
from paceline.models.torch_executor.cache import TorchKVCache
from paceline.models.torch_executor.device_states import tensor_of
from paceline.models.torch_executor.model import DecoderStack, Stage, TorchModel, fetched


def prediction_net(record: HeadRecord, target: object) -> PredictionNet:
    """The net of a record with a layer in the files of `target`, with the target's embedding and output head.

    Raises:
        UnsupportedModel: a target that does not run in torch, or is spread over several processes.
    """
    assert record.layer is not None
    if not isinstance(target, TorchModel) or not target.is_whole:
        problem = "a layer for multi-token prediction needs its whole target in one process"
        raise UnsupportedModel(f"executor: {problem}; draft with suffix or ngram")
    return PredictionNet(record, _Layer(record.layer, target), _Entrance(record, target))


class _Layer(TorchModel):
    """The layer, with the output head of `target`."""

    def __init__(self, checkpoint: Checkpoint, target: TorchModel) -> None:
        self._target = target.stack
        super().__init__(checkpoint, str(target.device), str(target.activations).removeprefix("torch."))

    def _load(self, checkpoint: Checkpoint, device: str) -> Stage:
        return Stage(checkpoint, device, self.dtype_choice.name, prepare=self._borrow)

    def _borrow(self, stack: DecoderStack) -> int:
        """Put the target's output head in the place of the layer's tables."""
        stack.embedding, stack.head = _Borrowed(self._target), None  # type: ignore[assignment]
        return 0

    @torch.inference_mode()
    def forward_from(
        self, inputs: Tensor, rows: Rows, cache: KVCache, taps: tuple[int, ...] = ()
    ) -> ForwardOutput:  # fmt: skip
        """See `prediction.Layer`; `inputs` are on the device."""
        assert isinstance(cache, TorchKVCache)
        stage = self._stage
        return fetched(*stage.finished(*stage.run(inputs.to(stage.dtype), rows, cache, taps), taps, rows.logit_rows))


class _Borrowed(nn.Module):
    """The output head of `target`, which is no part of the module that holds this."""

    def __init__(self, target: DecoderStack) -> None:
        super().__init__()
        self._target = (target,)

    def project(self, x: Tensor) -> Tensor:
        """See `VocabularyParallelEmbedding.project`."""
        [target] = self._target
        return target.embedding.project(x) if target.head is None else target.head(x)


class _Entrance:
    """The projection of normed embeddings and hidden states, in float32."""

    def __init__(self, record: HeadRecord, target: TorchModel) -> None:
        self._target, self._device, self._eps = target.stack, target.device, target.config.norm_eps
        self._fc, *self._norms = (
            torch.from_numpy(record.tensors[name]).to(target.device) for name in ENTRANCE
        )  # fmt: skip

    @torch.inference_mode()
    def __call__(self, tokens: np.ndarray, hidden: States) -> Tensor:
        """See `prediction.Entrance`."""
        ids = torch.as_tensor(tokens, dtype=torch.long, device=self._device)
        read = self._target.embedding(ids).float(), tensor_of(hidden, self._device).float()
        pairs = zip(read, self._norms, strict=True)
        normed = [functional.rms_norm(x, (x.shape[-1],), norm, self._eps) for x, norm in pairs]
        return functional.linear(torch.cat(normed, -1), self._fc)
