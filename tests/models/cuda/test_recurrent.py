"""Recurrent layers on the GPU's executor, in Triton's interpreter: the reference's logits, rows alone as together."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.runtime import interpreter  # noqa: E402

from paceline.config import EngineConfig, SpeculativeConfig  # noqa: E402
from paceline.engine.setup import build  # noqa: E402
from paceline.errors import UnsupportedModel  # noqa: E402
from paceline.models import state_book  # noqa: E402
from paceline.models.architecture.recurrence import Recurrence  # noqa: E402
from paceline.models.cuda_executor import CudaModel  # noqa: E402
from paceline.models.cuda_executor.kernels import recurrent  # noqa: E402
from paceline.models.cuda_executor.recurrent import RecurrentCache  # noqa: E402
from paceline.models.loaded import LoadedModel  # noqa: E402
from paceline.models.resolve import ModelSource  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.models.state_book import LOAD, SAVE, StateLost  # noqa: E402
from paceline.models.torch_executor import TorchModel  # noqa: E402
from paceline.types import SamplingParams  # noqa: E402
from tests.fakes import ByteTokenizer, RandomCheckpoint, mixture_config, run_to_end, small_config  # noqa: E402

from .batches import TREE, tokens_of  # noqa: E402

LAYERS = {"num_hidden_layers": 2, "head_dim": 16, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 48}
DELTAS = Recurrence("gated_delta_net", (0,), 4, 2 * 12 + 2 * 24, key_heads=1, value_heads=2, key_dim=12, value_dim=24)
TILED = Recurrence(
    "gated_delta_net", (0,), 4, 2 * 2 * 12 + 4 * 8, key_heads=2, value_heads=4, key_dim=12, value_dim=8, tiled=True
)
SPACES = Recurrence(
    "state_space", (0,), 4, 4 * 8 + 2 * 2 * 12, key_heads=2, value_heads=4, key_dim=12, value_dim=8, conv_bias=True
)
CONVOLUTIONS = Recurrence("short_convolution", (0,), kernel=3, channels=32)
CONFIGS = {
    "convolutions": small_config(**LAYERS, recurrence=CONVOLUTIONS),
    "short": small_config(**LAYERS, recurrence=Recurrence("short_convolution", (1,), kernel=2, channels=32),
                          mlp="relu2", layers_without_mlp=(1,)),
    "deltas": small_config(**LAYERS, recurrence=DELTAS, attention_gate=True),
    "tiled": small_config(**LAYERS, recurrence=TILED, attention_gate=True, qk_norm=True),
    "spaces": small_config(**LAYERS, recurrence=SPACES, residual_scale=0.4),
    "experts": mixture_config(**LAYERS, recurrence=CONVOLUTIONS),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several programs then share a head, or a convolution."""
    monkeypatch.setattr(recurrent, "_COLUMNS", 16)
    monkeypatch.setattr(recurrent, "_CHANNELS", 16)


@pytest.fixture(scope="module", params=CONFIGS)
def checkpoint(request):
    return RandomCheckpoint(CONFIGS[request.param])


def close(ours, want):
    np.testing.assert_allclose(ours, want, atol=5e-4, rtol=0)


class Both:
    """The executor and the reference, with a cache each, over the same passes."""

    def __init__(self, checkpoint, pages=8, states=16, **options):
        self.models = CudaModel(checkpoint, "cpu", "float32", attention="triton", **options), TorchModel(checkpoint)
        self.caches = [each.new_cache(pages) for each in self.models]
        for cache in self.caches:
            cache.hold(states)

    def __call__(self, *parts):
        """The executor's logits, which are the reference's."""
        rows = build_rows(list(parts))
        ours, want = (
            model.forward(rows, cache).logits.copy() for model, cache in zip(self.models, self.caches, strict=True)
        )
        close(ours, want)
        return ours


def test_chunks_drafts_and_what_follows_them(checkpoint):
    both, pages, other, text = Both(checkpoint), (3, 0, 5), (6, 2), tokens_of(40)
    assert both.models[0].passes.records
    both(Part(pages, 0, text[:9]), Part(other, 0, text[:3], logits="last"))
    both(Part(pages, 9, [*text[9:11], 99, 98]), Part(other, 3, text[3:9], logits="none"))  # 98 and 99 are refused
    both(Part(pages, 11, text[11:15], TREE[:4]), Part(other, 9, text[9:10]))
    for cache in both.caches:
        cache.move([3 * 16 + 13], [3 * 16 + 12])  # the tree's accepted branch
    for at in (13, 14):
        both(Part(pages, at, text[at : at + 1]))


@pytest.mark.parametrize("name", ["short", "deltas", "spaces"])
def test_a_row_is_the_same_alone_in_chunks_and_after_drafts(name):
    both, text = Both(RandomCheckpoint(CONFIGS[name]), deterministic=True), tokens_of(15)
    whole = both(Part((0, 1), 0, text))
    parts = [both(Part((2, 3), first, text[first:last])) for first, last in ((0, 5), (5, 6), (6, 15))]
    assert np.array_equal(np.concatenate(parts), whole)
    both(Part((4, 5), 0, text[:8], logits="last"))
    for at in (8, 10, 12):  # one token is right, the others are not
        drafted = both(Part((4, 5), at, [*text[at : at + 2], 99, 98]))
        assert np.array_equal(drafted[:2], whole[at : at + 2])


def test_some_layers_save_no_states_and_lost_states_are_told():
    both, text = Both(RandomCheckpoint(CONFIGS["deltas"]), states=4), tokens_of(12)
    both(Part((0,), 0, text[:8]))
    skips = [model.with_layers([0]) for model in both.models]
    rows = build_rows([Part((0,), 8, text[8:10])])
    close(*(view.forward(rows, cache).logits for view, cache in zip(skips, both.caches, strict=True)))
    both(Part((0,), 8, text[8:]))
    for model, cache in zip(both.models, both.caches, strict=True):
        with pytest.raises(StateLost):
            model.forward(build_rows([Part((5,), 4, [1])]), cache)


@pytest.fixture
def last_program_first(monkeypatch):
    """Programs of a launch run in any order on a GPU, in the interpreter from the first to the last."""
    kind, sizes = type(interpreter.interpreter_builder), []
    set_sizes, set_index = kind.set_grid_dim, kind.set_grid_idx

    def dimensions(self, *grid):
        sizes[:] = grid
        set_sizes(self, *grid)

    def index(self, *at):
        set_index(self, *(size - 1 - one for size, one in zip(sizes, at, strict=True)))

    monkeypatch.setattr(kind, "set_grid_dim", dimensions)
    monkeypatch.setattr(kind, "set_grid_idx", index)


@pytest.mark.parametrize("name", ["deltas", "tiled", "convolutions", "spaces"])
def test_branches_load_what_their_own_program_saved(name, last_program_first):
    """The state after a tree's root is saved, and loaded for each branch, in one pass."""
    both, text = Both(RandomCheckpoint(CONFIGS[name])), tokens_of(10)
    tree = (-1, 0, 0, 1)
    both(Part((6,), 0, text[:4], tree))  # recorded, so that the pass below is executed once
    both(Part((0,), 0, text[:5], logits="last"))
    for at in range(5, 9):
        both(Part((0,), at, [text[at]]))
    both(Part((0,), 9, [text[9], 7, 8, 9], tree))
    steps = both.caches[0].program.steps[:27].view(-1, 3)[:, 0].tolist()
    assert SAVE in steps and LOAD in steps[steps.index(SAVE) :]


def test_segments_without_rows_have_no_steps():
    Both(RandomCheckpoint(CONFIGS["short"]))(Part((3,), 0, [], logits="none"), Part((4,), 0, [7], logits="last"))


def test_chains_are_made_level_by_level():
    model = CudaModel(RandomCheckpoint(CONFIGS["short"]), "cpu", "float32", attention="triton")
    cache, text = model.new_cache(4), tokens_of(6)
    model.forward(build_rows([Part((0,), 0, text[:5], logits="last")]), cache)
    model.forward(build_rows([Part((2,), 0, [5, 6])]), cache)
    chain = model.draft_chains(build_rows([Part((0,), 5, text[5:], logits="last")]), cache, 3)
    want, token = [], text[5]
    other = model.new_cache(4)
    model.forward(build_rows([Part((0,), 0, text[:5], logits="last")]), other)
    for at in range(5, 8):
        token = int(model.forward(build_rows([Part((0,), at, [token])]), other).logits[0].argmax())
        want.append(token)
    assert chain.tokens[0].tolist() == want
    with pytest.raises(UnsupportedModel, match="page_attention"):
        model.page_attention(build_rows([Part((0,), 5, text[5:])]), cache)


def test_room_grows_and_graphs_follow(monkeypatch):
    monkeypatch.setattr(state_book, "_LEAST_INPUTS", 4)
    both, text = Both(RandomCheckpoint(CONFIGS["short"])), tokens_of(20)
    cache = both.caches[0]
    both(Part((0, 1), 0, text[:4], logits="last"))
    assert cache.graphs
    cache._make_room(3, 12)
    assert not cache.graphs
    before = cache.program
    for first in (4, 7):  # more segments and steps, then more inputs, than there is room for
        both(Part((0, 1), first, text[first : first + 3]), *(Part((5 + i,), 0, [i]) for i in range(3)))
        assert not cache.graphs or len(cache.graphs) == 1  # that of this pass
    after = cache.program
    assert len(after.starts) > len(before.starts) and len(after.steps) > len(before.steps)
    assert len(after.kept) > len(before.kept)
    for first in (10, 13):
        both(Part((0, 1), first, text[first : first + 3]), *(Part((5 + i,), 0, [i]) for i in range(3)))
        both(Part((2,), 0, text[:14]))  # more steps, and fewer segments
    assert cache.program.starts is after.starts or len(cache.program.starts) == len(after.starts)
    cache.hold(8)
    assert not cache.graphs


def test_kernels_that_are_missing_are_told():
    with pytest.raises(UnsupportedModel, match="Triton"):
        CudaModel(RandomCheckpoint(CONFIGS["deltas"]), "cpu", "float32", attention="sdpa")
    longer = small_config(**LAYERS, recurrence=Recurrence("short_convolution", (0,), kernel=5, channels=32))
    with pytest.raises(UnsupportedModel, match="5 inputs"):
        CudaModel(RandomCheckpoint(longer), "cpu", "float32", attention="triton")


DRAFTS = {
    "plain": None,
    "jacobi": {"method": "jacobi", "policy": "fixed", "num_draft_tokens": 3},
    "chain": {"method": "draft_model", "model": "other", "policy": "fixed", "num_draft_tokens": 3},
    "tree": {"method": "draft_model", "model": "other", "policy": "fixed", "options": {"tree": "dynamic", "topk": 2},
             "num_draft_tokens": 3},
    "layer_skip": {"method": "layer_skip", "policy": "fixed", "options": {"skip_layers": [0]}},
}  # fmt: skip
ASKED = {"max_tokens": 6, "ignore_eos": True}
REQUESTS = [
    ([*tokens_of(4, 1), *tokens_of(4, 1)], SamplingParams(temperature=0, **ASKED)),
    (tokens_of(5, 2), SamplingParams(temperature=0.9, top_p=0.9, seed=3, **ASKED)),
]


def texts(models, drafts, monkeypatch):
    checkpoint = RandomCheckpoint(CONFIGS["convolutions"])
    source = ModelSource("random", checkpoint, ByteTokenizer())  # type: ignore[arg-type]
    monkeypatch.setattr(build, "load", lambda *_: LoadedModel(source, models[1]))
    config = EngineConfig(profile="none", kv_cache_memory_bytes=1 << 21)
    engine = build.build_engine(LoadedModel(source, models[0]), config, SpeculativeConfig.of(drafts))
    for number, (prompt, params) in enumerate(REQUESTS):
        engine.add_request(str(number), prompt, params)
    found = run_to_end(engine)
    drafted = sum(output.stats.num_draft_tokens for output in found.values())
    assert (drafted > 0) == (drafts is not None)
    return {name: output.outputs[0].token_ids for name, output in found.items()}


@pytest.fixture(scope="module")
def wanted():
    checkpoints = RandomCheckpoint(CONFIGS["convolutions"]), RandomCheckpoint(CONFIGS["convolutions"], seed=1)
    with pytest.MonkeyPatch.context() as patch:
        return texts([TorchModel(each) for each in checkpoints], None, patch)


@pytest.mark.parametrize("drafts", DRAFTS)
def test_an_engine_says_what_the_reference_says(drafts, wanted, eager, monkeypatch):
    checkpoints = RandomCheckpoint(CONFIGS["convolutions"]), RandomCheckpoint(CONFIGS["convolutions"], seed=1)
    models = [CudaModel(each, "cpu", "float32", attention="triton", deterministic=True) for each in checkpoints]
    assert texts(models, DRAFTS[drafts], monkeypatch) == wanted
    assert models[0]._foreseen.num_taken > 0 or drafts is not None


def test_passes_launched_ahead_for_requests_that_come_and_go(eager, monkeypatch):
    """Also where a pass that is launched ahead finds no room for its inputs, or no state."""
    checkpoint, found, plan = RandomCheckpoint(CONFIGS["short"]), [], RecurrentCache.plan
    ahead = []

    def planned(cache, rows, whole):
        is_ahead = bool((rows.token_ids < 0).any())
        ahead.append(is_ahead)
        if is_ahead and sum(ahead) % 6 == 3:
            raise StateLost("as if it had been given up")
        plan(cache, rows, whole)
        if is_ahead and sum(ahead) % 2:  # as where there was no room for inputs
            cache.graphs.clear()

    monkeypatch.setattr(RecurrentCache, "plan", planned)
    models = CudaModel(checkpoint, "cpu", "float32", attention="triton", deterministic=True), TorchModel(checkpoint)
    for model in models:
        source = ModelSource("random", checkpoint, ByteTokenizer())  # type: ignore[arg-type]
        config = EngineConfig(profile="none", kv_cache_memory_bytes=1 << 20, max_num_seqs=3)
        engine, texts = build.build_engine(LoadedModel(source, model), config, None), {}
        for step in range(40):
            if step % 3 == 0 and step < 18:
                sampled = {} if step % 2 else {"temperature": 0.0}
                params = SamplingParams(**{"seed": step, "max_tokens": 3 + step % 7, "ignore_eos": True} | sampled)
                engine.add_request(str(step), tokens_of(2 + step, step), params)
            if step == 10:
                engine.abort("9")
            for output in engine.step():
                if output.finished and output.request_id != "9":
                    texts[output.request_id] = output.finished.outputs[0].token_ids
        assert not engine.has_unfinished_requests
        found.append(texts)
    assert found[0] == found[1] and len(found[0]) == 5
    assert sum(ahead) > 6 and models[0]._foreseen.num_taken > 3
