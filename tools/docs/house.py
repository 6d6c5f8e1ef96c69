"""Draws the package's layers: import-linter's contracts from pyproject.toml, and the actual imports.

`write(folder)` writes `stack.svg`, `matrix.svg`, `subpackages.md` and `contracts.md`, which docs/house.md includes. Not
a check: `lint-imports` finds broken contracts.
"""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
WIDTH, BAND, BOX, GAP = 880, 62, 46, 16
"""Pixels of the layers: the picture, a layer with the space below it, a box, the space between boxes."""
CELL, LABEL = 34, 110
"""Pixels of the matrix: a cell, and the space for names at its left and top."""


@dataclass(frozen=True)
class Subpackage:
    """A child of the root package, as the import graph shows it."""

    name: str
    num_modules: int
    imports: dict[str, int]  # other subpackages, and how many modules of this one import them
    libraries: tuple[str, ...]  # third-party packages, sorted


def contracts(root: Path = ROOT) -> list[dict]:
    """The contracts of pyproject.toml, as import-linter reads them."""
    return tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def layers(root: Path = ROOT) -> list[list[str]]:
    """Names of the subpackages, highest layer first, without the root package's name: the first contract of layers."""
    house = next(contract for contract in contracts(root) if contract["type"] == "layers")
    return [_siblings(layer) for layer in house["layers"]]


def _siblings(layer: str) -> list[str]:
    return [name.strip().split(".")[-1] for name in re.split("[|:]", layer)]


def subpackages(package: str = "paceline") -> dict[str, Subpackage]:
    """Every subpackage of `package` with its imports, from the source (nothing of it is run)."""
    graph = grimp.build_graph(package, include_external_packages=True, cache_dir=None)
    children = sorted(child for child in graph.find_children(package) if not child.endswith("__"))  # not __main__
    return {child.split(".")[1]: _subpackage(graph, child) for child in children}


def _subpackage(graph: grimp.ImportGraph, name: str) -> Subpackage:
    modules = {name} | graph.find_descendants(name)
    package, subpackage = name.split(".")
    ours: Counter[str] = Counter()
    libraries: set[str] = set()
    for module in modules:
        targets = graph.find_modules_directly_imported_by(module) - modules
        ours.update({target.split(".")[1] for target in targets if target.startswith(f"{package}.")})
        libraries |= {target.split(".")[0] for target in targets}
    libraries -= {package, *sys.stdlib_module_names}
    return Subpackage(subpackage, len(modules), dict(ours), tuple(sorted(libraries)))


def stack(order: list[list[str]], graph: dict[str, Subpackage]) -> str:
    """The layers as SVG, the highest on top, siblings side by side."""
    parts = [_box(graph[name], *place) for name, place in _places(order).items() if name in graph]
    return _svg(WIDTH, len(order) * BAND, "The layers of subpackages", parts)


def _places(order: list[list[str]]) -> dict[str, tuple[float, float, float]]:
    """Left edge, upper edge and width of every subpackage's box."""
    boxes = {}
    for row, names in enumerate(order):
        width = (WIDTH - 4 - GAP * (len(names) - 1)) / len(names)
        boxes |= {name: (2 + column * (width + GAP), 2 + row * BAND, width) for column, name in enumerate(names)}
    return boxes


def _box(subpackage: Subpackage, x: float, y: float, width: float) -> str:
    count = "1 module" if subpackage.num_modules == 1 else f"{subpackage.num_modules} modules"
    label = f'<text x="{x + width / 2:.0f}" y="{y + 20:.0f}">{escape(subpackage.name)}</text>'
    small = f'<text class="count" x="{x + width / 2:.0f}" y="{y + 37:.0f}">{count}</text>'
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{BOX}" rx="6"/>{label}{small}'


def matrix(order: list[list[str]], graph: dict[str, Subpackage]) -> str:
    """Who imports whom, as SVG: a row per importing one, a column per imported one, modules counted in cells."""
    names = [name for layer in order for name in layer if name in graph]
    size = LABEL + CELL * len(names)
    parts = [_lines(names, number, size) for number in range(len(names))]
    parts += [
        _cell(graph[high], low, row, column)
        for row, high in enumerate(names)
        for column, low in enumerate(names)
        if low in graph[high].imports
    ]
    return _svg(size + 2, size + 2, "Which subpackage imports which", parts)


def _lines(names: list[str], number: int, size: int) -> str:
    at, middle = LABEL + CELL * number, LABEL + CELL * (number + 0.5)
    row = f'<text class="row" x="{LABEL - 10}" y="{middle + 5:.0f}">{names[number]}</text>'
    column = (
        f'<text class="column" transform="translate({middle + 5:.0f} {LABEL - 10}) rotate(-90)">{names[number]}</text>'
    )
    own = f'<rect class="own" x="{at}" y="{at}" width="{CELL}" height="{CELL}"/>'
    return f'{row}{column}{own}<path d="M{LABEL} {at} H{size} M{at} {LABEL} V{size}"/>'


def _cell(subpackage: Subpackage, low: str, row: int, column: int) -> str:
    x, y, count = LABEL + CELL * column, LABEL + CELL * row, subpackage.imports[low]
    says = f"<title>{count} of {subpackage.num_modules} modules of {subpackage.name} import {low}</title>"
    frame = f'<rect class="hit" x="{x + 3}" y="{y + 3}" width="{CELL - 6}" height="{CELL - 6}" rx="4"/>'
    return f'<g>{says}{frame}<text class="count" x="{x + CELL / 2:.0f}" y="{y + CELL / 2 + 4:.0f}">{count}</text></g>'


def _svg(width: int, height: int, label: str, parts: list[str]) -> str:
    """No blank line in it: Markdown would end it there. The colours are the page's, in docs/stylesheets/extra.css."""
    style = f'class="house" style="max-width: {width}px" viewBox="0 0 {width} {height}" role="img" aria-label="{label}"'
    return "\n".join([f"<div>\n<svg {style}>", *parts, "</svg>\n</div>"]) + "\n"


def table(order: list[list[str]], graph: dict[str, Subpackage], root: Path = ROOT) -> str:
    """A Markdown table: what each subpackage is for (its own words), and which libraries it uses."""
    lines = ["| subpackage | what it is for | libraries |", "|---|---|---|"]
    for name in (name for layer in order for name in layer if name in graph):
        subpackage = graph[name]
        cells = (f"`{name}`", _purpose(root / "paceline" / name), _names(subpackage.libraries))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _purpose(path: Path) -> str:
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    words = ast.get_docstring(ast.parse(source.read_text())) or ""
    return words.splitlines()[0].replace("|", "\\|") if words else ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def contract_list(root: Path = ROOT) -> str:
    """The contracts within subpackages, and those that forbid imports, as a Markdown list."""
    _, *within = (contract for contract in contracts(root) if contract["type"] == "layers")
    forbidden = [contract for contract in contracts(root) if contract["type"] == "forbidden"]
    lines = [f"{c['name']}.** From high to low: {_order(c)}." for c in within] + [
        f"{c['name']}.** {_subpackages_of(c)} may not import {_names(c['forbidden_modules'])}{_exceptions(c)}."
        for c in forbidden
    ]
    return "".join(f"- **{line}\n" for line in lines)


def _order(contract: dict) -> str:
    return ", ".join(" beside ".join(f"`{name}`" for name in _siblings(layer)) for layer in contract["layers"])


def _exceptions(contract: dict) -> str:
    allowed = [one.split(" -> ")[0].removeprefix("paceline.") for one in contract.get("ignore_imports", ())]
    return f", except in {_names(allowed)}" if allowed else ""


def _subpackages_of(contract: dict) -> str:
    modules = [module.removeprefix("paceline.") for module in contract["source_modules"]]
    groups: dict[str, list[str]] = {}
    for module in modules:
        groups.setdefault(module.split(".")[0], []).append(module)
    return ", ".join(
        f"`{subpackage}`" + (f" ({len(names)} modules of it)" if "." in names[0] else "")
        for subpackage, names in groups.items()
    )


def write(folder: Path) -> None:
    """Draw into `folder`."""
    order, graph = layers(), subpackages()
    (folder / "stack.svg").write_text(stack(order, graph))
    (folder / "matrix.svg").write_text(matrix(order, graph))
    (folder / "subpackages.md").write_text(table(order, graph))
    (folder / "contracts.md").write_text(contract_list())
