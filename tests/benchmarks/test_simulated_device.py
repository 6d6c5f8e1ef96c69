"""The simulated device runs the engine as a GPU would: all texts are right, and passes are begun ahead."""

import json
import sys

import pytest

pytest.importorskip("torch")

import simulated_device


def test_each_way_of_decoding_says_what_the_tokens_say(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["simulated_device.py", "--requests", "2", "--runs", "1", "--pass-ms", "0.1"])
    simulated_device.main()
    found = json.loads(capsys.readouterr().out)["tokens_per_second"]
    assert list(found) == ["plain", "drawn", "fixed", "auto", "suffix"] and all(runs[0] > 0 for runs in found.values())


def test_a_pass_with_drafts_takes_what_was_said():
    seconds = simulated_device.Seconds(8, 0.7, 0.9)
    assert [seconds(rows) for rows in (8, 40)] == pytest.approx([0.7, 0.9])
