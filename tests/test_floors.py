"""The house: which room may import from which (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import gdpo_verl

ROOT = Path(gdpo_verl.__file__).parent
FILES = [path for path in ROOT.rglob("*.py") if "recipes" not in path.parts]

FLOORS = (
    ("cli",),
    ("doctor", "dry_run"),
    ("check_reward",),
    ("evaluate", "policy", "explain"),
    ("run",),
    ("tasks", "report"),
    ("plugin", "trl"),  # what runs inside a trainer needs none of the commands above
    ("rundir",),
    ("reward_dicts",),
    ("config",),
    ("diagnostics",),
    ("rewards",),
    ("sandbox",),
    ("advantage",),
    ("conformance", "cpu", "start"),
    ("child_process", "deaths", "distinct", "files", "hooks", "text", "upstream", "__init__"),
)
FLOOR = {room: number for number, rooms in enumerate(reversed(FLOORS)) for room in rooms}
FOREIGN = {"verl", "ray", "hydra", "vllm", "transfer_queue"}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Every module that the file imports, at its top or in a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports() -> Iterator[tuple[Path, str]]:
    """Each file with each room of ours that it imports from."""
    for path in ROOT.rglob("*.py"):
        for name in imports(path):
            package, _, inner = name.partition(".")
            if package == "gdpo_verl":
                room = inner.split(".")[0]
                yield path, room if room in FLOOR else "__init__"


def test_every_room_has_a_floor() -> None:
    assert {room_of(path) for path in ROOT.rglob("*.py")} == set(FLOOR)


def test_no_import_goes_up_or_to_another_room_of_the_same_floor() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {room}"
        for path, room in own_imports()
        if room != room_of(path)
        and room_of(path) != "__init__"  # the public functions of `advantage`, when asked for
        and FLOOR[room] >= FLOOR[room_of(path)]
    ]
    assert not wrong


def test_files_import_each_other_in_no_circle() -> None:
    module = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in FILES}
    module |= {name.removesuffix(".__init__"): path for name, path in module.items()}

    def file_of(name: str) -> Path | None:
        while name and name not in module:
            name = name.rpartition(".")[0]
        return module.get(name)

    graph = {path: {file_of(name) for name in imports(path)} - {None, path} for path in FILES}
    # `gdpo_verl` hands out the public functions of `advantage` when they are asked for.
    graph[ROOT / "__init__.py"] = set()
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


def test_the_pure_rooms_know_nothing_of_the_stack() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in ROOT.rglob("*.py")
        if room_of(path) in ("advantage", "diagnostics", "rewards", "sandbox")
        for name in imports(path)
        if name.split(".")[0] in FOREIGN
    ]
    assert not wrong
