"""The cuda executor over two ranks: the logits, texts and drafts of one rank; every rank knows the same tokens."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.errors import InvalidParameter  # noqa: E402
from paceline.models.base import NORMED, RunsOnRanks  # noqa: E402
from paceline.models.chains import Draws  # noqa: E402
from paceline.models.cuda_executor import CudaModel  # noqa: E402
from paceline.models.cuda_executor.peers import LinkedPeers  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.models.torch_executor import TorchModel  # noqa: E402
from paceline.models.torch_executor.parallel import Layout  # noqa: E402
from paceline.models.torch_executor.shard import Shard  # noqa: E402
from tests.fakes import RandomCheckpoint, small_config  # noqa: E402
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


@pytest.fixture(scope="module")
def followers():
    """Rank 1 of `ranks`, and of models that were made later."""
    with kept_followers() as kept:
        yield kept


@pytest.fixture(scope="module")
def ranks(followers):
    with on_threads(CHECKPOINT, deterministic=True) as model:
        yield model


@pytest.fixture(scope="module")
def one():
    return alone(deterministic=True)


def test_passes_of_every_kind_are_one_ranks(ranks):
    reference, taps = TorchModel(CHECKPOINT), (0, 2, NORMED)
    for rows in (
        mixed_batch(30),
        build_rows([Part(range(22), 0, tokens_of(340), logits="last")]),
        build_rows([Part((0,), 0, tokens_of(5), logits="none")]),
    ):
        ours, theirs = (model.forward(rows, model.new_cache(22), taps) for model in (ranks, reference))
        close(ours.logits, theirs.logits)
        assert ours.taps.keys() == theirs.taps.keys()
        for tap, states in theirs.taps.items():
            close(ours.taps[tap], states)
    rows = mixed_batch(30)
    views = [model.with_layers([0, 2]) for model in (ranks, reference)]
    close(*(view.forward(rows, view.new_cache(16)).logits for view in views))
    close(*(model.page_attention(rows, model.new_cache(16)) for model in (ranks, reference)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["by_position", "sdpa"])
def test_other_families_and_attentions(family, attention):
    checkpoint, rows = RandomCheckpoint(FAMILIES[family]), mixed_batch(30)
    reference = TorchModel(checkpoint)
    with on_threads(checkpoint, attention) as model:
        ours, theirs = (each.forward(rows, each.new_cache(16), (1,)) for each in (model, reference))
    close(ours.logits, theirs.logits)
    close(ours.taps[1], theirs.taps[1])


@pytest.mark.parametrize("tied", [True, False])
def test_blocks_of_a_file_are_shared_too(tied, tmp_path):
    plain = RandomCheckpoint(small_config(head_dim=32, intermediate_size=256, tie_word_embeddings=tied))
    checkpoint, rows = in_blocks(plain, tmp_path), mixed_batch(30)
    reference = alone(checkpoint)
    with on_threads(checkpoint, dtype="gguf") as model:
        assert model.num_bytes < reference.num_bytes / 3
        close(*(each.forward(rows, each.new_cache(16)).logits for each in (model, reference)))


def test_blocks_that_would_be_cut_are_refused(tmp_path):
    checkpoint = in_blocks(RandomCheckpoint(small_config()), tmp_path)
    with pytest.raises(InvalidParameter, match=r"blocks of 32 weights cannot be cut at 0 and 48"):
        on_threads(checkpoint, dtype="gguf")


def test_a_row_has_the_same_bits_alone_in_a_batch_and_in_a_tree(ranks):
    pages, tokens = (3, 0, 5, 1), tokens_of(40)
    tree = tokens[: len(TREE)]

    def logits(*parts):
        cache = ranks.new_cache(12)
        ranks.forward(build_rows([Part(pages, 0, tokens, logits="none")]), cache)
        ranks.forward(build_rows([Part((7, 2, 9), 0, tokens[:33], logits="none")]), cache)
        return ranks.forward(build_rows(parts), cache).logits

    root = logits(Part(pages, 40, tree[:1]))[0]
    drafted = logits(Part((7, 2, 9), 33, tokens_of(14, 3)), Part(pages, 40, tree, TREE))
    assert np.array_equal(root, drafted[14])
    chain = logits(Part(pages, 40, [tree[0], tree[1], tree[3]]))
    assert np.array_equal(chain, drafted[[14, 15, 17]])
    crowd = logits(*[Part((7, 2, 9), 33, tokens_of(14, 3))] * 3, Part(pages, 40, tree[:1]))
    assert np.array_equal(root, crowd[-1])


def test_a_cache_is_one_with_parts_on_all_ranks(ranks, one, followers):
    rows, slots = build_rows([Part((1, 0), 0, tokens_of(20))]), [*range(16, 32), *range(4)]
    caches = ranks.new_cache(3), one.new_cache(3)
    assert caches[0].num_bytes == caches[1].num_bytes and caches[0].num_pages == 3
    for model, cache in zip((ranks, one), caches, strict=True):
        model.forward(rows, cache)
        cache.move([16, 17], [40, 41])
        cache.write([42], np.full((3, 1, 2, 16), 7, np.float32), np.full((3, 1, 2, 16), 8, np.float32))
    for ours, theirs in zip(*(cache.read([*slots, 40, 41, 42]) for cache in caches), strict=True):
        close(ours, theirs)
    held = followers[0]._caches
    number = caches[0].number
    assert number in held
    caches[0].graphs.clear()
    del caches, cache
    ranks.new_cache(1)
    assert number not in held


def test_caches_of_others_and_rows_outside_are_refused_and_the_model_goes_on(ranks, one):
    rows = build_rows([Part((0,), 0, [131])])
    with pytest.raises(InvalidParameter, match="token_ids"):
        ranks.forward(rows, ranks.new_cache(1))
    with pytest.raises(InvalidParameter, match="token_ids"):
        ranks.page_attention(rows, ranks.new_cache(1))
    with pytest.raises(InvalidParameter, match="cache"):
        ranks.forward(rows, one.new_cache(1))
    assert isinstance(ranks, RunsOnRanks)
    chip = ranks.chip(2)
    assert chip.bandwidth > 0 and chip.hop_seconds > 0
    assert ranks.can_share(small_config()) and not ranks.can_share(small_config(qk_norm=True, qk_norm_over="all"))
    assert ranks.description == "CudaModel on cpu, by_position, deterministic, 2 ranks"


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("spec", [None, {"method": "ngram", "num_draft_tokens": 3, "policy": "fixed"}], ids=str)
def test_texts_are_one_ranks_and_passes_are_launched_ahead(ranks, one, followers, eager, spec, law):
    before = ranks._foreseen.num_taken
    assert texts(ranks, spec, **LAWS[law]) == texts(one, None, **LAWS[law])
    assert ranks._foreseen.num_taken > before + 8 or (spec and law == "seeded")
    assert law == "seeded" or torch.equal(ranks.picks[:3], followers[0]._model.picks[:3])


def test_texts_with_a_head_and_with_draft_models_beside_the_ranks(ranks, one, eager):
    check_texts_with_drafters(ranks, one, 1, on_threads)


@pytest.mark.parametrize("attention", ["by_position", "sdpa"])
def test_chains_are_one_ranks(attention, one):
    rows = build_rows([Part((2, 0), 0, tokens_of(7), logits="last"), Part((1,), 0, tokens_of(4, 1), logits="last")])
    options = [np.array(values) for values in ((0.0, 0.8), (0.0, 0.01), (0, 40), (1.0, 0.9))]
    draws = Draws(*options, np.arange(6, dtype=np.uint64).reshape(2, 3) * np.uint64(1 << 61))
    with on_threads(CHECKPOINT, attention) as model:
        for how in (None, draws):
            drafts = [each.draft_chains(rows, each.new_cache(3), 3, how) for each in (model, one)]
            assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()
            np.testing.assert_allclose(drafts[0].top_probs, drafts[1].top_probs, rtol=1e-3)


@pytest.mark.parametrize("is_even", [True, False], ids=["alike", "in one order"])
def test_nothing_is_made_on_another_device(is_even):
    class Mirrored:
        """Links to a rank that has the same."""

        def total(self, part):
            return part.mul_(2)

        def gathered(self, part):
            return torch.stack([part, part])

    checkpoint = RandomCheckpoint(small_config(num_hidden_layers=1))
    peers = LinkedPeers(Shard(checkpoint.config, range(1), 0, 2), Mirrored(), not is_even)
    rows, chained = mixed_batch(30), build_rows([Part((2, 0), 0, tokens_of(7), logits="last")])
    with far_device():
        found = []
        for device in (FAR.type, "cpu"):
            model = CudaModel(checkpoint, device, "float32", attention="by_position", peers=peers)
            found.append(model.forward(rows, model.new_cache(16), (1,)).logits)
            found.append(model.draft_chains(chained, model.new_cache(3), 2).tokens)
    close(found[0], found[2])
    assert found[1].tolist() == found[3].tolist()


def test_uneven_shares_of_the_vocabulary_are_put_together():
    """131 tokens are 65 and 66."""
    layout = Layout.of(CHECKPOINT.config, 2)
    whole = torch.arange(262.0).view(2, 131)
    shares = [whole[:, layout.shard(rank).vocabulary] for rank in (0, 1)]

    class Others:
        def total(self, part):
            raise NotImplementedError

        def gathered(self, part):
            wide = [torch.nn.functional.pad(share, (0, 66 - share.shape[1])) for share in shares]
            return torch.stack(wide)

    for rank, share in enumerate(shares):
        out = torch.empty(2, 131)
        peers = LinkedPeers(layout.shard(rank), Others(), False)
        assert peers.whole(share, 2, out) is out and torch.equal(out, whole)
    assert peers.whole(shares[1][:0], 0, None).shape == (0, 131)
