"""Commands that need torch say which extra brings it, before they fetch a model; the others run without it."""

import re
import sys

import pytest

from paceline.cli.main import main
from paceline.errors import InvalidParameter
from paceline.extras import check_executor, check_torch, install

NEEDING = {
    "train head eagle3": "train: needs torch, which is not installed; run {torch}",
    "train draft": "train: needs torch, which is not installed; run {torch}",
    "train joint medusa -o {folder}/out": "train: needs torch",
    "train disco --prompts {folder}/p --draft-model x -o {folder}/out": "train disco: needs torch",
    "generate -m nowhere --device cuda:0 hi": "executor 'cuda': needs torch, which is not installed; run {cuda}, "
    "or leave device and executor out to run on the CPU",
    "serve nowhere --device cuda:0": "executor 'cuda': needs torch",
    "bench nowhere --device cuda:0": "executor 'cuda': needs torch",
    "generate -m nowhere --executor torch hi": "executor 'torch': needs torch, which is not installed; run {torch}, "
    "or use executor='numba'",
}


@pytest.fixture
def without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)


def said(arguments, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["paceline", *arguments.split()])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("arguments", NEEDING)
def test_the_extra_with_torch_is_named(arguments, tmp_path, capsys, monkeypatch, without_torch):
    shown = said(arguments.format(folder=tmp_path), capsys, monkeypatch)
    expected = NEEDING[arguments].format(torch=install("torch"), cuda=install("cuda"))
    assert f"error: {expected}" in shown and "Traceback" not in shown
    assert not list(tmp_path.iterdir())


def test_a_command_that_needs_no_torch_gets_further(capsys, monkeypatch, without_torch):
    shown = said("generate -m nowhere hi", capsys, monkeypatch)
    assert "torch" not in shown and "'nowhere'" in shown


def test_nothing_is_refused_where_torch_is_there():
    pytest.importorskip("torch")
    for executor in ("auto", "numba", "torch", "cuda"):
        check_executor(executor)
    check_torch("anything")


@pytest.mark.parametrize("executor", ["auto", "numba"])
def test_executors_without_torch_need_none(executor, without_torch):
    check_executor(executor)
    with pytest.raises(InvalidParameter, match=re.escape(install("torch"))):
        check_executor("torch")
