"""`CudaModel`: the torch executor's layers with paged attention and one CUDA graph per bucket of rows.

A pass packs its rows on the host, moves them with one copy, and replays the graph of its bucket; the host waits for the
device only to fetch the logits. Machines without Triton run without graphs. Not for which
pass is launched before it is asked for (`foreseen.py`), or for packing and graphs (`passes.py`). Long, because it
implements five interfaces of `models/base.py` over one state.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.extras import install
from paceline.models.architecture.recurrence import Recurrence
from paceline.models.base import DrawnOutput, ForwardOutput, KVCache, Rows
from paceline.models.chains import ChainDraft, Draws
from paceline.models.cuda_executor.attention import AttentionName, attention_over, choose_attention
from paceline.models.cuda_executor.block_layers import put_blocks
from paceline.models.cuda_executor.fetch import Fetch, Send
from paceline.models.cuda_executor.foreseen import Follow, Foreseen, Told
from paceline.models.cuda_executor.graphs import GraphCapture, Outputs, on_device
from paceline.models.cuda_executor.invariant import row_invariant
from paceline.models.cuda_executor.laws import Wide, answers_of, peaks_of, picks_of, read_answers
from paceline.models.cuda_executor.laws.chains import Kernels, Picks, read_draft
from paceline.models.cuda_executor.paged_rows import PagedRows, levels_below
from paceline.models.cuda_executor.passes import Advance, CudaKVCache, Launched, Passes
from paceline.models.cuda_executor.peers import Peers
from paceline.models.cuda_executor.staging import BUCKETS, LARGEST
from paceline.models.cuda_executor.verdicts import Draft, Pending
from paceline.models.dtypes import activations_beside_blocks
from paceline.models.files.checkpoint import Checkpoint
from paceline.models.torch_executor.device_states import DeviceStates
from paceline.models.torch_executor.layers import Pass
from paceline.models.torch_executor.model import (
    Stage,
    Taps,
    TorchModel,
    check_rows,
    fetched,
    usable_device,
)
from paceline.sampling.answered import Question

if TYPE_CHECKING:
    from paceline.models.cuda_executor.recurrent import RecurrentCache


class CudaModel(TorchModel):
    """A `CausalLM` for one GPU, or one rank's part of one for several; CPU tensors in tests.

    Args:
        checkpoint: the weights.
        device: ``cuda``, ``cuda:0`` and so on, or ``cpu``.
        dtype: ``bfloat16``, ``float16``, ``float32``, ``gguf`` for a file's own blocks, widened to the activations'
            format in registers, or ``auto``, see `choose_dtype`.
        attention: ``triton``, ``sdpa``, the reference ``by_position``, or ``auto``.
        deterministic: use matrix products with a fixed order of summation, so that a row's logits are bitwise the same
            in every batch; slower. Otherwise the order, and so the last digits of logits, depend on the number of rows.
        capture: creates graphs; by default `graphs_of` the device.
        peers: the other ranks; this model is then one rank's shard, and all ranks must run the same passes. By default
            there is one rank.

    Attributes:
        layers: numbers of the layers that a pass runs, on all ranks together.
        picks: [LARGEST] int32 on the device, the picks of the latest pass by logit row.
        chain_kernels: for the tokens of chains; None without Triton.

    Raises:
        InvalidParameter: the device cannot be used, or an option is unknown.
        UnsupportedModel: recurrent layers without Triton.
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
        peers: Peers | None = None,
    ) -> None:
        self.is_row_invariant, self.peers = deterministic, peers or Peers()
        self.layers = tuple(range(checkpoint.config.num_hidden_layers))
        super().__init__(checkpoint, device, dtype)
        on, config = self._stage.device, checkpoint.config
        self.attention: AttentionName = choose_attention(attention, on)
        if deterministic and self.attention == "sdpa":
            problem = "needs attention that sums in one order, which PyTorch's does not"
            raise InvalidParameter("deterministic", problem, f"run {install('cuda')} on a machine with a GPU")
        self._fused, self._race, self.chain_kernels = None, None, None
        if self.attention == "triton":
            from paceline.models.cuda_executor.fused import Fused
            from paceline.models.cuda_executor.kernels.ends import likeliest
            from paceline.models.cuda_executor.kernels.races import draw, race

            self._fused, self._race = Fused(self._stage.stack, deterministic, self.peers), race
            self.chain_kernels = Kernels(partial(likeliest, begins_early=self.peers.shard is None), draw)
        self._is_recurrent = config.recurrence is not None
        if self._is_recurrent:
            self._check_recurrence()
        asks_host = config.experts is not None if self._fused is None else self._fused.asks_host
        self.passes = Passes(self._stage.shard.narrowed(), config.vocab_size, on, self.attention, capture, asks_host)
        self.records_passes, self.recorded_sizes = self.passes.records, BUCKETS
        self._fetch, self._send = Fetch(on), Send(on)
        self.picks = torch.zeros(LARGEST, dtype=torch.int32, device=on)
        self._foreseen = self._foresee()
        self.num_lookahead_slots = int(self.records_passes)

    head_builder = "paceline.models.cuda_executor.heads.build"

    def _load(self, checkpoint: Checkpoint, device: str) -> Stage:
        peers = self.peers
        if self.dtype_choice.name != "gguf":
            return Stage(checkpoint, device, self.dtype_choice.name, peers.shard, peers.total)
        on, activations = usable_device(device), activations_beside_blocks(device)
        prepare = partial(
            put_blocks, checkpoint=checkpoint, device=on, dtype=getattr(torch, activations),
            in_one_order=self.is_row_invariant, shard=peers.shard,
        )  # fmt: skip
        return Stage(checkpoint, device, activations, peers.shard, peers.total, prepare)

    @property
    def description(self) -> str:
        """Name of this executor, its device and its options, for reports and cost profiles."""
        on = self._stage.device
        name = torch.cuda.get_device_name(on) if on.type == "cuda" else on.type
        return f"CudaModel on {name}, {self.attention}{', deterministic' if self.is_row_invariant else ''}"

    def with_layers(self, layers: Sequence[int]) -> "CudaModel":
        """See `SkipsLayers`."""
        view = cast(CudaModel, super().with_layers(layers))
        view.layers = tuple(layers)
        view._foreseen = view._foresee()
        return view

    def page_attention(self, rows: Rows, cache: KVCache) -> np.ndarray:
        """See `WeighsPages`; of several ranks each returns its part of a sum over their layers, the mean of its heads.

        It uses PyTorch's attention: keys that it rewrites may differ in their last digit.

        Raises:
            UnsupportedModel: recurrent layers, whose states would not follow.
        """
        assert isinstance(cache, CudaKVCache)
        if self._is_recurrent:
            raise UnsupportedModel("page_attention: recurrent layers read all tokens; use another drafter")
        cache.changes += 1
        with on_device(self._stage.device), torch.inference_mode():
            x, sums = self._stage.weigh_pages(self._begun(rows), rows, cache)
            self.peers.after(x)
        return sums / len(self.layers)

    def _foresee(self) -> Foreseen:
        fetch = Fetch(self._stage.device)
        return Foreseen(
            self._launch_drawn, self._has_recorded, self.passes, fetch, self.config.max_position_embeddings, self.picks,
            kernels=self.attention == "triton", only_plain=self._is_recurrent,
        )  # fmt: skip

    def _has_recorded(self, rows: Rows, cache: CudaKVCache, taps: tuple[int, ...]) -> bool:
        return self.passes.has_recorded(rows, cache, self._name(taps))

    def _name(self, taps: tuple[int, ...]) -> tuple:
        """Key of the graphs of passes of these layers with these taps."""
        return taps, self.layers

    def new_cache(self, num_pages: int) -> CudaKVCache:
        """An empty cache of `num_pages` pages."""
        if self._is_recurrent:
            from paceline.models.cuda_executor.recurrent import RecurrentCache

            return RecurrentCache(*self._form_of_cache(num_pages))
        return CudaKVCache(*self._form_of_cache(num_pages))

    def _form_of_cache(self, num_pages: int) -> tuple:
        """The arguments of `CudaKVCache`."""
        stage, by_kernels = self._stage, self.attention == "triton"
        return stage.shard.narrowed(), num_pages, stage.device, stage.dtype, by_kernels

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: KVCache, taps: tuple[int, ...] = ()) -> ForwardOutput:
        """One pass over `rows` (see `CausalLM.forward`); waits for the device to fetch its logits and taps.

        Raises:
            InvalidParameter: a cache of another executor, or a row or tap outside the model.
        """
        launched = self.launch(rows, cache, taps)
        return fetched(launched.logits, self._by_tap(launched.states, taps))

    @torch.inference_mode()
    def begin_drawn(
        self, rows: Rows, cache: KVCache, taps: tuple[int, ...], questions: Sequence[Question | None]
    ) -> Callable[[], DrawnOutput]:
        """See `DrawsLaws`: questions are copied to the device before the pass, and only answers and rows come back."""
        if isinstance(cache, CudaKVCache) and self._may_foresee(rows, cache, questions):
            answered = self._foreseen.begin(rows, cache, taps, cast(Sequence[Question], questions))
            return lambda: self._drawn(*answered(), taps, questions)
        self._foreseen.pass_over()
        wide = self._wide(questions)
        wanted = [row for row, each in enumerate(questions) if each is None]
        index = self._send(np.array(wanted)) if wanted else None
        logits, states, peaks = self.launch(rows, cache, taps)
        asked = [] if index is None else [logits[index]]
        kept = None if states is None else DeviceStates(states.clone())
        fetched = self._fetch(self._answers(logits, peaks, wide), *asked)

        def finish() -> DrawnOutput:
            table, *rows_asked = fetched.wait()
            return self._drawn(table, kept, taps, questions, *rows_asked)

        return finish

    def _may_foresee(self, rows: Rows, cache: CudaKVCache, questions: Sequence[Question | None]) -> bool:
        """Whether the pass after one over `rows` may be launched before it is asked for."""
        return self._foreseen.knows(rows, cache, questions) and self.passes.fits(rows)

    def _drawn(
        self, table: np.ndarray, states: DeviceStates | None, taps: tuple[int, ...],
        questions: Sequence[Question | None], logits: np.ndarray | None = None,
    ) -> DrawnOutput:  # fmt: skip
        """The output of a pass with this table of answers; no `logits` where all rows had questions."""
        given = np.empty((0, self.config.vocab_size), np.float32) if logits is None else logits
        return DrawnOutput(read_answers(table, questions), given, self._held(states, taps))

    def _by_tap(self, states: Tensor | None, taps: tuple[int, ...]) -> Taps:
        """The states of each tap, [M, hidden]."""
        if states is None:
            return {}
        return dict(zip(taps, states.split(self.config.hidden_size, dim=1), strict=True))

    def _held(self, states: DeviceStates | None, taps: tuple[int, ...]) -> dict[int, DeviceStates]:
        """`_by_tap` of states that stay on the device."""
        if states is None:
            return {}
        return dict(zip(taps, states.by_column(self.config.hidden_size), strict=True))

    def _wide(self, questions: Sequence[Question | None]) -> Wide | None:
        self._send.begin()
        return Wide.of(questions, self.config.vocab_size, self._send)

    def _answers(self, logits: Tensor, peaks: Tensor, wide: Wide | None) -> Tensor:
        """The table of `answers_of`, whose kernels are launched on this model's device."""
        with on_device(self._stage.device):
            return answers_of(logits, peaks, wide, self._race)

    def _launch_drawn(
        self, rows: Rows, cache: CudaKVCache, taps: tuple[int, ...], questions: Sequence[Question], *,
        is_foreseen: bool = False, advance: Advance | None = None, keys: Tensor | None = None,
    ) -> tuple[Tensor, DeviceStates | None]:  # fmt: skip
        """Start a pass; the table of answers on the device, whose picks the next pass can begin with (`launch`), and
        the taps' states. Noise `keys` [K] on the device replace those of the questions."""
        wide = self._wide(questions)
        if wide is not None and keys is not None:
            wide = wide.with_keys(keys)
        launched = self.launch(rows, cache, taps, is_foreseen=is_foreseen, advance=advance)
        table = self._answers(launched.logits, launched.peaks, wide)
        if wide is not None:
            self.picks[: len(table)] = picks_of(table).int()
        return table, None if launched.states is None else DeviceStates(launched.states.clone())

    @torch.inference_mode()
    def draft_chains(self, rows: Rows, cache: KVCache, num_tokens: int, draws: Draws | None = None) -> ChainDraft:
        """See `DraftsChains`: one graph for the pass over `rows` and the chains; waits for the tokens.

        Raises:
            InvalidParameter: see `forward`.
        """
        own, picks = self._checked(rows, cache, ()), Picks.of(draws, self._send, kernels=self.chain_kernels)
        if self.attention == "sdpa" or self._is_recurrent:
            return self._chain_apart(rows, cache, self.launch(rows, cache).logits, num_tokens, picks)

        def begin(placed: PagedRows, asked: Tensor, _: Sequence[Tensor]) -> Outputs:
            return self._through(placed.token_ids, placed, own, (), asked, None)

        def below(placed: PagedRows, tokens: Tensor, _: Sequence[Tensor]) -> Outputs:
            return self._through(tokens, placed, own, (), torch.arange(len(tokens), device=tokens.device), None)

        return read_draft(self._fetch(self.passes.chain(rows, own, (self.layers,), begin, num_tokens, below, picks)))

    @torch.inference_mode()
    def verify_early(self, drafts: Tensor, draws: Draws | None) -> Told | None:
        """See `Foreseen.verify`."""
        return self._foreseen.verify(drafts, draws)

    @torch.inference_mode()
    def verify_after(self, pending: Pending, draft: Draft, draws: Draws | None) -> Told | None:
        """See `Foreseen.verify_after`."""
        return self._foreseen.verify_after(pending, draft, draws)

    def expect_drafts(self, follow: Follow | None = None) -> bool:
        """`verify_early` will be called, and `follow`, a method, for each pass of chains, if this returns True; see
        `Foreseen.expect`."""
        with on_device(self._stage.device):
            return self._foreseen.expect(follow)

    def _chain_apart(self, rows: Rows, cache: KVCache, logits: Tensor, num_tokens: int, picks: Picks) -> ChainDraft:
        """The chains after `logits`, whose masks or steps are made on the host: a pass per level, each waited for."""
        tokens, probs = [], []
        for level, below in enumerate([*levels_below(rows, num_tokens - 1), None]):
            with on_device(self._stage.device):
                token, prob = picks.at(level, logits)
            tokens.append(token.cpu().numpy().astype(np.int32))
            probs.append(prob.cpu().numpy())
            if below is not None:
                logits = self.launch(replace(below, token_ids=tokens[-1]), cache).logits
        return ChainDraft(np.stack(tokens, axis=1), np.stack(probs, axis=1))

    def launch(
        self, rows: Rows, cache: KVCache, taps: tuple[int, ...] = (), *, is_foreseen: bool = False,
        advance: Advance | None = None,
    ) -> Launched:  # fmt: skip
        """Start a pass without waiting for the device; its outputs are valid until the next pass. Raises as `forward`.

        Args:
            is_foreseen: whether token -1 - i stands for the pick of logit row i of the previous pass, by default its
                argmax.
            advance: see `Passes.run`; `rows` are then the template of `Lookups.advancing`.
        """
        cache = self._checked(None if is_foreseen else rows, cache, taps)
        if self.attention == "sdpa":
            with on_device(self._stage.device):  # blocks of a file have a kernel of ours
                found, tapped = self._scored(rows, cache, taps)
                logits = self.peers.whole(found, len(rows.logit_rows), None)
                return Launched(logits, self.peers.states(tapped, taps, len(rows.token_ids)), peaks_of(logits))
        num_asked = len(rows.logit_rows)
        if self._is_recurrent:
            self._plan(rows, cache)
        logits, peaks, *states = self.passes.run(
            rows,
            cache,
            self._name(taps),
            lambda placed, asked, _: self._compute(placed, cache, taps, asked),
            advance=advance,
            once=is_foreseen and advance is None,  # recording would execute it on its own picks
        )
        tapped = states[0][: len(rows.token_ids)] if states else None
        return Launched(logits[:num_asked], tapped, peaks[:num_asked])

    def _check_recurrence(self) -> None:
        """Refuse recurrent layers that the kernels do not cover."""
        if self.attention != "triton":
            problem = f"{self.config.model_type} has recurrent layers, whose kernels are Triton's"
            raise UnsupportedModel(f"attention: {problem}; run {install('cuda')}, or use executor='torch'")
        from paceline.models.cuda_executor.recurrent import check_taps

        check_taps(cast(Recurrence, self.config.recurrence))

    def _plan(self, rows: Rows, cache: CudaKVCache) -> None:
        """Put the steps of recurrent layers in place, on the device."""
        with on_device(self._stage.device):
            cast("RecurrentCache", cache).plan(rows, whole=len(self.layers) == self.config.num_hidden_layers)

    def _checked(self, rows: Rows | None, cache: KVCache, taps: tuple[int, ...]) -> CudaKVCache:
        """The cache, if it is one of this executor and all `rows` and taps are in the model."""
        if not isinstance(cache, CudaKVCache):
            raise InvalidParameter("cache", f"is a {type(cache).__name__}", "make it with this model's new_cache")
        if rows is not None:
            check_rows(self.config, rows, taps)
        return cache

    def _compute(self, placed: PagedRows, cache: CudaKVCache, taps: tuple[int, ...], asked: int) -> Outputs:
        """The logits of the first `asked` logit rows, their peaks, and the states of the taps, if there are any."""
        out = self.passes.place_of_logits(asked)
        if cache.lookups is not None:
            cache.lookups.remember(placed.token_ids, self.picks, placed.slots)
        logits, *states = self._through(placed.token_ids, placed, cache, taps, placed.logit_rows[:asked], out)
        return logits, self._peaks_of(logits), *states

    def _peaks_of(self, logits: Tensor) -> Tensor:
        """`peaks_of` the logits, which are also kept on the device for the next pass."""
        if len(logits) > LARGEST:
            return peaks_of(logits)
        if self._fused is not None:
            return self._fused.peaks_of(logits, self.picks)
        peaks = peaks_of(logits)
        self.picks[: len(logits)] = peaks[:, 0].int()
        return peaks

    def _embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """[M, hidden] of tokens [M]; see `launch` for negative ones."""
        if self._fused is not None and self._fused.embeds:
            return self._fused.embedded(tokens, self.picks)
        x = self._stage.embed_tokens(self._known(tokens), positions)
        return x if self._fused is None else self._fused.divided(x)

    def _known(self, tokens: Tensor) -> Tensor:
        """Token ids [M], where negative ones stand for picks; see `launch`."""
        return torch.where(tokens < 0, self.picks[(-1 - tokens).clamp_min(0)], tokens)

    def _through(
        self, tokens: Tensor, placed: PagedRows, cache: CudaKVCache, taps: tuple[int, ...], asked: Tensor,
        out: Tensor | None,
    ) -> Outputs:  # fmt: skip
        """Logits [K, vocab] of the rows `asked` [K], in `out` where possible, and with taps their states."""
        with row_invariant(self._stage.device) if self.is_row_invariant else nullcontext():
            stage, attend = self._stage, attention_over(self.attention, placed)
            x, where = self.peers.before(len(tokens)), (placed.positions, placed.slots, attend, cache)
            x = self._embedded(tokens, placed.positions) if x is None else x
            if self._fused is None:
                x = x.to(stage.dtype)
                ran = stage.run_layers(x, self._with_inputs(stage.pass_over(*where), tokens, x), taps)
                found, tapped = stage.finished(*ran, taps, asked)
            else:
                step = self._with_inputs(stage.pass_over(*where, self._fused.row_angles), tokens, x)
                own = out if stage.shard.tensor_size == 1 else None
                found, tapped = self._fused.run(stage, x, step, taps, asked, own)
            logits = self.peers.whole(found, len(asked), out)
        states = self.peers.states(tapped, taps, len(tokens))
        return (logits,) if states is None else (logits, states)

    def _with_inputs(self, step: Pass, tokens: Tensor, x: Tensor) -> Pass:
        """See `Stage.with_inputs`; tokens as of `launch`."""
        return step if self.stack.layer_inputs is None else self._stage.with_inputs(step, self._known(tokens), x)

    def _begun(self, rows: Rows) -> Tensor:
        x = self.peers.before(len(rows.token_ids))
        if x is None:
            x = self._stage.embed(rows) if self._fused is None else self._fused.divided(self._stage.embed(rows))
        return x.to(self._stage.dtype)
