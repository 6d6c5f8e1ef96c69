"""Drafters that learn from the target's picks: the text of the whole loop follows the target's law.

Such a drafter has a memory, so a turn cannot be enumerated apart from those before it: every replay runs the whole text
with a fresh drafter.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from paceline.drafters.base import DraftContext
from paceline.drafters.self_drafts.jacobi import Jacobi
from paceline.drafters.self_drafts.lookahead import Lookahead
from paceline.sampling import resolve
from paceline.types import SamplingParams
from tests.fakes import tell

from .enumerator import law_of
from .tables import PROMPT, table_model, target_law
from .wrong_rules import recover_from_the_target

SERVICES = SimpleNamespace(target=SimpleNamespace(source=SimpleNamespace(eos_token_ids=())))
TARGET = table_model(4, 3, zeros=False)
NUM_TOKENS = 4
DRAFTERS = {
    "lookahead": (lambda: Lookahead(SERVICES, 2, 2, 1), 3),  # type: ignore[arg-type]
    "lookahead, deeper": (lambda: Lookahead(SERVICES, 1, 3, 2), 4),  # type: ignore[arg-type]
    "jacobi": (Jacobi, 3),
}


def decoded(make, budget, rule, randomness):
    """The first tokens of one replay, and how many of them were drafted."""
    drafter, text = make(), PROMPT
    while len(text) < len(PROMPT) + NUM_TOKENS:
        room = min(budget, len(PROMPT) + NUM_TOKENS - len(text) - 1)
        params, prefix = SamplingParams(), list(text)
        [tree] = drafter.propose(
            [DraftContext("r", prefix, len(PROMPT), max(1, room), params, lambda *_: None, randomness)]
        )
        tree = tree.prune(room)
        laws = {node: TARGET((*text, *tree.tokens_to(node))) for node in range(-1, len(tree))}
        verdict = rule(tree, laws.__getitem__, randomness, len(text))
        if len(tree):
            tell(drafter, "r", [], picks=np.array([law.mode for law in laws.values()]))
        text += (*(tree.tokens[node] for node in verdict.path), verdict.token)
        tell(drafter, "r", text, False)
    return text[len(PROMPT) :]


@pytest.mark.parametrize("rule", ["p/q", "coupled"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_law_of_the_text_is_the_targets(name, rule):
    make, budget = DRAFTERS[name]
    law = law_of(lambda randomness: decoded(make, budget, resolve(rule), randomness))
    assert law == target_law(TARGET, NUM_TOKENS)


def test_a_wrong_rule_is_noticed():
    law = law_of(lambda randomness: decoded(Jacobi, 3, recover_from_the_target, randomness))
    assert law != target_law(TARGET, NUM_TOKENS)
