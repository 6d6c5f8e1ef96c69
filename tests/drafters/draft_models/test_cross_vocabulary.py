"""Drafting across vocabularies: the text's law by enumeration, the shared tokens, and whole engines."""

from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from paceline.drafters.base import DraftContext
from paceline.drafters.draft_models import shared_tokens
from paceline.drafters.draft_models.cross_vocabulary import CrossVocabulary
from paceline.drafters.draft_models.draft_model import DraftModel
from paceline.drafters.draft_models.shared_tokens import SharedTokens
from paceline.errors import InvalidParameter
from paceline.models.base import ForwardOutput
from paceline.sampling import CounterRandomness, Law, TokenTree, verify, verify_coupled, verify_sample_and_match
from paceline.types import SamplingParams
from tests.exact.enumerator import law_of
from tests.exact.tables import decoded_law, law, table_model, target_law
from tests.fakes import PieceTokenizer, small_config, tell

from .test_retokenize import source

TARGET = PieceTokenizer("a", "b", "c", "ab")
DRAFT = PieceTokenizer("d", "c", "a", "b", "bc")
RULES = {"p/q": verify, "sample and match": verify_sample_and_match}


class Table:
    """A model over rationals whose "logits" are weights; the next token depends on the last one."""

    config = small_config(vocab_size=DRAFT.vocab_size)
    model = staticmethod(table_model(7, DRAFT.vocab_size, order=1, zeros=False))

    def new_cache(self, num_pages):
        return None

    def forward(self, rows, cache, taps=()):
        last = [int(rows.token_ids[row]) for row in rows.logit_rows]
        return ForwardOutput(np.array([self.model((token,)).probs for token in last], dtype=object))


class FloatTable(Table):
    """The same with real logits, for `string`."""

    def forward(self, rows, cache, taps=()):
        weights = super().forward(rows, cache).logits.astype(float)
        return ForwardOutput(np.log(weights.reshape(len(rows.logit_rows), -1)))


def warp(weights: np.ndarray, path) -> Law:
    """The law proportional to what is there."""
    kept = np.array([Fraction(0) if weight == -np.inf else weight for weight in weights], dtype=object)
    return Law.from_dense(kept / kept.sum())


def context(tokens, randomness, budget=2, own_warp=warp, **changes):
    return DraftContext("r", list(tokens), 1, budget, SamplingParams(), own_warp, randomness, **changes)


@cache
def drafter(mode: str, model=Table) -> CrossVocabulary:
    return CrossVocabulary(DraftModel(model(), 64), source(TARGET), source(DRAFT), mode)  # type: ignore[arg-type]


def drafted(mode, model=Table):
    def draft(prefix, randomness, position):
        return drafter(mode, model).propose([context(prefix, randomness)])[0]

    return draft


MODES = {"intersection": drafted("intersection"), "string": drafted("string", FloatTable)}
MODEL = table_model(1, TARGET.vocab_size)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", MODES)
def test_text_has_the_targets_law(mode, rule):
    assert decoded_law(MODEL, MODES[mode], RULES[rule], 3) == target_law(MODEL, 3)


def test_large_laws_are_carried_over_as_small_ones_are(monkeypatch):
    monkeypatch.setattr(shared_tokens, "_MANY", 0)
    assert decoded_law(MODEL, MODES["intersection"], verify, 3) == target_law(MODEL, 3)


def test_a_law_that_was_not_restricted_is_caught():
    """The draft's whole law handed over for a draw from the shared part: the check tells."""

    def draft(prefix, randomness, position):
        tree = MODES["intersection"](prefix, randomness, position)
        unrestricted = law(*[1] * 4)
        return TokenTree.chain(tree.tokens, [unrestricted] * len(tree))

    assert decoded_law(MODEL, draft, verify, 2) != target_law(MODEL, 2)


def test_the_law_is_renormalised_inside_the_shared_tokens():
    def first(randomness):
        tree = MODES["intersection"]((0, 1), randomness, 2)
        return tree.tokens[0], *map(tuple, (tree.draft_law(0).tokens, tree.draft_law(0).probs))

    outcomes = law_of(first)
    weights = dict(zip(range(DRAFT.vocab_size), Table.model((DRAFT.encode("b")[0],)).probs, strict=True))
    shared = {"a": weights[2], "b": weights[3], "c": weights[1]}
    expected = {TARGET.encode(t)[0]: w / sum(shared.values()) for t, w in shared.items()}
    assert {token: chance for (token, _, _), chance in outcomes.items()} == expected
    for _, tokens, probs in outcomes:
        assert dict(zip(tokens, probs, strict=True)) == expected


def test_tokens_beyond_a_models_logits_are_not_shared():
    """Tokenizers may know more tokens than their models have logits for, and two may share one of these."""
    rows = {"target": ({"num_rows": 2}, {}, "ab"), "draft": ({}, {"num_rows": 3}, "ca")}
    for ours, theirs, shared in rows.values():
        found = shared_tokens.SharedTokens(source(TARGET, **ours), source(DRAFT, **theirs))
        assert {DRAFT.token_bytes(token).decode() for token in found.draft_ids} == set(shared)


class Chaining(FloatTable):
    """The same on a device, which drafts greedy chains over its whole vocabulary in one call."""

    def draft_chains(self, rows, cache, num_tokens):
        raise AssertionError("the vocabulary of the draft has tokens that the target lacks")


@pytest.mark.parametrize("mode", MODES)
def test_a_greedy_request_is_drafted_over_shared_tokens_on_a_device_too(mode):
    def greedy(logits, path):
        return Law.one_hot(int(np.argmax(logits)))

    asked = context(TARGET.encode("bca"), CounterRandomness(0), 3, own_warp=greedy, never_edits=True)
    asked.params = SamplingParams(temperature=0)
    [ours], [theirs] = (drafter(mode, model).propose([asked]) for model in (Chaining, FloatTable))
    assert len(ours) and ours.tokens == theirs.tokens
    assert not drafter(mode, Chaining).traits.at_once


@pytest.mark.parametrize(("mode", "model"), [("intersection", Table), ("string", FloatTable)])
def test_no_token_of_the_target_reaches_the_draft_model(mode, model):
    """Ends are translated where laws are; a guess would have to be spelled anew."""
    seen = []

    class Spy(DraftModel):
        def propose(self, contexts):
            seen.extend(contexts)
            return [TokenTree()] * len(contexts)

    spied = CrossVocabulary(Spy(model(), 64), source(TARGET), source(DRAFT), mode)
    ends = {TARGET.encode("a")[0], TARGET.vocab_size + 5}
    spied.propose([context((0, 1), CounterRandomness(0), guess=[3], end_token_ids=ends)])
    assert [list(each.guess) for each in seen] == [[]]
    assert [list(each.end_token_ids) for each in seen] == [[DRAFT.encode("a")[0]] if mode == "intersection" else []]


def test_string_drafts_the_likeliest_text_in_the_targets_tokens():
    tokens, text = [DRAFT.encode("b")[0]], ""
    for _ in range(2):
        tokens.append(int(np.argmax(Table.model((tokens[-1],)).probs)))
        text += DRAFT.token_bytes(tokens[-1]).decode()
    tree = MODES["string"]((0, 1), CounterRandomness(0), 2)
    spelled = "".join(TARGET.token_bytes(token).decode() for token in tree.tokens)
    assert text.startswith(spelled)
    assert tree.draw == "one_hot"


def test_coupled_draws_race_the_targets_noise():
    """A target that knows only shared tokens and says what the draft says accepts everything."""

    def floats(weights, path):
        exact = warp(weights, path)
        return Law(exact.tokens, exact.probs.astype(float))

    for seed in range(30):
        randomness = CounterRandomness(seed)
        tree = drafter("intersection").propose([context((0, 1), randomness, 3, floats, coupled=True)])[0]
        verdict = verify_coupled(tree, lambda node, tree=tree: tree.draft_law(min(node + 1, 2)), randomness, 2)
        assert len(verdict.path) == 3


def test_shared_tokens_are_found_by_what_they_spell():
    shared = SharedTokens(source(TARGET), source(DRAFT))
    spelled = [list(map(DRAFT.token_bytes, shared.draft_ids)), list(map(TARGET.token_bytes, shared.target_ids))]
    assert spelled == [[b"c", b"a", b"b"]] * 2
    assert shared.to_draft(shared.to_target(2)) == 2


def test_ends_of_answers_are_shared_whatever_they_are_called():
    ours, theirs = PieceTokenizer("a", "<end>"), PieceTokenizer("<stop>", "a")
    shared = SharedTokens(source(ours, eos=[1]), source(theirs, eos=[0]))
    assert shared.to_target(0) == 1
    assert len(shared) == 2


def test_a_special_token_is_not_taken_for_the_text_that_spells_it():
    class Plain(PieceTokenizer):
        special_token_ids = frozenset()

        def __init__(self, *pieces):
            super().__init__(*pieces)
            self.special_token_ids = frozenset()

    shared = SharedTokens(source(PieceTokenizer("a", "<tool>")), source(Plain("<tool>", "a")))
    assert shared.draft_ids.tolist() == [1]


@pytest.mark.parametrize("mode", ["intersection", "string"])
def test_what_the_request_forbids_altogether_is_refused_later_not_raised(mode):
    def nothing_left(logits, path):
        raise InvalidParameter("logits", "every token is forbidden at this place", "allow one")

    tree = drafter(mode, FloatTable).propose([context((0, 1), CounterRandomness(0), 1, nothing_left)])[0]
    assert len(tree) <= 1


def test_bad_options_are_refused():
    with pytest.raises(InvalidParameter, match="mode"):
        CrossVocabulary(DraftModel(Table(), 8), source(TARGET), source(DRAFT), "letters")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="share no token"):
        CrossVocabulary(DraftModel(Table(), 8), source(PieceTokenizer("x")), source(PieceTokenizer("y")))


def test_released_requests_are_forgotten_inside_as_well():
    own = CrossVocabulary(DraftModel(FloatTable(), 2), source(TARGET), source(DRAFT), "string")
    for number in range(5):
        [tree] = own.propose([replace(context([0] * 20, CounterRandomness(0), 1), request_id=str(number))])
        assert len(tree) == 1
        tell(own, str(number), [0] * 20, finished=number % 2 == 0)
        own.release(str(number))
    assert not own._texts
