"""The rule check: the production rule, enumerated over all random choices, on the model's own laws.

The laws of target and draft are cut to their most probable tokens and renormalised, to be small enough to enumerate.
The law of what the rule emits must equal the target's up to float rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.engine.score import logits_of
from paceline.evaluation.audit.verdict import Check
from paceline.models.base import CausalLM
from paceline.sampling import ROOT, Law, TokenTree, Verifier, Warper
from paceline.sampling.enumeration import EnumeratedRandomness, law_of
from paceline.types import SamplingParams

TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False, slots=True)
class Case:
    """Laws at one position of a text and after each of its likely next tokens.

    Attributes:
        target, draft: path of at most one token to the law after it.
    """

    target: dict[tuple[int, ...], Law]
    draft: dict[tuple[int, ...], Law]


def case_of(model: CausalLM, draft: CausalLM | None, token_ids: Sequence[int], params: SamplingParams) -> Case:
    """The case after a text; without a draft model, the draft's law is the target's at twice the temperature."""
    hotter = SamplingParams(temperature=2 * params.temperature)
    ours = _law_after(model, token_ids, params)
    theirs = _law_after(draft or model, token_ids, params if draft else hotter)
    kept = np.array(sorted({*ours.top(3)[0], *theirs.top(2)[0]}))
    target: dict[tuple[int, ...], Law] = {(): _cut(ours, kept)}
    drafted: dict[tuple[int, ...], Law] = {(): _cut(theirs, kept)}
    for token in kept.tolist():
        longer = [*token_ids, token]
        law, their_law = (
            _law_after(model, longer, params),
            _law_after(draft or model, longer, params if draft else hotter),
        )
        few = np.array(sorted({*law.top(2)[0], *their_law.top(2)[0]}))
        target[token,], drafted[token,] = _cut(law, few), _cut(their_law, few)
    return Case(target, drafted)


def worst_difference(case: Case, rule: Verifier, is_drawn: bool) -> float:
    """Largest difference between emitted and target probability of any text of two tokens, by enumeration.

    Args:
        is_drawn: the draft is drawn from its laws; else its most probable tokens are proposed.
    """
    emitted = law_of(lambda randomness: _emit(case, rule, is_drawn, randomness))
    expected = {
        (int(first), int(second)): float(p) * float(p2)
        for first, p in zip(case.target[()].tokens, case.target[()].probs, strict=True)
        for second, p2 in zip(case.target[int(first),].tokens, case.target[int(first),].probs, strict=True)
    }
    return max(abs(expected.get(text, 0.0) - emitted.get(text, 0.0)) for text in expected.keys() | emitted.keys())


def rule_check(cases: Sequence[Case], rules: dict[str, Verifier]) -> Check:
    """Whether every rule is exact on every case, with drawn and with deterministic drafts."""
    worst = {
        f"{name}, {'drawn' if is_drawn else 'chosen'} draft": max(
            worst_difference(case, rule, is_drawn) for case in cases
        )
        for name, rule in rules.items()
        for is_drawn in (True, False)
    }
    name, names = max(worst, key=lambda each: worst[each]), f"rules: {', '.join(rules)}"
    evidence = {"cases": len(cases), "largest_difference": worst}
    if worst[name] > TOLERANCE:
        says = f"{name}: a text is emitted with a probability that is wrong by {worst[name]:.2g}"
        return Check("rule", "LOSSY", says, evidence)
    says = f"at {len(cases)} places of your texts, over all random choices, the model's probabilities result ({names})"
    return Check("rule", "PROVED", says, evidence)


def _emit(case: Case, rule: Verifier, is_drawn: bool, randomness: EnumeratedRandomness) -> tuple[int, int]:
    """The first two emitted tokens, with drafts up to the second token in each round."""
    text: tuple[int, ...] = ()
    while len(text) < 2:
        tree = _draft(case, text, is_drawn, randomness)

        def target(node: int, said: tuple[int, ...] = text, tree: TokenTree = tree) -> Law:
            path = (*said, *(tree.tokens_to(node) if node != ROOT else ()))
            return case.target.get(path, case.target[()])

        verdict = rule(tree, target, randomness, len(text))
        text = (*text, *(tree.tokens[node] for node in verdict.path), verdict.token)
    return text[0], text[1]


def _draft(case: Case, text: tuple[int, ...], is_drawn: bool, randomness: EnumeratedRandomness) -> TokenTree:
    tokens: list[int] = []
    laws: list[Law] = []
    for position in range(len(text), 2):
        law = case.draft[(*text, *tokens)]
        laws.append(law)
        tokens.append(randomness.draw(law, position, "draft", len(tokens)) if is_drawn else law.mode)
    return TokenTree.chain(tokens, laws if is_drawn else None)


def _law_after(model: CausalLM, token_ids: Sequence[int], params: SamplingParams) -> Law:
    [logits] = logits_of(model, [*token_ids, 0], len(token_ids))
    return Warper(params).law(logits)


def _cut(law: Law, tokens: np.ndarray) -> Law:
    """`law` on `tokens` only, renormalised."""
    probs = np.asarray(law.on(tokens), np.float64)
    kept = probs > 0
    if not kept.any():
        return Law(tokens, np.full(len(tokens), 1 / len(tokens)))
    return Law(tokens[kept], probs[kept] / probs[kept].sum())
