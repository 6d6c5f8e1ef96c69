"""The production self-drafters over rationals: granted slots, bounded views and all, the text keeps its law.

The target's cache holds the committed tokens; the drafter's laws are those of another table model, read from the slots
it attends to, so a wrong slot or a page too few would show as a wrong law.
"""

from types import SimpleNamespace

import pytest

from paceline.drafters.self_drafts.self_draft import SelfDraft
from paceline.drafters.self_drafts.sparse_cache import SinksAndWindow
from paceline.models.base import PAGE_SIZE
from paceline.sampling import Randomness, TokenTree, verify, verify_block

from .table_causal_lm import TableLM, context
from .tables import Prefix, decoded_law, table_model, target_law
from .wrong_rules import recover_from_the_target

TARGET = table_model(1, 3, zeros=False)
DRAFT = table_model(2, 3, zeros=False)
PROMPT = tuple(i % 3 for i in range(50))
"""Three pages and a bit: a budget of three pages leaves one out."""


def drafted(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
    model, pages = TableLM(DRAFT), [6, 1, 4, 3]
    cache = model.new_cache(8)
    for at, token in enumerate(prefix[:-1]):
        cache[pages[at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE] = token
    services = SimpleNamespace(cache=cache)
    drafter = SelfDraft("sparse", services, model, SinksAndWindow(budget=3, sinks=1))  # type: ignore[arg-type]
    [tree] = drafter.propose([context(prefix, 2, randomness, page_table=pages)])
    for node, law in enumerate(tree.draft_laws or ()):
        assert law is DRAFT((*prefix, *tree.tokens[:node]))  # the latest tokens are in view
    return tree


@pytest.mark.parametrize("rule", [verify, verify_block])
def test_text_has_the_targets_law(rule) -> None:
    assert decoded_law(TARGET, drafted, rule, 3, PROMPT) == target_law(TARGET, 3, PROMPT)


def test_a_wrong_rule_is_noticed() -> None:
    assert decoded_law(TARGET, drafted, recover_from_the_target, 3, PROMPT) != target_law(TARGET, 3, PROMPT)
