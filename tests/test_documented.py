"""Every public function has types and a docstring, read from the source: nothing is imported for it.

Left out are bodies that a compiler reads (`COMPILED`, and stand-ins that only compiled code may call): their types are
Numba's, inferred at each call. A method that a protocol documents needs no second docstring.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "paceline"
COMPILED = {"njit", "kernel", "inner", "entry", "intrinsic", "overload", "register_model"}
UNDOCUMENTED: set[str] = set()
"""Functions that are left out one by one, as ``file.py: Class.name``, each with its reason beside it."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def decorators(node: Function | ast.ClassDef) -> set[str]:
    """Last names of the decorators: `njit` for ``@numba.njit(nogil=True)``."""
    bare = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return {ast.unparse(each).rpartition(".")[2] for each in bare}


def is_public(node: Function) -> bool:
    """Whether people call it, rather than its own module or a compiler."""
    return (node.name == "__init__" or not node.name.startswith("_")) and not decorators(node) & COMPILED


def public_definitions(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """(dotted name, node) of public classes, functions, methods and constructors that people call."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield owner + node.name, node
            yield from public_definitions(node.body, f"{owner}{node.name}.")
        elif isinstance(node, Function) and is_public(node):
            yield owner + node.name, node


def untyped(node: Function, is_method: bool) -> list[str]:
    """Parameters without a type, and ``return``."""
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args]
    bound = is_method and "staticmethod" not in decorators(node)
    rest = [each for each in (arguments.vararg, arguments.kwarg) if each]
    names = [each.arg for each in [*named[bound:], *arguments.kwonlyargs, *rest] if each.annotation is None]
    return names + ["return"] * (node.returns is None)


@cache
def protocol_methods() -> set[str]:
    """Names of methods that some protocol or abstract class of the package documents."""
    classes = [node for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
               if isinstance(node, ast.ClassDef)]  # fmt: skip
    methods = [
        node for each in classes for node in each.body
        if isinstance(node, Function)
        and ("Protocol" in map(ast.unparse, each.bases) or "abstractmethod" in decorators(node))
    ]  # fmt: skip
    return {node.name for node in methods if ast.get_docstring(node)}


def stand_ins(tree: ast.Module) -> set[str]:
    """Names that ``@overload(name)`` gives a compiled body."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "overload"]
    return {ast.unparse(call.args[0]) for call in calls}


def complaints(source: str, inherited: set[str]) -> Iterator[str]:
    """What is missing in a module's public definitions, one line each."""
    tree = ast.parse(source)
    compiled = stand_ins(tree)
    for name, node in public_definitions(tree.body):
        owner, _, last = name.rpartition(".")
        documented = ast.get_docstring(node) or last == "__init__" or (owner and last in inherited)
        if not documented:
            yield f"{name}: no docstring"
        if isinstance(node, Function) and name not in compiled and (missing := untyped(node, bool(owner))):
            yield f"{name}: no types for {', '.join(missing)}"


@pytest.mark.parametrize("room", sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")}))
def test_public_functions_have_types_and_docstrings(room):
    inherited = protocol_methods()
    paths = [PACKAGE / room] if room.endswith(".py") else sorted((PACKAGE / room).rglob("*.py"))
    found = [
        f"{path.relative_to(PACKAGE)}: {each}" for path in paths for each in complaints(path.read_text(), inherited)
    ]
    assert [each for each in found if each.rpartition(":")[0] not in UNDOCUMENTED] == []


def test_what_is_missing_is_found():
    source = """
def bare(a, *, b: int = 0): "doc"
def _private(a): ...
@njit(nogil=True)
def compiled(a): ...
class Shown:
    "doc"
    def told(self) -> None: ...
    def known(self) -> None: ...
    @staticmethod
    def free(a) -> int: "doc"
class Silent: ...
"""
    assert list(complaints(source, {"known"})) == [
        "bare: no types for a, return",
        "Shown.told: no docstring",
        "Shown.free: no types for a",
        "Silent: no docstring",
    ]
