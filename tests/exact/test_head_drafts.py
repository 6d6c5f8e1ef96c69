"""The production head drafters over rationals: the four shapes of nets, chains and trees, with caches and states.

Every law a tree carries is the head's own for that path, and the text keeps the target's law under every exact rule.
"""

import pytest

from paceline.drafters.heads.head import HeadDrafter, make_runner
from paceline.drafters.heads.hidden_states import HiddenStates
from paceline.drafters.trees.options import tree_shape
from paceline.models.base import pages_for
from paceline.models.rows import Part, build_rows
from paceline.sampling import Randomness, TokenTree, verify, verify_block, verify_sample_and_match
from paceline.speculation import RequestOutcome

from .table_causal_lm import NUM_PAGES, context
from .table_nets import TAP, AutoregressiveTable, BlockTable, HalfTable, StepTable, TableTarget
from .tables import Prefix, decoded_law, table_model, target_law
from .test_tree_drafters import OverFractions
from .wrong_rules import recover_from_the_target

TARGET = table_model(1, 3)
HEAD = table_model(2, 3)
PROMPT: Prefix = (0, 1, 2)
"""Long enough for a block of two rows to go on from."""
NETS = {"autoregressive": AutoregressiveTable, "half": HalfTable, "block": BlockTable, "stepwise": StepTable}
SHAPES = {
    "chain": (3, {}),
    "static": (4, {"tree": "static", "expansion": (2, 1)}),
    "dynamic": (4, {"tree": "dynamic", "topk": 2, "depth": 2}),
    "iid": (3, {"tree": "sampled", "expansion": (2, 1), "replacement": True}),
    "distinct": (3, {"tree": "sampled", "expansion": (2, 1)}),
    "blocks": (6, {"tree": "blocks", "topk": 2, "depth": 2, "block_tokens": 2}),
}
RULES = {"p/q": verify, "block": verify_block, "sample and match": verify_sample_and_match}
CASES = [(shape, "p/q") for shape in SHAPES] + [
    ("chain", "block"),
    ("chain", "sample and match"),
    ("iid", "sample and match"),
]


def head(kind: str, **options) -> HeadDrafter:
    """A fresh head drafter."""
    net = NETS[kind](HEAD)
    states = HiddenStates((TAP,), TableTarget(), None)  # type: ignore[arg-type]
    runner = make_runner(net, states, NUM_PAGES, 3)
    return HeadDrafter(kind, runner, net.record, tree_shape(**options))  # type: ignore[arg-type]


def told(drafter: HeadDrafter, request_id: str, tokens: Prefix, first: int, last: int) -> None:
    """Let the drafter hear that the tokens at `first` to `last` - 1 were computed; one more is committed."""
    target = TableTarget()
    part = Part(range(pages_for(last)), first, tokens[first:last], logits="none")
    taps = target.forward(build_rows([part]), None, (TAP,)).taps
    drafter.observe(RequestOutcome(request_id, tokens[: last + 1], taps=taps, first_tapped=first))


def drafted_by(kind: str, budget: int, **options):
    """The tree of a fresh head after any prefix, told of it as the engine does."""

    def draft(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        drafter = head(kind, **options)
        told(drafter, "r", prefix, 0, len(prefix) - 1)
        pages = list(range(pages_for(len(prefix) + budget)))
        [tree] = drafter.propose([context(prefix, budget, randomness, page_table=pages)])
        assert len(tree) <= budget
        return tree

    return draft


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize(("shape", "rule"), CASES)
def test_text_has_the_targets_law(kind: str, shape: str, rule: str) -> None:
    budget, options = SHAPES[shape]
    found = decoded_law(TARGET, drafted_by(kind, budget, **options), RULES[rule], 2, PROMPT)
    assert found == target_law(TARGET, 2, PROMPT)


@pytest.mark.parametrize("kind", NETS)
def test_a_wrong_rule_is_noticed(kind: str) -> None:
    assert decoded_law(TARGET, drafted_by(kind, 2), recover_from_the_target, 2, PROMPT) != target_law(TARGET, 2, PROMPT)


@pytest.mark.parametrize("kind", NETS)
def test_a_head_with_a_history_drafts_as_a_fresh_one(kind: str) -> None:
    """Accepted, refused and partly accepted drafts, steps without a draft, and states that went missing."""
    text: Prefix = tuple(OverFractions(5).draw(TARGET((0, 1)), i, "target") for i in range(40))
    old, at, first = head(kind), 3, 0
    for step, (gain, asks, hears) in enumerate([(1, 1, 1), (3, 1, 1), (2, 0, 1), (4, 1, 0), (1, 1, 1), (3, 1, 1)] * 2):
        if hears or kind == "stepwise":
            told(old, "r", text, first, at - 1)
        if asks:
            made = [
                d.propose([context(text[:at], 3, OverFractions(step), page_table=range(4))])[0]
                for d in (old, fresh(kind, text, at))
            ]
            assert made[0].tokens == made[1].tokens and len(made[0]) == 3
            assert [made[0].draft_law(node) for node in range(3)] == [made[1].draft_law(node) for node in range(3)]
        first, at = at - 1, at + gain


def fresh(kind: str, text: Prefix, at: int) -> HeadDrafter:
    """A head that was told of everything at once."""
    drafter = head(kind)
    told(drafter, "r", text, 0, at - 1)
    return drafter


@pytest.mark.parametrize("kind", ["autoregressive", "half", "block"])
def test_states_that_nobody_told_are_computed_by_the_target(kind: str) -> None:
    drafter = head(kind)
    target = TableTarget()
    drafter.runner.states._target = target  # type: ignore[assignment]
    [tree] = drafter.propose([context((0, 1, 2, 0, 1), 2, OverFractions(0), page_table=range(2))])
    assert len(tree) == 2 and target.num_rows == 4
    told(drafter, "r", (0, 1, 2, 0, 1, 2, 2), 4, 6)
    [tree] = drafter.propose([context((0, 1, 2, 0, 1, 2, 2), 2, OverFractions(0), page_table=range(2))])
    assert len(tree) == 2 and target.num_rows == 4


def test_a_stepwise_head_without_a_state_proposes_nothing() -> None:
    drafter = head("stepwise")
    [tree] = drafter.propose([context((0, 1, 2), 2, OverFractions(0), page_table=range(1))])
    assert len(tree) == 0
    told(drafter, "r", (0, 1, 2), 0, 2)
    drafter.release("r")
    [tree] = drafter.propose([context((0, 1, 2), 2, OverFractions(0), page_table=range(1))])
    assert len(tree) == 0
