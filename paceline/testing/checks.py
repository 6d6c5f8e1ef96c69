"""One check per requirement of the protocol in `drafters/base.py`; its error says what to do.

A check takes a function that makes new drafters and raises `NotConforming`. Not for running all checks
(`conformance.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paceline.drafters.base import BaseDrafter, DraftContext, Drafter
from paceline.sampling import CounterRandomness, TokenTree, resolve, verify
from paceline.sampling.enumeration import EnumeratedRandomness, law_of
from paceline.speculation import DrafterTraits, RequestOutcome
from paceline.testing.table_model import TableModel, plain_law, run

Make = Callable[[], Drafter]

A, B, C, D = "request a", "request b", "request c", "request d"
TEXTS: dict[str, list[int]] = {
    A: [0, 1, 2, 0, 1, 2, 0, 1],
    B: [2, 2, 2, 2, 2],
    C: [0],
    D: [1, 0, 2, 1, 1, 0, 2, 0, 0, 1, 2, 1, 0, 2],
}
"""Texts of requests with repetition and of several lengths, down to a single token."""

SAMPLED = TableModel()
GREEDY = TableModel(vocab_size=7, order=1, seed=3, greedy=True)
_TOLERANCE = 1e-9


class NotConforming(AssertionError):
    """A drafter violates a requirement of the protocol."""


def check_shape(make: Make) -> None:
    """`propose` returns one `TokenTree` per context; the drafter has a name and traits."""
    drafter = make()
    demand(isinstance(getattr(drafter, "name", None), str), "a drafter has a name (a string)")
    demand(isinstance(getattr(drafter, "traits", None), DrafterTraits), "a drafter has traits (DrafterTraits)")
    demand(list(drafter.propose([])) == [], "propose([]) returns an empty list")
    for names in ([A], [D, B, C], list(TEXTS)):
        trees = propose(make(), names)
        demand(len(trees) == len(names), f"propose returns one tree per context: {len(trees)} for {len(names)}")
        wrong = next((tree for tree in trees if not isinstance(tree, TokenTree)), None)
        demand(wrong is None, f"propose returns TokenTrees, not {type(wrong).__name__}")


def check_budget(make: Make) -> None:
    """No tree has more nodes than its context's budget, and every token is a natural number."""
    for budget in (1, 2, 5):
        for name, tree in zip(TEXTS, propose(make(), list(TEXTS), budget), strict=True):
            demand(len(tree) <= budget, f"{len(tree)} nodes proposed for text {name!r} with a budget of {budget}")
            demand(all(token >= 0 for token in tree.tokens), f"a negative token id is proposed for text {name!r}")


def check_max_depth(make: Make) -> None:
    """No tree has more levels than its context's `max_depth`; only for drafters that branch."""
    if not make().traits.branches:
        return
    for most in (1, 2):
        for name, tree in zip(TEXTS, propose(make(), list(TEXTS), 5, max_depth=most), strict=True):
            depth = tree.depth
            demand(depth <= most, f"{depth} levels proposed for text {name!r} with a max_depth of {most}")


def check_memory(make: Make) -> None:
    """Without the trait `remembers`, proposals do not depend on earlier requests."""
    drafter = make()
    if drafter.traits.remembers:
        return
    run(SAMPLED, drafter, verify, CounterRandomness(5), 20, budget=3, request_id="earlier")
    after, fresh = (shown(propose(each, list(TEXTS))) for each in (drafter, make()))
    demand(after == fresh, "a proposal depends on a request that came before; declare the trait remembers")


def check_token_ids(make: Make) -> None:
    """`token_ids` is neither changed nor kept, because the engine changes it later."""
    kept, fresh = make(), make()
    lent = {name: list(text) for name, text in TEXTS.items()}
    for drafter, texts in ((kept, lent), (fresh, TEXTS)):
        propose(drafter, list(TEXTS), texts=texts, lend=drafter is kept)
        for name, text in texts.items():
            drafter.observe(RequestOutcome(name, text if drafter is kept else list(text)))
    demand(lent == TEXTS, "token_ids is changed; copy what you need")
    for text in lent.values():
        text[:] = [1] * 40
    longer = {name: [*text, 2, 0] for name, text in TEXTS.items()}
    after = [shown(propose(drafter, list(TEXTS), texts=longer)) for drafter in (kept, fresh)]
    demand(after[0] == after[1], "a proposal follows the token_ids list of an earlier call; copy what you need")


def check_batch(make: Make) -> None:
    """The proposal for a request depends neither on the other requests of the step nor on their order."""
    together = dict(zip(TEXTS, shown(propose(make(), list(TEXTS))), strict=True))
    reversed_names = list(reversed(TEXTS))
    backwards = dict(zip(reversed_names, shown(propose(make(), reversed_names)), strict=True))
    for name in TEXTS:
        [alone] = shown(propose(make(), [name]))
        demand(together[name] == alone, f"the proposal for text {name!r} changes with the other requests of the step")
        demand(backwards[name] == alone, f"the proposal for text {name!r} changes with the order of the requests")


def check_release(make: Make) -> None:
    """A released request is forgotten: nothing is stored under its id, which may return with another text."""
    drafter = make()
    drafter.release("never seen")
    drafter.observe(RequestOutcome("never seen", [0, 1], finished=True))
    propose(drafter, list(TEXTS), texts={**TEXTS, A: [2]})
    drafter.release(A)
    held = where(drafter, A)
    demand(held is None, f"{held} still holds the request after release")
    for name in (B, C, D):
        drafter.observe(RequestOutcome(name, [*TEXTS[name], 1], num_new=1, finished=True))
        held = where(drafter, name)
        demand(held is None, f"{held} still holds the request after observe(..., finished=True)")
    back, new = shown(propose(drafter, [A]) + propose(drafter, ["request e"], texts={"request e": TEXTS[A]}))
    demand(back == new, "a request that comes back is drafted for as if its former text still counted")


def check_preemption(make: Make) -> None:
    """A request that was released and returns in the middle of its text still gets the same output."""
    text = run(GREEDY, make(), verify, CounterRandomness(0), 24)
    drafter = make()
    run(GREEDY, drafter, verify, CounterRandomness(0), 12)
    rest = run(GREEDY, drafter, verify, CounterRandomness(0), 12, prompt=(0, 1, *text[:12]))
    demand(rest == text[12:], "a request that comes back after a release says something else")


def check_randomness(make: Make) -> None:
    """Draws go through `context.draw_node`: purpose ``draft``, each key once, at positions after the text."""
    drafter = make()
    for name, text in TEXTS.items():
        randomness = EnumeratedRandomness()
        drafter.propose([SAMPLED.context(name, list(text), randomness, 3)])
        for position, purpose, _ in randomness.keys:
            demand(purpose == "draft", f"a drafter draws as {purpose!r}: it must not touch the target's randomness")
            demand(position >= len(text), f"a draw at position {position} of a text of {len(text)} tokens")
        demand(len(set(randomness.keys)) == len(randomness.keys), "two nodes are drawn under one number")
    first, second = (shown(propose(make(), list(TEXTS))) for _ in range(2))
    demand(first == second, "the same text and seed give two proposals: use no randomness but the context's")


def check_law(make: Make) -> None:
    """Enumerated over all random choices of the loop, the first tokens have the target's law."""
    expected = plain_law(SAMPLED, 3)
    emitted = law_of(lambda randomness: run(SAMPLED, make(), verify, randomness, 3))
    worst = max(expected.keys() | emitted.keys(), key=lambda t: abs(expected.get(t, 0.0) - emitted.get(t, 0.0)))
    ours, theirs = emitted.get(worst, 0.0), expected.get(worst, 0.0)
    demand(
        abs(ours - theirs) < _TOLERANCE,
        f"the text {worst} is said with probability {ours:.6f}, by the target with {theirs:.6f}: a draft law is not "
        "the one its token was drawn from, or tokens are kept or dropped by what they are (docs/adding-a-drafter.md)",
    )


def check_greedy(make: Make) -> None:
    """Greedy text is the plain greedy text."""
    drafted = run(GREEDY, make(), verify, CounterRandomness(0), 60, budget=5)
    demand(
        drafted == run(GREEDY, Silent(), verify, CounterRandomness(0), 60), "greedy text differs from plain greedy text"
    )


def check_coupled(make: Make) -> None:
    """Under the coupled rule, text with a seed equals plain sampling's with that seed."""
    for seed in range(8):
        texts = [
            run(SAMPLED, drafter, resolve("coupled"), CounterRandomness(seed), 20, budget=3, coupled=True)
            for drafter in (make(), Silent())
        ]
        demand(texts[0] == texts[1], f"with seed {seed} the coupled rule says another text than plain sampling")


class Silent(BaseDrafter):
    """A drafter that proposes nothing, for plain decoding."""

    name = "silent"

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        return [TokenTree()] * len(contexts)


def demand(kept: bool, promise: str) -> None:
    """Raise `NotConforming` with the message `promise` unless `kept`."""
    if not kept:
        raise NotConforming(promise)


def propose(
    drafter: Drafter,
    names: Sequence[str],
    budget: int = 3,
    texts: Mapping[str, list[int]] = TEXTS,
    lend: bool = False,
    **changes: Any,
) -> list[TokenTree]:
    """The proposals for the texts `names` in one step; with `lend`, the lists themselves are passed, not copies."""
    contexts = [
        SAMPLED.context(
            name, texts[name] if lend else list(texts[name]), CounterRandomness(len(texts[name])), budget, **changes
        )
        for name in names
    ]
    return drafter.propose(contexts)


def shown(trees: Sequence[TokenTree]) -> list[tuple[Any, ...]]:
    """Trees as tuples that can be compared."""
    return [
        (t.tokens, t.parents, t.draw, t.draft_rows, [(q.tokens.tolist(), q.probs.tolist()) for q in t.draft_laws or ()])
        for t in trees
    ]


def where(thing: Any, name: str, path: str = "", seen: set[int] | None = None) -> str | None:
    """The path from `thing` through attributes and items to a string equal to `name`; None if there is none."""
    seen = set() if seen is None else seen
    path = path or type(thing).__name__
    if isinstance(thing, str):
        return path if thing == name else None
    if id(thing) in seen or isinstance(thing, bytes | int | float | np.ndarray | type) or thing is None:
        return None
    seen.add(id(thing))
    for part, inner in _parts(thing):
        found = where(inner, name, f"{path}{part}", seen)
        if found:
            return found
    return None


def _parts(thing: Any) -> list[tuple[str, Any]]:
    """(notation, value) of every attribute, item and key of `thing`."""
    if isinstance(thing, Mapping):
        return [*((" (a key)", key) for key in thing), *((f"[{key!r}]", value) for key, value in thing.items())]
    if isinstance(thing, list | tuple | set | frozenset) or type(thing).__name__ == "deque":
        return [("[...]", inner) for inner in thing]
    names = [*getattr(thing, "__dict__", ()), *(n for c in type(thing).__mro__ for n in getattr(c, "__slots__", ()))]
    return [(f".{n}", getattr(thing, n)) for n in names if hasattr(thing, n)]
