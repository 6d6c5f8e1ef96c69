"""Operations per byte: by hand, against SARATHI's cost ratios, and that saturation is where the ridge is met."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.theory.intensity import (
    A6000,
    LLAMA_13B,
    Part,
    Work,
    intensity_chart,
    intensity_table,
    is_compute_bound,
    ridge,
    saturating_chunk,
    saturating_decodes,
    work,
)
from paceline.theory.long_context import Machine, Shape

SMALL = Shape(hidden_size=2, num_layers=3, queries_per_key=2, window=None)
"""264 bytes of weights, 12 bytes per token of keys and values, 24 operations per row and key."""
HALF: Any = 0.5


def test_a_pass_by_hand():
    """A chunk of 3 after 2 tokens attends to 3 + 4 + 5 keys, a decode after 6 to 7."""
    assert (SMALL.weight_bytes, SMALL.cache_bytes_per_token) == (264, 12)
    parts = [Part(3, 2), Part(1, 6)]
    assert work(SMALL, parts) == Work(4 * 264 + (12 + 7) * 24, 264 + (5 + 7) * 12)
    assert work(SMALL, [*parts, Part(0, 99)]) == work(SMALL, parts), "no row reads nothing"
    assert work(SMALL, parts).intensity == pytest.approx(1512 / 408)
    assert work(SMALL, parts).seconds(Machine(408.0, 3024.0)) == 1
    assert work(SMALL, parts).seconds(Machine(816.0, 756.0)) == 2


def test_a_window_bounds_what_a_row_attends_to_and_what_is_read():
    cut = Shape(2, 3, 2, window=2)
    assert work(cut, [Part(3, 2), Part(1, 6)]) == Work(4 * 264 + (6 + 2) * 24, 264 + (5 + 3) * 12)


@pytest.mark.parametrize("rows", [1, 7, 256])
def test_weights_alone_give_as_many_operations_per_byte_as_rows(rows):
    """Two operations with a weight of two bytes; decodes without context read next to no keys."""
    wide = Shape(8192, 2)
    assert work(wide, [Part(1)] * rows).intensity == pytest.approx(rows, rel=0.01)
    assert work(wide, [Part(rows)]).intensity == pytest.approx(rows, rel=0.01)


@pytest.mark.parametrize("queries", [1, 4, 8])
def test_a_decodes_attention_has_as_many_operations_per_byte_as_queries_share_a_key(queries):
    shape = Shape(1024, 4, queries)
    one, more = work(shape, [Part(1, 10_000)]), work(shape, [Part(1, 20_000)])
    assert (more.operations - one.operations) / (more.bytes_read - one.bytes_read) == queries


@pytest.mark.parametrize(("batch", "published"), [(1, 200), (2, 100), (18, 16.7)])
def test_a_decodes_cost_over_a_prompt_tokens_is_sarathis(batch, published):
    """LLaMA-13B on an A6000 at 1K tokens: 200, 100 and 16.7 times a prompt token at batches of 1, 2 and 18."""
    prompt = work(LLAMA_13B, [Part(1024)]).seconds(A6000) / 1024
    decode = work(LLAMA_13B, [Part(1, 1023)] * batch).seconds(A6000) / batch
    assert decode / prompt == pytest.approx(published, rel=0.06)


def test_the_published_operations_per_byte_of_an_a6000_are_below_what_its_own_table_needs():
    """53 operations per byte are 41e12 a second; table 2 reads 1024 prompt tokens in 234.8 ms, at 112e12."""
    done = work(LLAMA_13B, [Part(1024)]).operations / 0.2348
    assert done == pytest.approx(112e12, rel=0.01)
    assert 53 * A6000.bytes_per_second < done < A6000.operations_per_second
    assert ridge(A6000) == pytest.approx(201.6, abs=0.05)
    assert ridge(Machine(2.0e12, 312e12)) == pytest.approx(156), "of an A100 it is the data sheet's"


def test_decodes_beside_a_chunk_are_computed_where_decodes_alone_wait_for_memory():
    """The chunk's pass is compute-bound, four decodes in it add their arithmetic only: SARATHI, figure 4."""
    chunk, decodes = Part(512), [Part(1, 1024)] * 4
    alone = work(LLAMA_13B, [chunk]).seconds(A6000)
    added = work(LLAMA_13B, [chunk, *decodes]).seconds(A6000) - alone
    assert is_compute_bound(LLAMA_13B, A6000, [chunk, *decodes])
    assert not is_compute_bound(LLAMA_13B, A6000, decodes)
    assert work(LLAMA_13B, decodes).seconds(A6000) / added > 50


def test_where_a_pass_saturates():
    assert saturating_chunk(LLAMA_13B, A6000) == 203
    assert saturating_chunk(LLAMA_13B, A6000, 1024, [Part(1, 1024)] * 17) == 296
    assert saturating_decodes(LLAMA_13B, A6000, 100) == 592
    assert saturating_decodes(LLAMA_13B, A6000, 1024) is None
    assert saturating_chunk(SMALL, Machine(1.0, 1e12)) is None
    assert saturating_chunk(SMALL, Machine(100.0, 1.0), 0, [Part(1, 5)]) == 0


@given(st.sampled_from([1, 2, 4, 8]), st.integers(0, 60), st.integers(1, 160))
def test_saturation_is_the_first_number_that_meets_the_ridge(queries, context, quarters):
    """Sizes are powers of two, so that no product is rounded; a quotient is, so the ridge is compared crosswise."""
    shape, machine = Shape(4, 2, queries), Machine(64.0, 16.0 * quarters)

    def is_bound(count: int) -> bool:
        done = work(shape, [Part(1, context)] * count)
        return 4 * done.operations >= quarters * done.bytes_read

    found = saturating_decodes(shape, machine, context)
    if found is None or found >= 600:
        assert not is_bound(599)
    else:
        assert is_bound(found) and (found == 1 or not is_bound(found - 1))
    chunk = saturating_chunk(shape, machine, context)
    assert chunk is not None
    assert is_compute_bound(shape, machine, [Part(chunk, context)])
    assert chunk == 1 or not is_compute_bound(shape, machine, [Part(chunk - 1, context)])


@given(st.integers(1, 64), st.integers(0, 200), st.integers(1, 64))
def test_more_rows_of_one_request_are_more_operations_per_byte(rows, context, more):
    few, many = (work(SMALL, [Part(count, context)]).intensity for count in (rows, rows + more))
    assert few < many


def test_table_and_chart_show_the_three_kinds_of_passes():
    table = intensity_table(SMALL, [1, 4], chunk=8, context=16)
    decodes = [Part(1, 16)] * 4
    assert table.rows[1] == (
        4, *(work(SMALL, parts).intensity for parts in ([Part(4)], decodes, [Part(8), *decodes])),
    )  # fmt: skip
    chart = intensity_chart(table, Machine(10.0, 70.0))
    assert [series.label for series in chart.series] == [*table.columns[1:], "ridge of the machine"]
    assert list(chart.series[0].y) == [row[1] for row in table.rows]
    assert list(chart.series[-1].y) == [7, 7]


@pytest.mark.parametrize(
    ("parts", "field"), [([], "rows"), ([Part(0, 3)], "rows"), ([Part(-1)], "rows"), ([Part(1, -1)], "context"),
                         ([Part(HALF)], "rows")],
)  # fmt: skip
def test_bad_passes_are_refused_by_name(parts, field):
    with pytest.raises(InvalidParameter) as caught:
        work(SMALL, parts)
    assert caught.value.field == field
