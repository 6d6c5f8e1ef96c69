"""The largest batch: the published formula, its paged form, and that one never promises more than the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.theory.capacity import kv_bytes_per_token, max_batch, max_paged_batch, num_pages

LLAMA_13B_TOKEN = 819_200
"""Bytes of keys and values per token: 40 layers, 40 heads of 128, two bytes each."""


def test_bytes_per_token():
    assert kv_bytes_per_token(40, 40, 128, 2) == LLAMA_13B_TOKEN


@pytest.mark.parametrize(("tokens", "batch"), [(1024, 26), (2048, 13), (3072, 8)])
def test_the_formula_on_a_48_gigabyte_device_with_26_of_weights(tokens, batch):
    assert max_batch(48e9, 26e9, tokens, LLAMA_13B_TOKEN) == batch


def test_nothing_fits_beside_too_much():
    assert max_batch(10e9, 26e9, 1024, LLAMA_13B_TOKEN) == num_pages(1, 2, 16) == 0


@given(st.integers(0, 10**6), st.integers(1, 64), st.integers(1, 3000), st.integers(1, 9))
def test_pages_never_promise_more_than_bytes(memory, page_size, tokens, token_bytes):
    paged = max_paged_batch(num_pages(memory, 0, page_size * token_bytes), page_size, tokens)
    assert paged <= max_batch(memory, 0, tokens, token_bytes)
    if page_size == 1:
        assert paged == max_batch(memory, 0, tokens, token_bytes)


def test_a_shared_prompt_is_held_once():
    assert max_paged_batch(100, 16, 160) == 10
    assert max_paged_batch(100, 16, 160, shared_tokens=128) == (100 - 8) // 2
    assert max_paged_batch(100, 16, 160, shared_tokens=160) == (100 - 9) // 1


def test_zero_is_refused():
    with pytest.raises(InvalidParameter, match="page_size"):
        max_paged_batch(1, 0, 1)
