"""Tiny models over rationals, drafters for them, and the law of the text that a whole decode loop emits."""

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache

import numpy as np

from paceline.sampling import ROOT, Law, Randomness, TokenTree, Verdict
from paceline.sampling.tree import Draw

from .enumerator import law_of

Prefix = tuple[int, ...]
Model = Callable[[Prefix], Law]
Drafter = Callable[[Prefix, Randomness, int], TokenTree]
TextLaw = dict[Prefix, Fraction]

PROMPT: Prefix = (0, 1)


def law(*weights: int | str | Fraction) -> Law:
    """The law proportional to `weights`, over token ids 0, 1, ..."""
    exact = np.array([Fraction(weight) for weight in weights], dtype=object)
    return Law.from_dense(exact / exact.sum())


def table_model(seed: int, vocab_size: int, *, order: int = 2, zeros: bool = True) -> Model:
    """A Markov model whose tables are drawn from `seed`; some tokens are impossible when `zeros`."""

    @cache
    def row(context: Prefix) -> Law:
        rng = random.Random(f"{seed} {context}")
        weights = [rng.randint(0 if zeros else 1, 5) for _ in range(vocab_size)]
        weights[rng.randrange(vocab_size)] += 1
        return law(*weights)

    return lambda prefix: row(prefix[-order:])


def no_draft(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
    """Plain decoding."""
    return TokenTree()


def drawn(model: Model, shape: Sequence[int], draw: Draw = "iid") -> Drafter:
    """shape[d] children drawn from `model` below every node of depth d; chains are shapes of ones."""

    def draft(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        tokens: list[int] = []
        parents: list[int] = []
        laws: list[Law] = []
        rows: list[int] = []
        frontier = [(ROOT, prefix)]
        for depth, width in enumerate(shape):
            grown = []
            for parent, context in frontier:
                laws.append(model(context))
                rest = laws[-1]
                for _ in range(width if draw == "iid" else min(width, len(rest.tokens))):
                    node = len(tokens)
                    tokens.append(randomness.draw(rest, position + depth, "draft", node))
                    parents.append(parent)
                    rows.append(len(laws) - 1)
                    grown.append((node, (*context, tokens[node])))
                    if draw == "without_replacement":
                        rest = rest.without(tokens[node])
            frontier = grown
        return TokenTree(tuple(tokens), tuple(parents), draw, tuple(laws), tuple(rows))

    return draft


def ranked(model: Model, shape: Sequence[int]) -> Drafter:
    """The shape[d] most probable tokens of `model` below every node of depth d: a deterministic tree."""

    def draft(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        paths: list[Prefix] = [()]
        for width in shape:
            paths = [(*path, token) for path in paths for token in top_tokens(model((*prefix, *path)), width)]
        return TokenTree.trie(paths)

    return draft


def top_tokens(row: Law, width: int) -> list[int]:
    """The `width` most probable tokens of `row`, lower ids first on ties."""
    order = sorted(range(len(row.tokens)), key=lambda i: (-row.probs[i], i))
    return [int(row.tokens[i]) for i in order[:width]]


def step(
    prefix: Prefix, target: Model, drafter: Drafter, rule: Callable[..., Verdict], randomness: Randomness
) -> Prefix:
    """One turn of the decode loop: the tokens that it emits after `prefix`."""
    position = len(prefix)
    tree = drafter(prefix, randomness, position)
    verdict = rule(tree, lambda node: target((*prefix, *tree.tokens_to(node))), randomness, position)
    return (*(tree.tokens[node] for node in verdict.path), verdict.token)


def decoded_law(
    target: Model, drafter: Drafter, rule: Callable[..., Verdict], num_tokens: int, prompt: Prefix = PROMPT
) -> TextLaw:
    """The law of the first `num_tokens` tokens that the decode loop emits after `prompt`."""

    @cache
    def turn(prefix: Prefix) -> TextLaw:
        return law_of(lambda randomness: step(prefix, target, drafter, rule, randomness))

    def text(prefix: Prefix, wanted: int) -> TextLaw:
        total: TextLaw = {}
        for tokens, chance in turn(prefix).items():
            head = tokens[:wanted]
            tails = {(): Fraction(1)} if len(head) == wanted else text(prefix + head, wanted - len(head))
            for tail, tail_chance in tails.items():
                total[head + tail] = total.get(head + tail, Fraction(0)) + chance * tail_chance
        return total

    return text(prompt, num_tokens)


def target_law(target: Model, num_tokens: int, prompt: Prefix = PROMPT) -> TextLaw:
    """The law that the target gives to the first `num_tokens` tokens after `prompt`, by the chain rule."""
    texts: TextLaw = {(): Fraction(1)}
    for _ in range(num_tokens):
        texts = {
            (*text, int(token)): chance * prob
            for text, chance in texts.items()
            for token, prob in _items(target((*prompt, *text)))
        }
    return texts


def verdicts(
    tree: Callable[[Randomness], TokenTree], target: Model, rule: Callable[..., Verdict]
) -> dict[tuple[Prefix, int], Fraction]:
    """The law of (accepted tokens, next token) of one verification after the empty prefix."""

    def run(randomness: Randomness) -> tuple[Prefix, int]:
        drafted = tree(randomness)
        verdict = rule(drafted, lambda node: target(drafted.tokens_to(node)), randomness, 0)
        return tuple(drafted.tokens[node] for node in verdict.path), verdict.token

    return law_of(run)


def accepted_share(outcomes: dict[tuple[Prefix, int], Fraction]) -> Fraction:
    """The chance that at least one drafted token was accepted."""
    return sum((chance for (path, _), chance in outcomes.items() if path), Fraction(0))


def mean_accepted(outcomes: dict[tuple[Prefix, int], Fraction]) -> Fraction:
    """The expected number of accepted drafted tokens."""
    return sum((len(path) * chance for (path, _), chance in outcomes.items()), Fraction(0))


def first_token(outcomes: dict[tuple[Prefix, int], Fraction], vocab_size: int) -> tuple[Fraction, ...]:
    """The law of the first token emitted, as a dense row."""
    row = [Fraction(0)] * vocab_size
    for (path, token), chance in outcomes.items():
        row[(*path, token)[0]] += chance
    return tuple(row)


def _items(row: Law) -> list[tuple[int, Fraction]]:
    return list(zip(row.tokens.tolist(), row.probs.tolist(), strict=True))
