"""Flags of every engine; those of Paceline itself are read again by its own command line."""

import json
import shlex
from dataclasses import replace

import pytest
from typer.main import get_command

from paceline.cli.main import app
from paceline.cli.options.model import speculative_config
from paceline.config import SpeculativeConfig
from paceline.drafters.registry import drafter_names, option_names
from paceline.evaluation.advise.candidates import default_candidates, wanted_of
from paceline.evaluation.advise.flags import engine_names, flags_for

SMALL = {"method": "draft_model", "model": "small.gguf"}
OPTIONS = {
    "a tree": {"method": "head", "model": "my head", "options": {"tree": "dynamic", "tree_depth": 4}},
    "a hybrid": {"method": "hybrid", "options": {"drafters": ["suffix", {"method": "head", "model": "a 'b"}]}},
    "a rule": {"method": "suffix", "rule": "p/q", "policy": "disco", "policy_options": {"threshold": 0.5}},
    "one's own": {"method": "my.drafters:Mine"},
    "auto": {"method": "auto"},
}


def read_back(flags):
    """The configuration that `paceline serve` reads from its flags."""
    program, command, *arguments = shlex.split(flags)
    assert (program, command) == ("paceline", "serve")
    told = get_command(app).commands["serve"].make_context("serve", arguments).params  # type: ignore[attr-defined]
    names = ("draft", "draft_model", "num_draft_tokens", "rule", "policy", "draft_option", "policy_option")
    return speculative_config(**{name: told[name] for name in names})


def wanted():
    """Every drafter by its name, and configurations."""
    named = [f"{name}:small" if "model" in option_names(name) and name != "head" else name for name in drafter_names()]
    return wanted_of([*(name for name in named if name != "plain"), "auto"], [5])


@pytest.mark.parametrize("spec", [one.spec for one in wanted()] + list(OPTIONS.values()))
def test_paceline_reads_its_own_flags_of_every_candidate(spec):
    config = SpeculativeConfig.of(spec)
    flags = flags_for("paceline", spec, 5)
    if spec.get("policy") == "fixed":
        config = replace(config, policy="auto")
    assert read_back(flags["flags"]) == replace(config, num_draft_tokens=5)
    assert "cannot be told" not in flags["remark"]


def test_what_is_proposed_by_default_has_flags(tiny, monkeypatch):
    monkeypatch.setattr("paceline.evaluation.advise.candidates.best_head", lambda source: "a head")
    proposed = default_candidates(tiny)
    assert "head" in proposed
    for one in wanted_of([*proposed, "draft_model:small.gguf"], [4]):
        assert read_back(flags_for("paceline", one.spec, 4)["flags"]).method == one.spec["method"]


@pytest.mark.parametrize("engine", engine_names())
def test_flags_of_every_engine(engine):
    told = flags_for(engine, SMALL, 5)
    assert "small.gguf" in told["flags"]
    assert "5" in told["flags"]
    assert "4" in flags_for(engine, {"method": "ngram"}, 4)["flags"]
    assert flags_for(engine, None)["flags"]
    assert flags_for(engine, None)["remark"] == ""
    assert flags_for(engine, {"method": "from the file"}, 4)["flags"] is None
    assert (flags_for(engine, {"method": "layer_skip"}, 4)["flags"] is None) == (engine != "paceline")
    assert told["source"]


@pytest.mark.parametrize("engine", engine_names())
def test_what_an_engine_cannot_be_told_is_said(engine):
    spec = {"method": "ngram", "options": {"prompt_lookup_min": 1}, "rule_options": {"lenience": 0.5}}
    remark = flags_for(engine, spec, 4)["remark"]
    lost = "rule_options" if engine == "paceline" else "options, rule_options"
    assert f"cannot be told: {lost}." in remark


def test_vllm_takes_json():
    flags = flags_for("vllm", {"method": "ngram"}, 4)["flags"]
    assert json.loads(flags.split("'")[1]) == {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
