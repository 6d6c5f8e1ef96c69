"""The self-check counts first drafted tokens that are the target's, for heads of the four shapes."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.models.base import ForwardOutput, Rows
from paceline.models.heads.nets import NetOutput
from paceline.models.heads.record import HeadRecord
from paceline.models.heads.self_check import first_share, make_check, own_text, run_self_check
from tests.models.heads.tiny_heads import OURS, THEIRS, VOCAB, WIDTH, random_head

TOKENS = np.random.default_rng(5).integers(0, VOCAB, 64).tolist()
IDS = np.arange(0, VOCAB, 2, dtype=np.int32)


def successor(tokens) -> np.ndarray:
    """What the target always says next."""
    return (np.asarray(tokens) * 3 + 1) % VOCAB


class Target:
    """Says `successor`; its state at a position is that position, whatever the tap."""

    def new_cache(self, num_pages: int) -> int:
        return num_pages

    def forward(self, rows: Rows, cache: int, taps: tuple[int, ...] = ()) -> ForwardOutput:
        logits = np.eye(VOCAB, dtype=np.float32)[successor(rows.token_ids[rows.logit_rows])]
        states = np.repeat(rows.positions[:, None], WIDTH, axis=1).astype(np.float32)
        return ForwardOutput(logits, {tap: states for tap in taps})


class Net:
    """Drafts the target's next token where its vocabulary has it, from the right state only."""

    def __init__(self, record: HeadRecord, shift: int = 0) -> None:
        self.record, self.shift = record, shift

    def new_cache(self, num_pages: int) -> dict[int, float]:
        return {}

    def _logits(self, tokens, positions, states) -> np.ndarray:
        right = np.asarray(states) + self.shift == np.asarray(positions)
        logits = np.zeros((len(tokens), len(IDS)), np.float32)
        wanted = np.searchsorted(IDS, successor(tokens))
        for row, (column, ok) in enumerate(zip(wanted, right, strict=True)):
            logits[row, min(column, len(IDS) - 1) if ok else 0] = 1.0 if ok else 0.0
        return logits


class Autoregressive(Net):
    def project(self, taps: np.ndarray) -> np.ndarray:
        return taps[:, :WIDTH]

    def forward(self, rows: Rows, hidden: np.ndarray, cache) -> NetOutput:
        return NetOutput(self._logits(rows.token_ids, rows.positions, hidden[:, 0]), hidden)


class Block(Net):
    def inject(self, taps, positions, slots, cache) -> None:
        assert np.array_equal(positions, slots)
        cache |= dict(zip(slots.tolist(), taps[:, 0].tolist(), strict=True))

    def forward(self, rows: Rows, cache) -> NetOutput:
        anchor = int(rows.positions[0])
        assert rows.num_keys is not None and set(rows.num_keys) == {anchor + len(rows.token_ids)}
        states = [cache[anchor - 1]] * len(rows.token_ids)
        first = self._logits(rows.token_ids[:1], [anchor - 1], states[:1])
        logits = np.zeros((len(rows.token_ids), len(IDS)), np.float32)
        logits[int(not self.record.config.sample_from_anchor)] = first[0]
        return NetOutput(logits, np.zeros((len(states), WIDTH), np.float32))

    def bias(self, tokens) -> np.ndarray:
        return np.zeros((len(tokens), len(IDS)), np.float32)

    def confidence(self, hidden, tokens) -> np.ndarray:
        return np.ones(len(tokens))


class Step(Net):
    def begin(self, hidden: np.ndarray) -> np.ndarray:
        return hidden

    def step(self, level: int, states: np.ndarray, tokens: np.ndarray):
        assert level == 0
        return self._logits(tokens, np.arange(len(tokens)), states[:, 0]), states


class HalfAutoregressive(Net):
    """Its row of position p names the token at p + 3, for which it must see the row after it."""

    def project(self, taps: np.ndarray) -> np.ndarray:
        return taps[:, :WIDTH]

    def extend(self, tokens, hidden, positions, slots, before, cache) -> None:
        assert before.tolist() == [-1, *slots[:-1].tolist()]
        for token, state, position, slot in zip(tokens, hidden[:, 0], positions, slots, strict=True):
            cache[int(slot)] = (token, position, state)

    def draft(self, blocks, cache) -> NetOutput:
        rows = []
        for block in blocks:
            assert block.visible.tolist() == sorted(cache)[: len(block.visible)]
            assert block.slots.tolist() == block.visible[-2:].tolist()
            token, position, state = cache[int(block.slots[-1])]
            first = self._logits([token], [position], [state])
            rows += [first[0], np.zeros_like(first[0])]
        return NetOutput(np.stack(rows), np.zeros((len(rows), WIDTH), np.float32))


FORMS = {
    "falcon": HalfAutoregressive, "eagle3.1": Autoregressive, "p_eagle": Autoregressive, "dspark": Block,
    "dflash": Block, "medusa": Step,
}  # fmt: skip


def record(form: str) -> HeadRecord:
    head = random_head(OURS[form] if form in OURS else THEIRS[form][0])
    return replace(head, draft_ids=IDS, config=replace(head.config, draft_vocab_size=len(IDS)))


@pytest.mark.parametrize("form", FORMS)
def test_the_share_is_that_of_tokens_in_the_heads_vocabulary(form: str) -> None:
    net = FORMS[form](record(form))
    first = 2 if form == "falcon" else 1  # a block of two rows holds tokens 1 and 2
    expected = np.mean(successor(TOKENS[first:]) % 2 == 0)
    assert first_share(Target(), net, TOKENS) == pytest.approx(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMS)
def test_states_of_another_place_fail_the_check_of_a_good_release(form: str) -> None:
    good = record(form)
    card = {"check": make_check(Target(), FORMS[form](good), TOKENS, 0)}  # type: ignore[arg-type]
    passed = run_self_check(Target(), FORMS[form](good), card)  # type: ignore[arg-type]
    assert passed is not None and passed.passed and passed.measured == pytest.approx(passed.expected, abs=1e-3)
    failed = run_self_check(Target(), FORMS[form](good, shift=1), card)  # type: ignore[arg-type]
    assert failed is not None and not failed.passed and "far too low" in str(failed)


def test_text_of_its_own_goes_on_from_the_prompt() -> None:
    tokens = own_text(Target(), [3, 5], 4)  # type: ignore[arg-type]
    assert tokens[:2] == [3, 5] and tokens[2:] == successor(tokens[1:-1]).tolist()


def test_a_card_without_tokens_cannot_be_checked() -> None:
    assert run_self_check(Target(), Step(record("medusa")), {}) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMS)
def test_tokens_of_the_prompt_do_not_count(form: str) -> None:
    net, first = FORMS[form](record(form)), 5
    expected = np.mean(successor(TOKENS[first:]) % 2 == 0)
    assert first_share(Target(), net, TOKENS, first) == pytest.approx(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        *[({"tokens": tokens, "acceptance": 0.5}, "tokens") for tokens in (
            [10**7] * 5, [-1, 3, 4], [], [5], "abc", [1, 2, 7.5], [1, None, 2], [True, 1, 2], None, [1] * 5000)],
        *[({"tokens": [1, 2, 3], "acceptance": share}, "acceptance") for share in (None, "x", 2, -0.1, float("nan"))],
        *[({"tokens": [1, 2, 3], "acceptance": 0.5, "prompt_tokens": n}, "prompt_tokens") for n in (-1, 3, 1.5, None)],
        ([1, 2], "tokens"), ("x", "tokens"), ({}, "tokens"),
    ],
)  # fmt: skip
def test_a_damaged_entry_is_refused(entry: object, field: str) -> None:
    with pytest.raises(InvalidParameter, match=f"card.check.{field}"):
        run_self_check(Target(), Step(record("medusa")), {"check": entry})  # type: ignore[arg-type]
