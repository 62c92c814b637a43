"""Compare the parts of other packages that we depend on with their installed source.

The source is parsed and not imported, so the result is known before any function is wrapped.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Dependency:
    """A name of another package that we wrap, call or override.

    Attributes:
      name: the name of a function, a class or a variable of a module, or Class.method.
      parameters: the parameters of the function in order, as our function takes them or as we pass
        them. After "..." the function may have further parameters.
      reads: names that must occur in the source, because we read them.
      writes: texts that must occur in the strings of the source, because we look for them in what
        the function writes: lines of a log, or names of files.
    """

    name: str
    parameters: str = "..."
    reads: str = ""
    writes: Sequence[str] = ()


Contract = Mapping[str, Sequence[Dependency]]
"""The dependencies on a package, by the name of the module inside the package."""


def source_of(package: str) -> Path:
    """Return the directory of an installed package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def violations(root: Path, contract: Contract, optional: Container[str] = ()) -> list[str]:
    """Return a text for each dependency that the package in `root` does not meet.

    The modules in `optional` may be missing, because then there is nothing to wrap.
    """
    return [
        f"{root.name}.{module}.{dependency.name} {problem}"
        for module, dependencies in contract.items()
        if module not in optional or _module(root.joinpath(*module.split("."))) is not None
        for dependency in dependencies
        for problem in _compare(dependency, _find(module, dependency.name, root))
    ]


def _compare(dependency: Dependency, node: ast.AST | None) -> Iterator[str]:
    """Yield what is wrong with the definition of a name; `node` is None if there is none."""
    if node is None:
        yield "is not there"
        return
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = node.args
        actual = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        expected = dependency.parameters.split()
        # Without the dots, our own function has exactly these parameters, so that the package must
        # not add one.
        same = actual == expected
        if expected[-1:] == ["..."]:
            first = len(expected) - 1
            same = actual[:first] == expected[:first]
        if not same:
            yield f"takes ({', '.join(actual)}), expected ({', '.join(expected)})"
    words = set(_words(node))
    missing = sorted(set(dependency.reads.split()) - words)
    if missing:
        yield f"does not use {', '.join(missing)}"
    for text in dependency.writes:
        if not any(text in word for word in words):
            yield f"does not write {text!r}"


def _find(module: str, name: str, root: Path) -> ast.AST | None:
    """Find the definition of a dotted name, such as Class.method, in a module."""
    first, *inner = name.split(".")
    node = _definition(module, first, root)
    for part in inner:
        body = getattr(node, "body", ())
        node = next((statement for statement in body if part in _defines(statement)), None)
    return node


def _definition(module: str, name: str, root: Path) -> ast.AST | None:
    """Find the definition of a name in a module, or in the module that it is imported from."""
    for node in getattr(_module(root.joinpath(*module.split("."))), "body", ()):
        if name in _defines(node):
            return node  # type: ignore[no-any-return]
        if isinstance(node, ast.ImportFrom):
            # The __init__ of a package imports names from its modules. A name that has moved to
            # another module is often imported at its old place.
            package = module.split(".")[: -node.level] if node.level else []
            source = ".".join([*package, node.module or ""])
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return _definition(source.removeprefix(f"{root.name}."), alias.name, root)
    return None


@cache
def _module(path: Path) -> ast.AST | None:
    """Parse a module or the __init__ of a package; `path` has no suffix."""
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return ast.parse(file.read_text(encoding="utf-8"))
    return None


def _defines(node: ast.AST) -> list[str]:
    """Return the names that a statement defines."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(name)):
            return [name]
    return []


def _words(node: ast.AST) -> Iterator[str]:
    """Yield every name, attribute, keyword and string in a piece of source."""
    for part in ast.walk(node):
        for field in ("id", "attr", "arg", "name", "value"):
            word = getattr(part, field, None)
            if isinstance(word, str):
                yield word
