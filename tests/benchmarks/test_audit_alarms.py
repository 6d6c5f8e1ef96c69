"""The benchmark of false alarms runs whole audits of an engine with a small random model."""

import json
import sys

import audit_alarms


def test_an_exact_engine_raises_no_alarm(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["audit_alarms.py", "--audits", "1"])
    audit_alarms.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["verdicts"] == {"CONSISTENT": 1}
    assert not found["false_alarms"]
