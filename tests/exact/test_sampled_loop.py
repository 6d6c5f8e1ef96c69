"""The whole loop with production randomness: the sampled text follows the target's law.

The enumeration treats every coin and draw as independent. Production keys them by position, purpose and node, and a
later turn may draw an untested node's key again; this test runs shapes that provoke it. Seeds are fixed.
"""

import numpy as np
import pytest

from paceline.sampling import CounterRandomness, Law, Randomness, TokenTree, resolve

from .tables import PROMPT, Model, Prefix, drawn, step, table_model, target_law


def as_floats(model: Model) -> Model:
    def floats(prefix: Prefix) -> Law:
        exact = model(prefix)
        return Law(exact.tokens, exact.probs.astype(float))

    return floats


EXACT_TARGET = table_model(4, 3, zeros=False)
TARGET, DRAFT = as_floats(EXACT_TARGET), as_floats(table_model(6, 3, zeros=False))


def changing_shape(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
    """A chain first, then siblings: node 1 is drawn at one position by two turns when node 0 falls."""
    return drawn(DRAFT, (1, 1) if len(prefix) % 2 == 0 else (2, 1))(prefix, randomness, position)


def chain(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
    return drawn(DRAFT, (1, 1))(prefix, randomness, position)


@pytest.mark.parametrize(
    ("rule", "draft"),
    [("p/q", changing_shape), ("block", chain), ("coupled", changing_shape), ("rejection_sampling", changing_shape)],
)
def test_sampled_texts_follow_the_targets_law(rule: str, draft) -> None:
    num_seeds, num_tokens = 2500, 3
    counts: dict[Prefix, int] = {}
    for seed in range(num_seeds):
        randomness, prefix = CounterRandomness(seed), PROMPT
        while len(prefix) < len(PROMPT) + num_tokens:
            prefix += step(prefix, TARGET, draft, resolve(rule), randomness)
        text = prefix[len(PROMPT) : len(PROMPT) + num_tokens]
        counts[text] = counts.get(text, 0) + 1
    expected = target_law(EXACT_TARGET, num_tokens)
    assert set(counts) <= set(expected)
    cells = np.array([(counts.get(text, 0), float(chance) * num_seeds) for text, chance in expected.items()])
    chi_square = ((cells[:, 0] - cells[:, 1]) ** 2 / cells[:, 1]).sum()
    assert cells[:, 1].min() > 5
    assert len(cells) == 27
    assert chi_square < 54.1  # 26 degrees of freedom, 0.1 %
