"""Keys and values in 8 bits: what is kept of them, what it costs, and what cannot be kept so."""

import numpy as np
import pytest
from numba import njit

from paceline.errors import InvalidParameter
from paceline.models.base import PAGE_SIZE, TakesKeys
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.numba_executor.kv_cache import flat, new_kv_cache, write_token
from paceline.models.rows import Part, build_rows
from tests.fakes import RandomCheckpoint, small_config

pytestmark = pytest.mark.usefixtures("own_weight_cache")
TOKENS = np.random.default_rng(7).integers(0, 131, 100).tolist()
PAGES = [3, 0, 5, 1, 7, 2, 6]


class Sizes:
    cached, kv_heads, head_dim = 2, 3, 64


@njit
def write(keys, values, start, place, head_dim, source):
    write_token(keys, values, start, place, head_dim, source, 0, head_dim)


def small_model(kept, **shape):
    config = small_config(num_hidden_layers=2, head_dim=64, num_attention_heads=6, num_key_value_heads=2, **shape)
    return NumbaModel(RandomCheckpoint(config), "float32", num_threads=2, kv_cache_dtype=kept)


def logits_after(model):
    cache = model.new_cache(8)
    return model.forward(build_rows([Part(PAGES, 0, TOKENS)]), cache).logits.copy(), cache


def test_a_token_is_kept_within_half_a_step_of_its_group():
    rng, dim = np.random.default_rng(0), Sizes.head_dim
    cache = new_kv_cache(Sizes, 4, "int8")
    size = cache.keys.shape[-1]
    for place, scale in enumerate((1.0, 1e-3, 300.0, 0.0, 1e-6)):
        source = (rng.standard_normal(2 * dim) * scale).astype(np.float32)
        source[5] *= 40  # spoils its own 32 numbers only
        write(flat(cache.keys), flat(cache.values), (2 * 3 + 2) * size, place, dim, source)  # page 1, layer 0, head 2
        keys, values = cache.read([PAGE_SIZE + place])
        kept = np.concatenate([keys[0, 0, 2], values[0, 0, 2]])
        steps = np.repeat(np.abs(source.reshape(-1, 32)).max(axis=1) / 127, 32)
        assert (np.abs(kept - source) <= steps * 0.51 + 2.0**-24 * 127).all()
        assert not keys[0, 0, :2].any() and not keys[1].any() and not values[1].any()


def test_slots_are_moved_with_their_scales():
    model = small_model("int8")
    _, cache = logits_after(model)
    sources, destinations = [48, 49, 5], [1, 127, 48]
    before = cache.read(sources)
    cache.move(sources, destinations)
    for old, new in zip(before, cache.read(destinations), strict=True):
        assert np.array_equal(old, new)


@pytest.mark.parametrize("kept", ["float32", "float16", "int8"])
def test_keys_that_are_given_are_kept_as_those_that_are_computed(kept):
    """What a pass wrote, read back and written to other slots, reads the same there, and is rounded the same."""
    _, cache = logits_after(small_model(kept))
    assert isinstance(cache, TakesKeys)
    sources, destinations = [48, 49, 5], [1, 127, 64]
    before = cache.read(sources)
    cache.write(destinations, *before)
    for old, new in zip(before, cache.read(destinations), strict=True):
        np.testing.assert_array_equal(old, new)


def test_given_numbers_are_rounded_as_a_pass_rounds_them():
    rng, dim, cache = np.random.default_rng(1), Sizes.head_dim, new_kv_cache(Sizes, 2, "int8")
    source = (rng.standard_normal((Sizes.cached, 2, Sizes.kv_heads, dim)) * 3).astype(np.float32)
    source[0, 0] = 0
    cache.write([3, 17], source, source[..., ::-1])
    size = cache.keys.shape[-1]
    other = new_kv_cache(Sizes, 2, "int8")
    for layer, number, head in np.ndindex(Sizes.cached, 2, Sizes.kv_heads):
        one, (page, place) = source[layer, number, head], divmod((3, 17)[number], PAGE_SIZE)
        start = ((page * Sizes.cached + layer) * Sizes.kv_heads + head) * size
        write(flat(other.keys), flat(other.values), start, place, dim, np.concatenate([one, one[::-1]]))
    np.testing.assert_array_equal(cache.keys, other.keys)
    np.testing.assert_array_equal(cache.values, other.values)


def test_it_takes_half_the_room_of_float16_and_says_nearly_the_same():
    (exact, wide), (half, narrow), (coarse, rounded) = (
        logits_after(small_model(kept)) for kept in ("float32", "float16", "int8")
    )
    assert rounded.num_bytes * 32 == narrow.num_bytes * 17 and narrow.num_bytes * 2 == wide.num_bytes
    slots = [page * PAGE_SIZE + place for page in PAGES[:6] for place in range(PAGE_SIZE)]
    for ours, theirs in zip(rounded.read(slots), wide.read(slots), strict=True):
        assert np.abs(ours[0] - theirs[0]).max() < np.abs(theirs[0]).max() / 127
    assert 0 < np.abs(half - exact).std() < np.abs(coarse - exact).std() < 0.02 * exact.std()


def test_what_cannot_be_kept_so_is_refused():
    with pytest.raises(InvalidParameter, match=r"kv_cache_dtype: int8 rounds 32.*48.*float16"):
        NumbaModel(RandomCheckpoint(small_config(head_dim=48)), "float32", 1, kv_cache_dtype="int8")
    with pytest.raises(InvalidParameter, match=r"kv_cache_dtype: 'int4' is unknown; use auto, float32, float16, int8"):
        small_model("int4")
