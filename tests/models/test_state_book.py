"""`StateBook`: steps that give every row the state after its own ancestors, whatever passes came before.

States are the tuples of the tokens they come from, so that a wrong or stale one is seen.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.models.architecture.recurrence import Recurrence
from paceline.models.base import PAGE_SIZE, slot_of
from paceline.models.rows import Part, build_rows, compaction
from paceline.models.state_book import AGAIN, LOAD, MOST_DRAFTED, REPEAT, ROW, SAVE, StateBook, StateLost, StateStore


class Texts:
    """Runs the steps of passes with texts in place of states, and checks each row's."""

    def __init__(self, num_states=8):
        self.book = StateBook(num_states)
        self.states, self.inputs = {}, {}
        self.counts = dict.fromkeys((LOAD, REPEAT, AGAIN, ROW, SAVE), 0)

    def run(self, *parts, before):
        """A pass over parts that follow the texts `before`; returns the text after each row."""
        rows = build_rows(list(parts))
        told = self.book.plan(rows)
        found = {}
        for segment in range(len(parts)):
            text = None
            for kind, first, second in told.steps[told.starts[segment] : told.starts[segment + 1]].tolist():
                self.counts[kind] += 1
                if kind == LOAD:
                    text = () if first < 0 else self.states[first]
                elif kind == REPEAT:
                    text = (*text, self.inputs[first])
                elif kind == SAVE:
                    self.states[first] = text
                else:
                    text = (*text, int(rows.token_ids[first]))
                    assert found.setdefault(first, text) == text
                    if kind == ROW and second >= 0:
                        self.inputs[second] = int(rows.token_ids[first])
        row = 0
        for part, own in zip(parts, before, strict=True):
            after = []
            for i, token in enumerate(part.tokens):
                parent = i - 1 if part.parents is None else part.parents[i]
                after.append((*(own if parent < 0 else after[parent]), token))
            for text in after[part.num_computed :]:
                assert found[row] == text
                row += 1
        return found


def test_a_prompt_then_tokens_one_by_one():
    texts, pages = Texts(), (3, 0, 5)
    prompt = tuple(range(20))
    texts.run(Part(pages, 0, prompt, logits="last"), before=[()])
    for i in range(20, 40):
        texts.run(Part(pages, i, [i]), before=[tuple(range(i))])
    assert texts.counts[REPEAT] <= 4 * 20
    assert texts.book.can_resume(slot_of(pages, 2 * PAGE_SIZE - 1))


def test_a_draft_is_taken_back_as_far_as_its_root():
    texts, pages = Texts(), (1, 0, 2)
    text = tuple(range(15))
    texts.run(Part(pages, 0, text, logits="last"), before=[()])
    for accepted in (0, 3, 6, 1, 0, 2):
        texts.run(Part(pages, len(text), [*range(50, 57)]), before=[text])
        text = (*text, *range(50, 51 + accepted))
    texts.run(Part(pages, len(text), [9]), before=[text])


@pytest.mark.parametrize("tokens", range(6))
def test_the_longest_draft_is_taken_back_as_far_as_its_root(tokens):
    texts, pages = Texts(), range(6)
    text = tuple(range(10))
    texts.run(Part(pages, 0, text, logits="last"), before=[()])
    for token in range(10, 10 + tokens):
        texts.run(Part(pages, len(text), [token]), before=[text])
        text = (*text, token)
    texts.run(Part(pages, len(text), range(100, 101 + MOST_DRAFTED)), before=[text])
    texts.run(Part(pages, len(text) + 1, [9]), before=[(*text, 100)])


def test_two_states_of_each_segment_are_enough():
    """Each continues from one and must save another; those at the ends of pages are saved where there is room."""
    texts, pages = Texts(num_states=6), [range(9 * i, 9 * i + 9) for i in range(3)]
    known = [tuple(range(100 * i, 100 * i + 10)) for i in range(3)]
    texts.run(*(Part(own, 0, text, logits="last") for own, text in zip(pages, known, strict=True)), before=[()] * 3)
    for count in (12, 30, 14, 40):
        parts = [Part(own, len(text), range(7, 7 + count)) for own, text in zip(pages, known, strict=True)]
        texts.run(*parts, before=known)
        known = [(*text, *range(7, 7 + count)) for text in known]


def test_a_branch_moves_with_its_states():
    texts, pages = Texts(), (1, 0, 2)
    text = tuple(range(14))
    texts.run(Part(pages, 0, text, logits="last"), before=[()])
    tokens, parents = [40, 41, 42, 43, 44, 45], [-1, 0, 0, 2, 3, 1]
    texts.run(Part(pages, 14, tokens, parents), before=[text])
    texts.book.move(*compaction(pages, 14, [0, 2, 3, 4]))
    text = (*text, 40, 42, 43, 44)
    texts.run(Part(pages, len(text), [7, 8, 9], [-1, 0, 0]), before=[text])


def test_levels_of_a_tree_computed_in_passes_of_their_own():
    texts, pages = Texts(), (0, 1)
    text = (1, 2, 3)
    texts.run(Part(pages, 0, text, logits="last"), before=[()])
    tokens, parents = [], []
    for level in range(9):
        above = [-1] if not level else [len(tokens) - 2, len(tokens) - 1]
        known = len(tokens)
        tokens += [10 + level, 30 + level]
        parents += [above[0], above[-1]]
        texts.run(Part(pages, 3, tokens, parents, "all", known), before=[text])


def test_the_least_recently_used_state_is_given_up_and_asking_counts_as_use():
    texts = Texts(num_states=4)
    for request in range(4):
        texts.run(Part([request], 0, range(PAGE_SIZE), logits="last"), before=[()])
    assert texts.book.can_resume(PAGE_SIZE - 1)
    texts.run(Part([4], 0, range(PAGE_SIZE), logits="last"), before=[()])
    resumable = [texts.book.can_resume(page * PAGE_SIZE + PAGE_SIZE - 1) for page in range(5)]
    assert resumable == [True, False, True, True, True]
    with pytest.raises(StateLost):
        texts.run(Part([1, 6], PAGE_SIZE, [5]), before=[tuple(range(PAGE_SIZE))])


def test_more_segments_than_states_are_refused_before_anything_is_given_up():
    texts = Texts(num_states=2)
    with pytest.raises(StateLost, match="too few"):
        texts.run(*(Part([page], 0, range(9), logits="last") for page in range(3)), before=[()] * 3)


def test_nothing_is_saved_for_earlier_rows_where_layers_are_left_out():
    book = StateBook()
    pages = (0, 1)
    book.plan(build_rows([Part(pages, 0, range(14), logits="last")]))
    for i in (14, 15):
        book.plan(build_rows([Part(pages, i, [i])]))
    book.plan(build_rows([Part(pages, 16, [16])]), whole=False)
    assert not book.can_resume(15)
    book.plan(build_rows([Part(pages, 16, [16])]))
    assert book.can_resume(15)


def test_passes_of_which_only_the_time_counts_need_no_states():
    book, rows = StateBook(), build_rows([Part((0, 1, 2), 40, [1, 2])])
    with pytest.raises(StateLost):
        book.plan(rows)
    book.only_times = True
    assert book.plan(rows).steps[0].tolist() == [LOAD, -1, 0]


def test_rows_that_read_a_window_are_refused():
    store, rows = StateStore(Recurrence("short_convolution", (0,), 3, 64)), build_rows([Part((0,), 0, [1, 2, 3])])
    store.plan(replace(rows, num_keys=rows.positions + 1))
    with pytest.raises(InvalidParameter, match="num_keys: recurrent layers read all tokens"):
        store.plan(replace(rows, num_keys=np.array([1, 1, 1], np.int32)))


def test_inputs_get_more_room_when_a_pass_needs_it():
    store = StateStore(Recurrence("short_convolution", (0,), 3, 64))
    before = len(store.inputs)
    parts = [Part([2 * i, 2 * i + 1], 0, range(20), [-1, *range(19)], logits="all") for i in range(20)]
    store.hold(64)
    store.plan(build_rows(parts))
    assert len(store.inputs) == store.book.num_inputs > before


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_course_of_requests(data):
    """Prompts in chunks, chains and trees, any part of them accepted, in any company."""
    texts = Texts(num_states=12)
    pages = [list(range(9 * i, 9 * i + 9)) for i in range(3)]
    known, token = [(), (), ()], 100
    for _ in range(data.draw(st.integers(3, 14))):
        parts, before, chosen = [], [], data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True))
        for request in sorted(chosen):
            count = data.draw(st.integers(1, 20 if not known[request] else 7))
            is_tree = bool(known[request]) and data.draw(st.booleans())
            parents = [-1, *(data.draw(st.integers(0, i)) for i in range(count - 1))] if is_tree else None
            asked = "all" if is_tree or (known[request] and data.draw(st.booleans())) else "last"
            parts.append(Part(pages[request], len(known[request]), range(token, token + count), parents, asked))
            before.append(known[request])
            token += count
        if any(part.start + len(part.tokens) > 9 * PAGE_SIZE for part in parts):
            break
        texts.run(*parts, before=before)
        for request, part in zip(sorted(chosen), parts, strict=True):
            path = [0]
            parents = part.parents or [i - 1 for i in range(len(part.tokens))]
            for row in range(1, len(part.tokens)):
                if parents[row] == path[-1] and data.draw(st.booleans()):
                    path.append(row)
            if part.logits == "last" and part.parents is None:
                path = list(range(len(part.tokens)))  # a chunk of a prompt, all of it committed
            sources, destinations = compaction(part.pages, part.start, path)
            texts.book.move(sources, destinations)
            known[request] = (*known[request], *(part.tokens[row] for row in path))
