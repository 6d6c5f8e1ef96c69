"""Drafters by name, by path, and what is refused."""

import subprocess
import sys

import pytest

from paceline.drafters.registry import drafter_names, make_drafter
from paceline.errors import InvalidParameter
from tests.drafters.contexts import propose
from tests.fakes import tell


def test_every_name_makes_a_drafter_of_that_name():
    assert {"plain", "ngram", "suffix", "draft_model"} <= set(drafter_names())
    for name in ("plain", "ngram", "suffix"):
        assert make_drafter(name).name == name


def test_options_reach_the_constructor():
    assert propose(make_drafter("ngram", prompt_lookup_max=1), [1, 2, 3, 2, 1, 2]).tokens == (1, 2)
    assert propose(make_drafter("ngram", prompt_lookup_max=2), [1, 2, 3, 2, 1, 2]).tokens == (3, 2, 1, 2)


def test_a_path_leads_to_a_users_own():
    drafter = make_drafter("tests.drafters.own_drafter:Repeat", times=3)
    assert propose(drafter, [5, 6]).tokens == (6, 6, 6)
    assert propose(drafter, [5, 6], budget=2).tokens == (6, 6)


def test_a_path_leads_into_the_current_folder_which_the_command_does_not_search(tmp_path, monkeypatch):
    (tmp_path / "mine_alone.py").write_text("from tests.drafters.own_drafter import Repeat\n")
    (tmp_path / "needs_more.py").write_text("import no_such_helper\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    with pytest.raises(InvalidParameter, match="no module 'no_such_helper'"):
        make_drafter("needs_more:Thing")
    assert str(tmp_path) not in sys.path
    assert propose(make_drafter("mine_alone:Repeat", times=2), [5, 6]).tokens == (6, 6)
    assert sys.path[-1] == str(tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "Ngrams",
            {},
            r"^drafter: 'Ngrams' is unknown; did you mean ngram\? use one that `paceline generate --help` l",
        ),
        ("unlike any", {}, "^drafter: 'unlike any' is unknown; use one that `paceline generate --help` lists, or 'pac"),
        ("ngram", {"max_ngram": 3}, "max_ngram: .* prompt_lookup_max, prompt_lookup_min, occurrence"),
        ("plain", {"k": 3}, "k: .* its options are: none"),
        ("no.such.module:Thing", {}, "no module 'no'"),
        ("specinfer", {"model": "small"}, r"""model: .*--draft-option 'models=\["small"\]'"""),
        ("draft_model", {}, "model: .*cannot do without it"),
        ("draft_model", {"model": "small"}, "services: .*inside an engine only"),
        ("tests.drafters.own_drafter:Nothing", {}, "has no 'Nothing'"),
        ("tests.drafters.own_drafter:Repeat", {}, "times: .*cannot do without it; .* or --draft-option times="),
        ("tests.drafters.own_drafter:Silent", {}, "chooses between ways to draft .*; give it chosen_seconds"),
        ("tests.drafters.own_drafter:Half", {}, "has no observe, release; write it, or inherit from BaseDrafter"),
        ("tests.drafters.own_drafter:Nameless", {}, "has no name; write it"),
        ("tests.drafters.own_drafter:ALONE", {}, "is no class"),
        (".own_drafter:Repeat", {}, "is unknown"),
    ],
)
def test_what_cannot_be_made_is_refused_with_what_can(name, options, message):
    with pytest.raises(InvalidParameter, match=message):
        make_drafter(name, **options)


def test_the_registry_imports_no_drafter_before_it_is_asked_for():
    code = "import sys, paceline.drafters.registry; print([m for m in sys.modules if 'ngram' in m or m == 'torch'])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_plain_never_drafts():
    drafter = make_drafter("plain")
    assert len(propose(drafter, [1, 1, 1, 1])) == 0
    tell(drafter, "r", [1, 1], finished=True)
    drafter.release("r")
    assert propose(drafter, [1, 1, 1, 1]).draw == "one_hot"
