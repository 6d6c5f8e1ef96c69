"""The pages: every one is in the site, every link leads somewhere, every public name has its place."""

import ast
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import paceline
from paceline.drafters.base import Drafter, ReadingDrafter
from paceline.speculation import DrafterTraits

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
READ_ON_THEIR_OWN = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_PATH = re.compile(r"`((?:paceline/)?[a-z_]+(?:/[a-z_]+)*(?:\.py|/))`")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def pages_in(nav) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in pages_in(part)]


def anchors(page: str) -> set[str]:
    """What the table of contents calls the headings: lower case, words only, joined by hyphens."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE)
    words = (re.sub(r"[^\w\s-]", "", heading.strip("# `")).strip().lower() for heading in headings)
    return {re.sub(r"[\s-]+", "-", heading) for heading in words}


def broken_links(path: Path, text: str) -> list[str]:
    wrong = []
    for link in _LINK.findall(_CODE.sub("", text)):
        target, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        file = (path.parent / target).resolve() if target else path
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            wrong.append(link)
    return wrong


def documented() -> set[str]:
    return {name for page in (DOCS / "api").glob("*.md") for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)}


def test_the_site_lists_every_page_once():
    listed = pages_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


@pytest.mark.parametrize("path", READ_ON_THEIR_OWN, ids=name_of)
def test_links_lead_somewhere(path):
    assert broken_links(path, path.read_text()) == []


def test_a_broken_link_is_found():
    text = (
        "# A heading\n[a](none.md) [b](index.md) [c](#a-heading) [d](index.md#none) ![e](plots/none.png) `[f](none.md)`"
    )
    assert broken_links(DOCS / "theory.md", text) == ["none.md", "#a-heading", "index.md#none", "plots/none.png"]


def test_every_public_name_is_in_the_reference():
    assert {f"paceline.{name}" for name in paceline.__all__} - documented() == set()


def test_every_subpackage_with_public_names_has_a_page():
    subpackages = {
        path.parent.name for path in (ROOT / "paceline").glob("*/__init__.py") if "__all__ =" in path.read_text()
    }
    assert {f"paceline.{subpackage}" for subpackage in subpackages} - documented() == set()


def test_every_subpackage_says_what_it_is_for():
    subpackages = sorted((ROOT / "paceline").glob("*/__init__.py"))
    assert [
        subpackage.parent.name for subpackage in subpackages if not ast.get_docstring(ast.parse(subpackage.read_text()))
    ] == []


def test_files_that_pages_name_by_their_path_exist():
    pages = [*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    path = re.compile(
        r"(?<![\w/.~])(?:paceline|tests|benchmarks|tools|examples|deploy)/[\w./-]*\w\.(?:py|md|json|yaml|sh)\b"
    )
    named = {(page.name, found) for page in pages for found in path.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 50 and sorted(one for one in named if not (ROOT / one[1]).exists()) == []


def test_every_file_on_a_request_s_way_exists():
    named = _PATH.findall((DOCS / "life-of-a-request.md").read_text())
    assert len(named) > 10
    assert [path for path in named if not (ROOT / "paceline" / path.removeprefix("paceline/")).exists()] == []


def test_pages_include_only_what_the_build_writes():
    included = {name for page in PAGES for name in re.findall(r'^--8<-- "build/docs/(.+)"$', page.read_text(), re.M)}
    assert included == {"stack.svg", "matrix.svg", "subpackages.md", "contracts.md", "commands.md"}


@pytest.mark.parametrize("path", READ_ON_THEIR_OWN, ids=name_of)
def test_names_that_examples_import_are_there(path):
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    for block in blocks:
        for node in ast.walk(ast.parse(block)) if "await" not in block else []:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paceline"):
                module = import_module(node.module or "")
                assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)


@pytest.mark.weights
def test_the_guide_to_clients_saves_a_tokenizer_that_transformers_reads(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    [saving, *_] = re.findall(r"^```python\n(.*?)^```", (DOCS / "clients.md").read_text(), re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    exec(saving, {})
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "tok")
    assert read.decode(read("Name a river.")["input_ids"]) == "Name a river."


def test_every_trait_of_a_drafter_is_in_its_table():
    traits = re.search(r"^## Traits\n(.*?)^## ", (ROOT / "docs/drafters.md").read_text(), re.MULTILINE | re.DOTALL)
    assert traits is not None
    told = set(re.findall(r"^\| `(\w+)` \|", traits[1], re.MULTILINE))
    assert told == {field.name for field in fields(DrafterTraits)}


def test_methods_that_the_guide_to_drafters_names_are_those_of_the_protocols():
    page = (ROOT / "docs/adding-a-drafter.md").read_text()
    named = set(re.findall(r"`(\w+)\([a-z_, ]*\)(?: -> [^`]*)?`", page))
    methods = {name for protocol in (Drafter, ReadingDrafter) for name in vars(protocol) if not name.startswith("_")}
    assert "read_along" in named and named <= methods
