"""The import rule: subpackages in order, no library code imports `lab`, no import cycle."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import gdpo_verl
from gdpo_verl import recipes

ROOT = Path(gdpo_verl.__file__).parent
# Next to the package in a clone, inside it in a wheel.
RECIPES = Path(recipes.__file__).parent
PACKAGE = [path for path in ROOT.rglob("*.py") if RECIPES not in path.parents]
FILES = [*PACKAGE, *RECIPES.rglob("*.py")]

# A subpackage imports from itself and from those before it. The last one is `lab`, and the folders
# of recipes belong to it.
SUBPACKAGES = (
    "names",
    "distinct",
    "conformance",
    "advantage",
    "config",
    "diagnostics",
    "reward_dicts",
    "sandbox",
    "rewards",
    "plugin",
    "cpu",
    "grpo_trainer",
    "trl",
    "swift",
    "lab",
)
PURE = SUBPACKAGES[: SUBPACKAGES.index("plugin")]
STACK = {"hydra", "ray", "transfer_queue", "verl", "vllm"}


def place_of(path: Path) -> Path:
    """Return the path of a file inside the package, as in a wheel."""
    if RECIPES in path.parents:
        return Path("recipes", path.relative_to(RECIPES))
    return path.relative_to(ROOT)


def subpackage_of(path: Path) -> str:
    subpackage = place_of(path).parts[0].removesuffix(".py")
    return "lab" if subpackage == "recipes" else subpackage


def imports(path: Path) -> Iterator[str]:
    """Yield every module that the file imports, at its top or in a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages_imported(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def subpackages_imported(path: Path) -> Iterator[str]:
    for name in imports(path):
        package, *inner = name.split(".")
        if package == "gdpo_verl" and inner and inner[0] in (*SUBPACKAGES, "recipes"):
            yield "lab" if inner[0] == "recipes" else inner[0]


def test_each_file_is_in_a_room():
    assert {subpackage_of(path) for path in FILES} == {*SUBPACKAGES, "__init__"}


def test_no_room_imports_from_a_later_one():
    for path in FILES:
        if path == ROOT / "__init__.py":  # imports the public functions when they are used
            continue
        earlier = SUBPACKAGES[: SUBPACKAGES.index(subpackage_of(path)) + 1]
        assert set(subpackages_imported(path)) <= set(earlier), place_of(path)


def test_files_import_each_other_in_no_circle():
    module = {
        ".".join(("gdpo_verl", *place_of(path).with_suffix("").parts)): path for path in FILES
    }
    module |= {name.removesuffix(".__init__"): path for name, path in module.items()}

    def file_of(name: str) -> Path | None:
        while name and name not in module:
            name = name.rpartition(".")[0]
        return module.get(name)

    graph = {}
    for path in FILES:
        if path != ROOT / "__init__.py":
            imported = {file_of(name) for name in imports(path)}
            graph[path] = imported - {None, path}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


def test_what_runs_outside_verl_knows_nothing_of_the_stack():
    for path in FILES:
        if subpackage_of(path) in PURE:
            assert not packages_imported(path) & STACK, place_of(path)


def test_conformance_needs_the_standard_library_alone():
    for path in FILES:
        if subpackage_of(path) == "conformance":
            assert packages_imported(path) <= {*sys.stdlib_module_names, "gdpo_verl"}, path
