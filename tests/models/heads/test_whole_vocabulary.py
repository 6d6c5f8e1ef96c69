"""Heads of a reduced draft vocabulary that name every token."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.models.heads.whole_vocabulary import naming_all
from paceline.models.rows import Part, build_rows
from tests.models.heads.tiny_heads import OURS, VOCAB, random_head, random_tables


def test_named_tokens_keep_their_logits_and_others_get_the_target_s() -> None:
    torch, build = pytest.importorskip("torch"), pytest.importorskip("paceline.models.torch_executor.heads.build")
    record, tables = random_head(OURS["dspark"]), random_tables()
    assert record.draft_ids is not None and len(record.draft_ids) == 20
    found = []
    for one in (record, naming_all(record)):
        net = build.net_of(one, torch.from_numpy(tables.embedding), torch.from_numpy(tables.head))
        rows = build_rows([Part(range(1), 0, [3, 39, 39])])
        found.append((net.forward(rows, net.new_cache(1)).logits, net.bias(np.array([3, 9, 31]))))
    (logits, bias), (all_logits, all_bias) = found
    assert all_logits.shape == all_bias.shape == (3, VOCAB) and bias.any()
    np.testing.assert_allclose(all_logits[:, record.draft_ids], logits, rtol=1e-5)
    np.testing.assert_array_equal(all_bias[:, record.draft_ids], bias)
    others = np.setdiff1d(np.arange(VOCAB), record.draft_ids)
    assert all_logits[:, others].all() and not all_bias[:, others].any()


def test_a_head_that_names_all_is_left_as_it_is() -> None:
    record = random_head(OURS["dflash"])
    assert naming_all(record) is record


def test_an_output_head_of_its_own_has_no_further_rows() -> None:
    with pytest.raises(InvalidParameter, match="20 of 40"):
        naming_all(random_head(replace(OURS["dspark"], owns_head=True)))
