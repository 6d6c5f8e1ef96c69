"""The drafter `spire`: exact laws over rationals, and drafts that do not depend on what was drafted before."""

import numpy as np
import pytest

from paceline.drafters.runners.drawn_chains import DrawnChains
from paceline.drafters.self_drafts.spire import SpireRunner
from paceline.sampling import verify, verify_block, verify_sample_and_match
from tests.exact.table_causal_lm import context
from tests.exact.tables import Prefix, decoded_law, table_model, target_law
from tests.exact.test_tree_drafters import OverFractions
from tests.exact.wrong_rules import recover_from_the_target

TARGET, DRAFT = table_model(1, 3), table_model(2, 3)


class TableDraft:
    """Knows the whole text by its memory, a dict of tokens by place; refuses rows out of order."""

    slack = 4

    def __init__(self) -> None:
        self.num_read = self.num_steps = self.num_released = 0

    def new_memory(self) -> dict[int, int]:
        return {}

    def score_with(self, model) -> None:
        raise AssertionError("no part of the vocabulary was asked for")

    def release(self, memory: dict[int, int]) -> None:
        self.num_released += 1

    def read(self, memory: dict[int, int], tokens) -> None:
        memory.clear()
        memory.update(enumerate(tokens))
        self.num_read += 1

    def step(self, memories, tokens, positions) -> np.ndarray:
        self.num_steps += 1
        logits = np.empty((len(tokens), 1), dtype=object)
        for row, memory, token, place in zip(logits, memories, tokens, positions, strict=True):
            memory[place] = token
            row[0] = DRAFT(tuple(memory[i] for i in range(place + 1)))
        return logits


def spire(draft: TableDraft) -> DrawnChains:
    return DrawnChains("spire", SpireRunner(draft))


def draft(prefix: Prefix, randomness, position: int):
    [tree] = spire(TableDraft()).propose([context(prefix, 3, randomness)])
    assert len(tree) == 3
    return tree


@pytest.mark.parametrize("rule", [verify, verify_block, verify_sample_and_match])
def test_text_has_the_targets_law(rule):
    assert decoded_law(TARGET, draft, rule, 2) == target_law(TARGET, 2)


def test_a_wrong_rule_is_noticed():
    assert decoded_law(TARGET, draft, recover_from_the_target, 2) != target_law(TARGET, 2)


def test_a_drafter_with_a_history_drafts_as_a_fresh_one():
    """Accepted, refused and partly accepted drafts, steps without a draft, another text, and much at once."""
    text = tuple(OverFractions(5).draw(TARGET((0, 1)), i, "target") for i in range(60))
    table = TableDraft()
    old, at = spire(table), 3
    for step, (gain, asks) in enumerate([(1, 1), (3, 1), (2, 0), (4, 1), (12, 1), (1, 1), (9, 0)] * 2):
        if asks:
            trees = [one.propose([context(text[:at], 3, OverFractions(step))])[0] for one in (old, spire(TableDraft()))]
            assert trees[0].tokens == trees[1].tokens
            assert [trees[0].draft_law(node) for node in range(3)] == [trees[1].draft_law(node) for node in range(3)]
        at += gain
    assert 0 < table.num_read < 6
    other = (2, *text[1:at])
    trees = [one.propose([context(other, 3, OverFractions(1))])[0] for one in (old, spire(TableDraft()))]
    assert trees[0].tokens == trees[1].tokens
    old.release("r")
    assert not old.runner._texts and table.num_released == 1


def test_longer_drafts_than_can_be_taken_back_are_not_made():
    [tree] = spire(TableDraft()).propose([context((0, 1), 5, OverFractions(0))])
    assert len(tree) == 0
