"""The example of docs/adding-a-drafter.md is code that works."""

import re
from pathlib import Path
from typing import Any

from paceline.testing import check_drafter
from tests.drafters.contexts import propose
from tests.fakes import tell

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-drafter.md"


def test_the_example_is_short_and_drafts():
    code, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.splitlines()) <= 40
    names: dict[str, Any] = {}
    exec(code, names)
    drafter = names["Follower"]()
    assert len(propose(drafter, [1, 2])) == 0
    tell(drafter, "r", [1, 2, 3, 1], finished=False)
    assert propose(drafter, [1, 2, 3, 1]).tokens == (2, 3, 1, 2)
    assert propose(drafter, [1, 2, 3, 1], budget=2).tokens == (2, 3)
    tell(drafter, "r", [1, 2, 3, 1, 5], finished=True)
    assert propose(drafter, [9, 1]).tokens == (5,)
    check_drafter(names["Follower"])
