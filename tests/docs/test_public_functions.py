"""Every public function says what it takes, returns and is for; compiled kernels say it in words only."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "paceline"
COMPILED = ("kernel", "entry", "njit", "overload", "intrinsic")


def bare(source: str) -> Iterator[str]:
    """Public functions without types or docstring; a method of a class with a parent may leave it to the parent."""
    yield from _bare(ast.parse(source).body, None)


def _bare(body: list[ast.stmt], owner: ast.ClassDef | None) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _bare(node.body, node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        if any(word in ast.unparse(decorator) for decorator in node.decorator_list for word in COMPILED):
            continue
        if ast.unparse(node.body[-1]) == "raise NotImplementedError" and ast.get_docstring(node):
            continue  # stands for compiled functions of several types
        arguments = [one for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                     if one.arg not in ("self", "cls")]  # fmt: skip
        is_typed = node.returns is not None and all(one.annotation is not None for one in arguments)
        inherits = owner is not None and bool(owner.bases)
        if not is_typed or (ast.get_docstring(node) is None and not inherits):
            yield f"{owner.name}.{node.name}" if owner else node.name


def test_public_functions_have_types_and_docstrings() -> None:
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in PACKAGE.rglob("*.py")
        if (names := list(bare(path.read_text(encoding="utf-8"))))
    }
    assert not found


def test_the_check_finds_what_is_missing() -> None:
    assert list(bare("def f(a: int) -> int:\n    return a")) == ["f"]
    assert list(bare("def f(a) -> int:\n    'Says.'")) == ["f"]
    assert list(bare("class A:\n    def f(self, a: int):\n        'Says.'")) == ["A.f"]
    assert list(bare("class A(B):\n    def f(self, a: int) -> int:\n        return a")) == []
    assert list(bare("@kernel\ndef f(a):\n    return a")) == []
