"""Pages of the site that are generated: the package's layers, the command reference, and the tutorial's output."""

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools" / "docs"))

import commands
import house
import tutorial


@pytest.fixture(scope="module")
def subpackages():
    return house.subpackages()


def test_the_house_has_every_subpackage_once(subpackages):
    names = [name for layer in house.layers() for name in layer]
    assert sorted(names) == sorted(subpackages)


def test_numbers_in_the_matrix_count_importing_modules():
    subpackages = {
        "high": house.Subpackage("high", 3, {"low": 2}, ()),
        "low": house.Subpackage("low", 1, {}, ("numpy",)),
    }
    drawn = house.matrix([["high"], ["low"]], subpackages)
    assert re.findall("<title>(.*?)</title>", drawn) == ["2 of 3 modules of high import low"]
    assert "\n\n" not in drawn


def test_an_import_upwards_would_be_drawn_below_the_diagonal():
    subpackages = {"high": house.Subpackage("high", 1, {}, ()), "low": house.Subpackage("low", 1, {"high": 1}, ())}
    (x, y) = re.search(r'class="hit" x="(\d+)" y="(\d+)"', house.matrix([["high"], ["low"]], subpackages)).groups()
    assert int(x) < int(y)


def test_imports_are_those_of_the_source(subpackages):
    assert subpackages["errors"].imports == {}
    assert subpackages["theory"].imports["errors"] > 1
    assert "torch" in subpackages["models"].libraries
    assert "os" not in {library for subpackage in subpackages.values() for library in subpackage.libraries}


def test_siblings_and_contracts_are_read_from_pyproject(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[[tool.importlinter.contracts]]\nname = "x"\ntype = "layers"\nlayers = ["p.a", "p.b | p.c"]\n'
        '[[tool.importlinter.contracts]]\nname = "Within"\ntype = "layers"\nlayers = ["p.a.d", "p.a.e | p.a.f"]\n'
        '[[tool.importlinter.contracts]]\nname = "One place"\ntype = "forbidden"\n'
        'source_modules = ["paceline.a", "paceline.b.c", "paceline.b.d"]\nforbidden_modules = ["ray"]\n'
        'ignore_imports = ["paceline.b.e -> ray"]\n'
    )
    assert house.layers(tmp_path) == [["a"], ["b", "c"]]
    assert (
        house.contract_list(tmp_path) == "- **Within.** From high to low: `d`, `e` beside `f`.\n"
        "- **One place.** `a`, `b` (2 modules of it) may not import `ray`, except in `b.e`.\n"
    )


def test_every_command_is_in_the_reference():
    from paceline.cli.main import COMMANDS, GROUPS

    text = commands.reference()
    for name in [name for names in (*COMMANDS.values(), *GROUPS.values()) for name in names]:
        assert f"(#paceline-{name}): " in text
        assert f"\n## `paceline {name}`\n" in text


def test_the_page_of_commands_has_them_all_for_who_reads_it_unbuilt():
    assert commands.overview() in (Path(commands.__file__).parents[2] / "docs" / "cli.md").read_text(), (
        f"docs/cli.md should have this table:\n{commands.overview()}"
    )


def test_a_tutorial_keeps_its_commands_and_gets_their_output(tmp_path):
    page = "# T\n\n```console\n$ x=2; touch here\n$ echo $((x \\\n> + 1)); ls\nold\n```\n\n$ not a block\n"
    shell = tutorial.Shell(str(tmp_path))
    new = tutorial.played(page, shell)
    shell.close()
    assert new == page.replace("old\n", "3\nhere\n")
