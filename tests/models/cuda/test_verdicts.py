"""Rows that a verdict completes on the device: those that the host makes once it knows the verdict."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.models.base import PAGE_SIZE  # noqa: E402
from paceline.models.cuda_executor.following_rows import Roots, chains_after, starts_of  # noqa: E402
from paceline.models.cuda_executor.paged_rows import (  # noqa: E402
    FIELDS,
    PagedRows,
    levels_below,
    pack,
    pack_levels,
    packed_size,
)
from paceline.models.cuda_executor.verdicts import (  # noqa: E402
    MOST_ROWS,
    Draft,
    Pending,
    Verdicts,
    chain_template,
    pass_template,
)
from paceline.models.rows import Part, build_rows  # noqa: E402

SPARE, LONGEST, LEVELS = 4096, 10_000, 3
KERNELS = pytest.mark.parametrize("kernels", [False, True], ids=["reference", "kernel"])


def checked(kernels):
    if kernels:
        pytest.importorskip("triton")


class Step:
    """A pass over chains of some requests, the picks of which accept a random number of drafts."""

    def __init__(self, rng, count=3, num_pages=12, longest_text=60):
        pages = rng.permutation(256).tolist()
        self.tables = [[pages.pop() for _ in range(num_pages)] for _ in range(count)]
        self.head_tables = [[pages.pop() for _ in range(num_pages)] for _ in range(count)]
        self.sizes = rng.integers(1, LEVELS + 2, count)
        self.begins = rng.integers(1, longest_text, count)
        chains = [rng.integers(0, 9, size).tolist() for size in self.sizes]
        picks = []
        for chain in chains:
            right = int(rng.integers(0, len(chain)))
            picks += [*chain[1 : right + 1], *(100 + rng.integers(0, 9, len(chain) - right)).tolist()]
        self.rows = build_rows(
            [Part(table, begin, chain) for table, begin, chain in zip(self.tables, self.begins, chains, strict=True)]
        )
        starts = starts_of(self.rows)
        places = rng.permutation(len(picks) + 2)[: len(picks)]
        self.picks, said = np.array(picks, np.int32), torch.zeros(len(picks) + 2, dtype=torch.int32)
        said[places] = torch.from_numpy(self.picks)
        self.verdicts = None
        self.pending = Pending(self.rows, starts, None, places, said, (), None, None)
        agrees = [np.append(self.picks[s : s + n - 1] == self.rows.token_ids[s + 1 : s + n], False) for s, n in zip(
            starts, self.sizes, strict=True)]  # fmt: skip
        self.accepted = np.array([each.tolist().index(False) for each in agrees])
        self.roots = self.picks[starts + self.accepted]

    def chain(self, kernels, num_levels, tables=None):
        """(lines of the rows, those of each level, the logit rows) as the device has them."""
        width = max(map(len, tables or self.head_tables))
        table = np.array([[*own, *[-1] * (width - len(own))] for own in tables or self.head_tables], np.int32)
        template = chain_template(self.pending, table, num_levels)
        num_rows, below = len(template.slots) + 2, len(table) + 1
        out = np.full(num_levels * len(FIELDS) * below + packed_size(template, num_rows), 55, np.int32)
        size = num_levels * len(FIELDS) * below
        pack_levels(template, SPARE, out[:size].reshape(num_levels, len(FIELDS), below))
        pack(template, num_rows, SPARE, 4, out[size:])
        packed = torch.from_numpy(out)
        self.verdicts = Verdicts.on(packed.device, kernels)
        self.verdicts.chain_after(template, self.pending.picks, num_levels, SPARE)(packed, num_rows, below)
        rows = PagedRows.of(packed[size:], num_rows, 1)
        return rows, PagedRows.levels(packed, below, 1, num_levels, rows.flat)


@KERNELS
@pytest.mark.parametrize("num_levels", [0, 1, LEVELS])
def test_a_draft_begins_after_the_accepted_tokens(kernels, num_levels):
    checked(kernels)
    rng = np.random.default_rng(5)
    for _ in range(3 if kernels else 30):
        step = Step(rng)
        rows, levels = step.chain(kernels, num_levels)
        count = len(step.accepted)
        assert step.verdicts.accepted[:count].tolist() == step.accepted.tolist()
        assert step.verdicts.roots[:count].tolist() == step.roots.tolist()
        ends = step.pending.starts + step.accepted
        assert rows.logit_rows[:count].tolist() == ends.tolist()
        size = len(step.picks)
        assert rows.token_ids[:size].tolist() == step.picks.tolist()
        wanted = build_rows(
            [Part(own, begin, [0] * n) for own, begin, n in zip(step.head_tables, step.begins, step.sizes, strict=True)]
        )
        for name, values in (("positions", wanted.positions), ("slots", wanted.slots), ("lengths", wanted.lengths),
                             ("natural", wanted.natural_lengths)):  # fmt: skip
            assert getattr(rows, name)[:size].tolist() == values.tolist(), name
        wanted = replace(wanted, logit_rows=ends)
        for found, level in zip(levels, levels_below(wanted, num_levels), strict=True):
            for name, values in (("positions", level.positions), ("slots", level.slots), ("lengths", level.lengths),
                                 ("natural", level.natural_lengths)):  # fmt: skip
                assert getattr(found, name)[:count].tolist() == values.tolist(), name
            assert found.slots[count:].tolist() == [SPARE]


@KERNELS
def test_levels_without_a_page_write_to_the_spare_slot(kernels):
    checked(kernels)
    step = Step(np.random.default_rng(1), count=1)
    assert step.accepted[0] > 0
    step.rows.positions[:] += 2 * PAGE_SIZE - 1 - LEVELS - step.rows.positions[0]  # levels end at the second page
    _, levels = step.chain(kernels, LEVELS, [[7, 9]])
    places = [int(step.rows.positions[0]) + int(step.accepted[0]) + 1 + level for level in range(LEVELS)]
    wanted = [9 * PAGE_SIZE + at % PAGE_SIZE if at < 2 * PAGE_SIZE else SPARE for at in places]
    assert SPARE in wanted and [int(level.slots[0]) for level in levels] == wanted
    assert [int(level.lengths[0]) for level in levels] == [at + 1 if at < 2 * PAGE_SIZE else 1 for at in places]


@KERNELS
def test_the_next_pass_has_the_draft_after_the_new_root(kernels):
    checked(kernels)
    rng = np.random.default_rng(6)
    for _ in range(3 if kernels else 30):
        step = Step(rng)
        step.chain(kernels, LEVELS)
        count, tokens = len(step.accepted), torch.from_numpy(rng.integers(0, 9, (2, LEVELS, 5))).double()
        draft = Draft(tokens[0, :, : len(step.accepted)], None)
        template = pass_template(step.pending, LEVELS)
        num_rows = len(template.slots) + 1
        packed = torch.from_numpy(np.full(packed_size(template, num_rows), 55, np.int32))
        pack(template, num_rows, SPARE, 4, packed.numpy())
        step.verdicts.pass_after(template, draft, SPARE, LONGEST)(packed, num_rows)
        found = PagedRows.of(packed, num_rows, 1)
        roots = Roots(step.begins + step.accepted + 1, step.roots, step.rows.page_tables)
        wanted = chains_after(roots, LEVELS, LONGEST)
        wanted.token_ids.reshape(count, LEVELS + 1)[:, 1:] = draft.tokens.T.numpy()
        size = len(wanted.slots)
        for name, values in (("token_ids", wanted.token_ids), ("positions", wanted.positions), ("slots", wanted.slots),
                             ("natural", wanted.natural_lengths), ("lengths", wanted.lengths),
                             ("logit_rows", wanted.logit_rows)):  # fmt: skip
            assert getattr(found, name)[:size].tolist() == values.tolist(), name
        assert (template.lengths >= wanted.lengths.max()).all()  # so that it has enough splits


@KERNELS
def test_rows_beyond_the_longest_text_have_no_place(kernels):
    checked(kernels)
    step = Step(np.random.default_rng(2), count=1)
    step.chain(kernels, 1)
    first = int(step.begins[0] + step.accepted[0]) + 1
    template = pass_template(step.pending, LEVELS)
    packed = torch.from_numpy(np.zeros(packed_size(template, len(template.slots)), np.int32))
    pack(template, len(template.slots), SPARE, 4, packed.numpy())
    step.verdicts.pass_after(template, Draft(torch.zeros(LEVELS, 1), None), SPARE, first + 2)(
        packed, len(template.slots)
    )
    found = PagedRows.of(packed, len(template.slots), 1)
    assert found.positions.tolist() == [first, first + 1, 0, 0]
    assert found.slots.tolist()[2:] == [SPARE, SPARE] and SPARE not in found.slots.tolist()[:2]


@KERNELS
def test_both_kernels_are_launched_when_a_head_is_made(kernels, monkeypatch):
    checked(kernels)
    if kernels:
        from paceline.models.cuda_executor.kernels import verdicts as place
    else:
        from paceline.models.cuda_executor import verdicts as place
    launched = []
    for name in ("continue_chain", "continue_pass"):
        own = name if kernels else f"_{name}"
        run = getattr(place, own)
        monkeypatch.setattr(place, own, lambda *a, run=run, name=name, **k: launched.append(name) or run(*a, **k))
    verdicts = Verdicts.on(torch.device("cpu"), kernels)
    verdicts.warm_up(torch.full((4,), 7, dtype=torch.int32))
    assert launched == ["continue_chain", "continue_pass"] and int(verdicts.roots[0]) == 7


def test_noise_moves_on_by_the_accepted_tokens():
    verdicts = Verdicts.on(torch.device("cpu"), False)
    verdicts.accepted[:2] = torch.tensor([0, 2])
    keys = torch.arange(16).reshape(2, 8)
    assert verdicts.keys_after(keys, 3).tolist() == [[1, 2, 3], [11, 12, 13]]


def test_what_cannot_be_completed_has_no_template():
    step = Step(np.random.default_rng(3))
    width = int(step.rows.positions.max()) // PAGE_SIZE
    assert chain_template(step.pending, np.zeros((3, width), np.int32), 1) is None
    assert chain_template(step.pending, np.full((3, width + 1), -1, np.int32), 1) is None
    assert chain_template(step.pending, np.zeros((2, width + 1), np.int32), 1) is None
    assert chain_template(step.pending, np.zeros((3, width + 1), np.int32), 1) is not None
    assert chain_template(step.pending, np.zeros((3, width + 1), np.int32), 2 * PAGE_SIZE) is None
    wide = np.zeros((3, width + 1 + MOST_ROWS), np.int32)
    assert chain_template(step.pending, wide, MOST_ROWS) is not None
    assert chain_template(step.pending, wide, MOST_ROWS + 1) is None
    assert pass_template(step.pending, MOST_ROWS) is None
    longer = step.pending._replace(starts=np.zeros(3, np.int64), rows=SimpleNamespace(slots=np.zeros(MOST_ROWS + 1)))
    assert chain_template(longer, np.zeros((3, width + 1), np.int32), 1) is None
