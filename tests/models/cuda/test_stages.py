"""The cuda executor over pipeline stages: the logits of one rank bit for bit, and its texts, drafts and caches."""

import os
import signal

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.errors import InvalidParameter, WorkerDied  # noqa: E402
from paceline.models.base import NORMED  # noqa: E402
from paceline.models.chains import Draws  # noqa: E402
from paceline.models.cuda_executor import CudaModel  # noqa: E402
from paceline.models.cuda_executor.parallel import launch_model  # noqa: E402
from paceline.models.cuda_executor.stages import StagedPeers  # noqa: E402
from paceline.models.loaded import LoadedModel  # noqa: E402
from paceline.models.resolve import ModelSource  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.models.torch_executor import TorchModel  # noqa: E402
from paceline.models.torch_executor.parallel import Layout  # noqa: E402
from tests.engine.test_lanes import llm_of  # noqa: E402
from tests.fakes import ByteTokenizer, RandomCheckpoint, mixture_config, small_config  # noqa: E402
from tests.far_device import FAR, far_device  # noqa: E402

from .batches import TREE, mixed_batch, tokens_of  # noqa: E402
from .ranks import (  # noqa: E402
    CHECKPOINT,
    FAMILIES,
    LAWS,
    alone,
    check_texts_with_drafters,
    close,
    in_blocks,
    kept_followers,
    texts,
)
from .threads import on_threads  # noqa: E402

TAPS = (NORMED, 0, 2, 1, 3)
"""Of all stages, in no order."""
BATCHES = {
    "mixed": mixed_batch(30),
    "long": build_rows([Part(range(22), 0, tokens_of(340), logits="last")]),
    "no logits": build_rows([Part((0,), 0, tokens_of(5), logits="none")]),
}


def staged(checkpoint=CHECKPOINT, *given, stages=2, tensor=1, **options):
    return on_threads(checkpoint, *given, degrees=(tensor, stages), **options)


@pytest.fixture(scope="module")
def followers():
    """Rank 1 of `two`, and of models that were made later."""
    with kept_followers() as kept:
        yield kept


@pytest.fixture(scope="module")
def two(followers):
    with staged() as model:
        yield model


@pytest.fixture(scope="module")
def one(two):
    """Made after `two`, which sets the number of threads."""
    return alone()


def outputs(model, rows, taps=TAPS):
    output = model.forward(rows, model.new_cache(22), taps)
    return [output.logits, *(output.taps[tap] for tap in taps)]


def differ(ours, theirs):
    assert [each.shape for each in ours] == [each.shape for each in theirs]
    return not all(map(np.array_equal, ours, theirs))


@pytest.mark.parametrize("batch", BATCHES)
def test_logits_and_states_are_bitwise_one_ranks(batch, two, one):
    rows = BATCHES[batch]
    for _ in range(2):  # as a graph is recorded, and from it
        assert not differ(outputs(two, rows), outputs(one, rows))
    assert not differ(outputs(two, rows, (2,)), outputs(one, rows, (2,)))


def test_states_that_are_rounded_on_the_way_are_noticed(one, monkeypatch):
    after = StagedPeers.after
    monkeypatch.setattr(StagedPeers, "after", lambda self, x: after(self, x.bfloat16()))
    with staged() as model:
        assert differ(outputs(model, BATCHES["mixed"]), outputs(one, BATCHES["mixed"]))


@pytest.mark.parametrize("partition", [(1, 2), (1, 1, 1)])
def test_any_partition(partition, one):
    with staged(stages=len(partition), layer_partition=partition) as model:
        assert model.ranks.layout.stages[0] == range(1)
        assert not differ(outputs(model, BATCHES["mixed"]), outputs(one, BATCHES["mixed"]))
        assert model.new_cache(3).num_bytes == one.new_cache(3).num_bytes
    with pytest.raises(InvalidParameter, match="pipeline_layer_partition"):
        staged(layer_partition=(2, 2))


def test_the_head_counts_in_the_balance_as_asked():
    checkpoint = RandomCheckpoint(small_config(num_hidden_layers=12, vocab_size=1500))
    for share, first in ((1.0, 7), (0.0, 6)):
        with staged(checkpoint, head_share=share) as model:
            assert len(model.ranks.layout.stages[0]) == first


def test_views_with_fewer_layers_record_graphs_of_their_own(two, one):
    """Two of them run the same layers of the second stage; and one stage may have nothing to run."""
    caches, rows = [model.new_cache(22) for model in (two, one)], BATCHES["mixed"]
    for layers in ((0, 2), (1, 2), (0,), (2,), (0, 1, 2)):
        ours, theirs = (
            model.with_layers(layers).forward(rows, cache).logits
            for model, cache in zip((two, one), caches, strict=True)
        )
        assert np.array_equal(ours, theirs)
    for layers in ((0, 2), (1,), (0, 1, 2)):
        shares = [
            model.with_layers(layers).page_attention(rows, cache)
            for model, cache in zip((two, one), caches, strict=True)
        ]
        np.testing.assert_allclose(*shares, rtol=1e-6)


@pytest.mark.parametrize("family", [*FAMILIES, "mixture"])
@pytest.mark.parametrize("attention", ["by_position", "sdpa"])
def test_other_families_and_attentions(family, attention):
    checkpoint = RandomCheckpoint(mixture_config() if family == "mixture" else FAMILIES[family])
    with staged(checkpoint, attention) as model:
        reference = CudaModel(checkpoint, "cpu", "float32", attention=attention)
        assert not differ(outputs(model, BATCHES["mixed"]), outputs(reference, BATCHES["mixed"]))


@pytest.mark.parametrize("tied", [True, False])
def test_blocks_of_a_file(tied, tmp_path):
    checkpoint = in_blocks(RandomCheckpoint(small_config(head_dim=32, tie_word_embeddings=tied)), tmp_path)
    with staged(checkpoint, dtype="gguf") as model:
        reference = CudaModel(checkpoint, "cpu", "gguf", attention="by_position")
        assert not differ(outputs(model, BATCHES["mixed"]), outputs(reference, BATCHES["mixed"]))


def test_a_grid_of_stages_that_share_their_layers():
    rows, reference = BATCHES["mixed"], TorchModel(CHECKPOINT)
    with staged(tensor=2, deterministic=True) as model:
        assert model.description == "CudaModel on cpu, by_position, deterministic, 2 x 2 ranks"
        cache, expected = model.new_cache(22), reference.new_cache(22)
        ours, theirs = (each.forward(rows, held, TAPS) for each, held in ((model, cache), (reference, expected)))
        close(ours.logits, theirs.logits)
        for tap in TAPS:
            close(ours.taps[tap], theirs.taps[tap])
        slots = [20, 3, 300]
        for mine, others in zip(cache.read(slots), expected.read(slots), strict=True):
            close(mine, others)
        close(model.page_attention(rows, cache), reference.page_attention(rows, expected))
        chip = model.chip(2)
        assert chip.bandwidth > 0 and chip.hop_seconds > 0 and model.tensor_parallel_size == 2
        assert model.can_share(small_config()) and not model.can_share(small_config(qk_norm=True, qk_norm_over="all"))


def test_a_cache_is_one_with_parts_in_all_stages(two, one, followers):
    rows, slots = build_rows([Part((1, 0), 0, tokens_of(20))]), [*range(16, 32), *range(4)]
    caches = two.new_cache(3), one.new_cache(3)
    assert caches[0].num_bytes == caches[1].num_bytes and caches[0].num_pages == 3
    values = np.arange(3 * 2 * 16, dtype=np.float32).reshape(3, 1, 2, 16)
    for model, cache in zip((two, one), caches, strict=True):
        model.forward(rows, cache)
        cache.move([16, 17], [40, 41])
        cache.write([42], values, -values)
    assert not differ(*(cache.read([*slots, 40, 41, 42]) for cache in caches))
    own = followers[0]._caches[caches[0].number]
    assert len(own.keys) + len(caches[0].keys) == 3
    assert np.array_equal(own.read([42])[0], values[-len(own.keys) :])


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("spec", [None, {"method": "ngram", "num_draft_tokens": 3, "policy": "fixed"}], ids=str)
def test_texts_are_one_ranks_and_passes_are_launched_ahead(two, one, followers, eager, spec, law):
    before = two._foreseen.num_taken
    assert texts(two, spec, **LAWS[law]) == texts(one, None, **LAWS[law])
    assert two._foreseen.num_taken > before + 8 or (spec and law == "seeded")
    assert law == "seeded" or torch.equal(two.picks[:3], followers[0]._model.picks[:3])


def test_rows_made_on_the_device_of_rank_0_reach_all_stages_of_a_grid(eager):
    spec = {"method": "ngram", "num_draft_tokens": 3, "policy": "fixed"}
    plain = texts(alone(deterministic=True), **LAWS["greedy"])
    with staged(stages=3, tensor=2, deterministic=True) as model:
        assert texts(model, spec, **LAWS["greedy"]) == plain
        assert model._foreseen.num_taken > 8


def test_texts_with_a_head_and_with_draft_models_beside_the_stages(two, one, eager):
    check_texts_with_drafters(two, one, 2, staged)


@pytest.mark.parametrize("attention", ["by_position", "sdpa"])
def test_chains_are_one_ranks(attention):
    rows = build_rows([Part((2, 0), 0, tokens_of(7), logits="last"), Part((1,), 0, tokens_of(4, 1), logits="last")])
    options = [np.array(values) for values in ((0.0, 0.8), (0.0, 0.01), (0, 40), (1.0, 0.9))]
    draws = Draws(*options, np.arange(6, dtype=np.uint64).reshape(2, 3) * np.uint64(1 << 61))
    with staged(CHECKPOINT, attention) as model:
        reference = CudaModel(CHECKPOINT, "cpu", "float32", attention=attention)
        for how in (None, draws):
            for layers in ((0, 1, 2), (0, 2)):
                views = [each.with_layers(layers) for each in (model, reference)]
                drafts = [view.draft_chains(rows, view.new_cache(3), 3, how) for view in views]
                assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()
                assert np.array_equal(drafts[0].top_probs, drafts[1].top_probs)


@pytest.mark.parametrize("rank", [0, 1])
def test_nothing_is_made_on_another_device(rank):
    class OneSided:
        """Links to a rank that sends the same to everybody, and gets what is on the device."""

        def __init__(self, device):
            self.rank, self.device, self.layout = rank, device, Layout.of(CHECKPOINT.config, 1, 2)
            self.shard = self.layout.shard(rank)

        def hand(self, tensor, to):
            assert tensor.device.type == self.device and to == 1 - rank

        def receive(self, shape, dtype, source):
            return torch.full(shape, 0.5, dtype=dtype, device=self.device)

        def spread(self, tensor, source):
            assert tensor.device.type == self.device and source == 1
            return tensor if rank == source else tensor.fill_(0.25)

    rows, chained = mixed_batch(30), build_rows([Part((2, 0), 0, tokens_of(7), logits="last")])
    with far_device(), torch.inference_mode():
        found = []
        for device in (FAR.type, "cpu"):
            peers = StagedPeers(OneSided(device), False)
            model = CudaModel(CHECKPOINT, device, "float32", attention="by_position", peers=peers)
            launched = model.launch(rows, model.new_cache(16), (1, 2))
            assert (launched.states is None) == (rank > 0)
            found.append([launched.logits.cpu(), *([] if rank else [launched.states.cpu()])])
            found[-1].append(model.draft_chains(chained, model.new_cache(3), 2).tokens)
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs)


def test_one_step_is_in_flight(two):
    source = ModelSource("random", CHECKPOINT, ByteTokenizer())  # type: ignore[arg-type]
    llm = llm_of(LoadedModel(source, two), pipeline_parallel_size=2)
    assert llm.engines_in_flight() == [llm.engine]


def test_kernels_over_two_processes():
    """In float16 by Triton's interpreter; hidden states, which are divided by the factor on what layers add, are not
    rounded between stages. Then a stage is killed."""
    pytest.importorskip("triton")
    checkpoint = RandomCheckpoint(small_config(num_hidden_layers=2, residual_scale=0.22))
    rows = build_rows([Part((1,), 0, tokens_of(len(TREE)), TREE)])
    how = {"dtype": "float16", "attention": "triton", "deterministic": True}
    with launch_model(checkpoint, 1, 2, device="cpu", **how, timeout=60) as model:
        reference = CudaModel(checkpoint, "cpu", **how)
        assert not differ(*(outputs(each, rows, (0, 1, NORMED)) for each in (model, reference)))
        cache, [pid] = model.new_cache(2), model.ranks.workers.pids
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="rank 1 was ended by signal 9"):
            model.forward(rows, cache)
