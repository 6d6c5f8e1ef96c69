"""A short run of the fuzzer; `python -m tests.models.fuzz --files 3000` is the long one."""

from .fuzz import KINDS, run


def test_damaged_files_are_refused_in_one_line_or_work():
    counts, faults = run(3 * len(KINDS), seed=0)
    assert not faults, "\n".join(faults)
    assert counts["refused"] > counts["accepted"] > 0
