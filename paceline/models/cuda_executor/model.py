"""`CudaModel`: the torch executor's layers over paged attention, one graph per number of rows.

A pass packs its rows on the host, copies them by one copy, and replays the graph of its bucket; nobody waits for the
device until the logits are fetched. Mixtures of experts, and machines without Triton, run without graphs.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from paceline.errors import InvalidParameter
from paceline.models.base import DrawnOutput, ForwardOutput, KVCache, Rows
from paceline.models.chains import GreedyDraft
from paceline.models.checkpoint import Checkpoint
from paceline.models.cuda_executor.attention import AttentionName, attention_over, choose_attention
from paceline.models.cuda_executor.block_matrix import put_blocks
from paceline.models.cuda_executor.graphs import GraphCapture, Outputs
from paceline.models.cuda_executor.invariant import row_invariant
from paceline.models.cuda_executor.laws import Asked, answers_of, read_answers
from paceline.models.cuda_executor.paged_rows import PagedRows, levels_below
from paceline.models.cuda_executor.passes import CudaKVCache, Passes, likeliest
from paceline.models.dtypes import activations_beside_blocks
from paceline.models.torch_executor.model import (
    DecoderStack,
    Stage,
    Taps,
    TorchModel,
    check_rows,
    fetched,
    last_taps,
    usable_device,
)
from paceline.sampling.answered import Question


class CudaModel(TorchModel):
    """A `CausalLM` for one GPU, or for CPU tensors in tests.

    Args:
        checkpoint: the weights.
        device: ``cuda``, ``cuda:0`` and so on, or ``cpu``.
        dtype: ``bfloat16``, ``float16``, ``float32``, ``gguf`` for a file's own blocks, widened to the activations'
            format in registers, or ``auto``, see `choose_dtype`.
        attention: ``triton``, ``sdpa``, the twin ``by_position``, or ``auto``.
        deterministic: products whose sums have one order, so that a row's logits are bitwise the same in every batch,
            which takes longer. Without it libraries sum by the number of rows, and last digits of logits vary with it.
        capture: makes graphs; by default what the device has.

    Raises:
        InvalidParameter: the device cannot be used, or an option is unknown.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: str = "cuda",
        dtype: str = "auto",
        *,
        attention: AttentionName = "auto",
        deterministic: bool = False,
        capture: GraphCapture | None = None,
    ) -> None:
        super().__init__(checkpoint, device, dtype)
        on, config = self._stage.device, checkpoint.config
        self.attention: AttentionName = choose_attention(attention, on)
        if deterministic and self.attention == "sdpa":
            problem = "needs attention that sums in one order, which PyTorch's does not"
            raise InvalidParameter("deterministic", problem, "run pip install 'paceline[cuda]' on a machine with a GPU")
        if self.attention == "triton":
            from paceline.models.cuda_executor.fused import fuse

            fuse(self._stage.stack)
        self.deterministic = deterministic
        self.passes = Passes(config, config.vocab_size, on, self.attention, capture)
        self.records_passes = self.passes.records

    head_builder = "paceline.models.cuda_executor.heads.build"

    @property
    def activations(self) -> torch.dtype:
        """The number format of hidden states, keys and values."""
        return self._stage.dtype

    @property
    def stack(self) -> DecoderStack:
        """The layers and tables."""
        return self._stage.stack

    def _load(self, checkpoint: Checkpoint, device: str) -> Stage:
        if self.dtype_choice.name != "gguf":
            return super()._load(checkpoint, device)
        on, activations = usable_device(device), activations_beside_blocks(device)
        prepare = partial(put_blocks, checkpoint=checkpoint, device=on, dtype=getattr(torch, activations))
        return Stage(checkpoint, device, activations, prepare=prepare)

    @property
    def description(self) -> str:
        """What reports, and the names of cost profiles, call this executor and its device."""
        on = self._stage.device
        name = torch.cuda.get_device_name(on) if on.type == "cuda" else on.type
        return f"CudaModel on {name}, {self.attention}{', deterministic' if self.deterministic else ''}"

    def new_cache(self, num_pages: int) -> CudaKVCache:
        """An empty cache of `num_pages` pages."""
        return CudaKVCache(self.config, num_pages, self._stage.device, self._stage.dtype)

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: KVCache, taps: tuple[int, ...] = ()) -> ForwardOutput:
        """One pass over `rows` (see `CausalLM.forward`); waits for the device to fetch its logits and taps.

        Raises:
            InvalidParameter: a cache of another executor, or a row or tap outside the model.
        """
        return fetched(*self.launch(rows, cache, taps))

    @torch.inference_mode()
    def forward_drawn(
        self, rows: Rows, cache: KVCache, taps: tuple[int, ...], questions: Sequence[Question | None]
    ) -> DrawnOutput:
        """See `DrawsLaws`: questions go to the device before the pass, and only answers and wanted rows come back."""
        asked = Asked.of(questions, self.config.vocab_size, self._stage.device)
        wanted = [row for row, each in enumerate(questions) if each is None]
        index = torch.tensor(wanted, device=self._stage.device) if wanted else slice(0)
        logits, states = self.launch(rows, cache, taps)
        answers = read_answers(answers_of(logits, asked).cpu().numpy(), questions)
        output = fetched(logits[index], states)
        return DrawnOutput(answers, output.logits, output.taps)

    @torch.inference_mode()
    def draft_greedy(self, rows: Rows, cache: KVCache, num_tokens: int) -> GreedyDraft:
        """See `DraftsChains`: the pass over `rows` and the loop of the chains are a graph each; waits for the tokens.

        Raises:
            InvalidParameter: as `forward`.
        """
        logits, _ = self.launch(rows, cache)
        if self.attention == "sdpa":
            return self._chain_apart(rows, cache, logits, num_tokens)
        own = cast(CudaKVCache, cache)
        name = (tuple(self._stage.running),)
        return self.passes.chain(
            rows, own, name, (logits,), num_tokens, lambda placed, tokens, _: self._below(placed, tokens, own)
        )

    def _chain_apart(self, rows: Rows, cache: KVCache, logits: Tensor, num_tokens: int) -> GreedyDraft:
        """The chains below `logits` where masks are made on the host: a pass a level, each waited for."""
        tokens, probs = [], []
        for level in [*levels_below(rows, num_tokens - 1), None]:
            columns, chances = likeliest(logits)
            tokens.append(columns.cpu().numpy().astype(np.int32))
            probs.append(chances.cpu().numpy())
            if level is not None:
                logits, _ = self.launch(replace(level, token_ids=tokens[-1]), cache)
        return GreedyDraft(np.stack(tokens, axis=1), np.stack(probs, axis=1))

    def launch(self, rows: Rows, cache: KVCache, taps: tuple[int, ...] = ()) -> tuple[Tensor, Taps]:
        """Start a pass: logits [K, vocab] float32 and taps [M, hidden] on the device, good until the next pass.

        Nothing waits for the device here. Errors as `forward`.
        """
        if not isinstance(cache, CudaKVCache):
            raise InvalidParameter("cache", f"is a {type(cache).__name__}", "make it with this model's new_cache")
        check_rows(self.config, rows, taps)
        if self.attention == "sdpa":
            return self._scored(rows, cache, taps)
        num_asked, name = len(rows.logit_rows), (taps, tuple(self._stage.running))
        logits, *states = self.passes.run(
            rows, cache, name, lambda placed, asked, _: self._compute(placed, cache, taps, asked)
        )
        return logits[:num_asked], {tap: state[: len(rows.token_ids)] for tap, state in zip(taps, states, strict=True)}

    def _compute(self, placed: PagedRows, cache: CudaKVCache, taps: tuple[int, ...], asked: int) -> Outputs:
        """The logits of the first `asked` of the rows that are asked, and the states of each tap."""
        return self._through(placed.token_ids, placed, cache, taps, placed.logit_rows[:asked])

    def _below(self, placed: PagedRows, tokens: Tensor, cache: CudaKVCache) -> Outputs:
        """The logits of all rows, which hold `tokens` [rows]."""
        return self._through(tokens, placed, cache, (), torch.arange(len(tokens), device=tokens.device))

    def _through(
        self, tokens: Tensor, placed: PagedRows, cache: CudaKVCache, taps: tuple[int, ...], asked: Tensor
    ) -> Outputs:
        with row_invariant(self._stage.device) if self.deterministic else nullcontext():
            stage, attend = self._stage, attention_over(self.attention, placed)
            token_ids, positions, slots = (x.long() for x in (tokens, placed.positions, placed.slots))
            x = stage.embed_tokens(token_ids, positions)
            x, tapped = stage.run_layers(x, stage.pass_over(positions, slots, attend, cache), taps)
            normed, logits = stage.finish(x, asked)
        tapped |= last_taps(self.config, taps, x, normed)
        return logits, *(tapped[tap] for tap in taps)
