"""The import rule: subpackages in order, no library code imports `lab`, no import cycle.

The name of a module in a string counts as an import as well: as an argument of `import_module` or
`templates`, in the command of a process (``python -m``), or in a configuration (``pkg://``).
"""

import ast
import re
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import gdpo_verl
from gdpo_verl import recipes

ROOT = Path(gdpo_verl.__file__).parent
# The recipes are next to the package in a clone, and inside the package in a wheel.
RECIPES = Path(recipes.__file__).parent
PACKAGE = [path for path in ROOT.rglob("*.py") if RECIPES not in path.parents]
FILES = [*PACKAGE, *RECIPES.rglob("*.py")]

# A subpackage imports only from itself and from the subpackages before it. The folders of recipes
# belong to the last one, `lab`.
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
    "upstream",
    "plugin.__init__",
    "plugin.contract",
    "plugin.shared_prompts",
    "plugin.watch",
    "plugin.checks",
    "plugin.step",
    "plugin.entry",
    "cpu",
    "grpo_trainer",
    "trl",
    "swift",
    "lab",
)
PURE = SUBPACKAGES[: SUBPACKAGES.index("upstream")]
STACK = {"hydra", "ray", "transfer_queue", "verl", "vllm"}

# A string that consists of a module's name, or the beginning of an f-string with a module's name.
MODULE_IN_STRING = re.compile(r"(?:pkg://)?(gdpo_verl(?:\.\w+)+)\.?(?::\w+)?")
# Files that import modules by the value of a variable, and the modules of this package among them.
IMPORTS_BY_VARIABLE = {
    "advantage/variants.py": (),  # the module of a user's function
    "cpu/workers.py": (),  # what the command line names
    "recipes/tool_turns/tools.py": (),  # the module of a user's tool
    "rewards/bfcl.py": (),  # modules of bfcl_eval
    "rewards/instruction_checkers.py": (),  # modules of if_verifiable and langdetect
    "sandbox/child.py": (),  # what the tested programs may need
}


def place_of(path):
    """Return the path of a file inside the package, as in a wheel."""
    if RECIPES in path.parents:
        return Path("recipes", path.relative_to(RECIPES))
    return path.relative_to(ROOT)


def module_of(path):
    return ".".join(("gdpo_verl", *place_of(path).with_suffix("").parts))


def subpackage_of(module):
    """Return the subpackage of a module's name; None for the package itself."""
    name = module.removeprefix("gdpo_verl.")
    if name.split(".")[0] == "recipes":
        return "lab"
    for subpackage in SUBPACKAGES:
        if name == subpackage or name.startswith(f"{subpackage}."):
            return subpackage
    return None


def docstrings(tree):
    """Return the strings that are statements, which are documentation."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def imports_of(source):
    """Yield every module that a source imports: at its top, in a function, or by a string."""
    tree = ast.parse(source)
    documentation = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and node not in documentation:
            named = MODULE_IN_STRING.fullmatch(str(node.value))
            if named:
                yield named[1]


@cache
def imports(path):
    """Return every module that a file imports; for a package also those of its YAML files."""
    imported = set(imports_of(path.read_text(encoding="utf-8")))
    imported.update(IMPORTS_BY_VARIABLE.get(str(place_of(path)), ()))
    if path.name == "__init__.py":
        for configuration in path.parent.glob("*.yaml"):
            text = configuration.read_text(encoding="utf-8")
            imported.update(re.findall(r"gdpo_verl(?:\.\w+)+", text))
    return imported


def packages_imported(path):
    return {name.split(".")[0] for name in imports(path)}


def cycle_in(graph):
    """Return the files of a cycle, or an empty list."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [str(place_of(path)) for path in error.args[1]]
    return []


def import_graph():
    """Return the files that each file imports."""
    files = {}
    for path in FILES:
        files[module_of(path)] = path
        files[module_of(path).removesuffix(".__init__")] = path

    def file_of(name):
        while name and name not in files:
            name = name.rpartition(".")[0]
        return files.get(name)

    graph = {}
    for path in FILES:
        if path != ROOT / "__init__.py":  # imports the public functions when they are used
            imported = {file_of(name) for name in imports(path)}
            graph[path] = imported - {None, path, ROOT / "__init__.py"}
    return graph


def test_each_file_belongs_to_a_subpackage():
    found = {subpackage_of(module_of(path)) for path in FILES if path != ROOT / "__init__.py"}
    assert found == set(SUBPACKAGES)


def test_no_subpackage_imports_from_a_later_one():
    for path in FILES:
        if path == ROOT / "__init__.py":  # imports the public functions when they are used
            continue
        last = SUBPACKAGES.index(subpackage_of(module_of(path)))
        imported = {subpackage_of(name) for name in imports(path) if name.startswith("gdpo_verl.")}
        assert imported <= {*SUBPACKAGES[: last + 1], None}, place_of(path)


def test_imports_have_no_cycle():
    assert cycle_in(import_graph()) == []


@pytest.mark.parametrize(
    "source",
    [
        "def later():\n    from gdpo_verl.cpu import entry",
        "importlib.import_module('gdpo_verl.cpu.entry')",
        "templates('gdpo_verl.cpu.entry')",
        "command = [sys.executable, '-m', 'gdpo_verl.cpu.entry']",
        "path = 'pkg://gdpo_verl.cpu.entry:activate'",
        "name = f'gdpo_verl.cpu.entry.{part}'",
    ],
)
def test_a_module_name_in_a_string_counts_as_an_import(source):
    assert "gdpo_verl.cpu.entry" in set(imports_of(source))
    assert not set(imports_of('def documented():\n    """gdpo_verl.cpu.entry"""'))


def names_no_module(node):
    """Return whether a call imports a module whose name is not a literal."""
    if not isinstance(node, ast.Call):
        return False
    function = ast.unparse(node.func).rpartition(".")[2]
    if function not in ("import_module", "__import__", "run_module"):
        return False
    return not isinstance(node.args[0], ast.Constant)


def test_only_known_files_import_a_module_by_the_value_of_a_variable():
    by_variable = set()
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(names_no_module(node) for node in ast.walk(tree)):
            by_variable.add(str(place_of(path)))
    assert by_variable == set(IMPORTS_BY_VARIABLE)


def test_templates_are_in_the_folder_of_the_module_that_renders_them():
    templates = list(ROOT.rglob("*.j2"))
    assert templates
    for path in (*PACKAGE, *templates):
        for name in re.findall(r"""["']([\w.]+\.j2)["']""", path.read_text(encoding="utf-8")):
            assert (path.parent / name).is_file(), (place_of(path), name)
    for path in PACKAGE:
        calls = re.findall(r"\btemplates\((.*?)\)", path.read_text(encoding="utf-8"))
        assert set(calls) <= {"__file__", "module_file: str"}, place_of(path)


def test_subpackages_before_upstream_import_neither_verl_nor_ray_nor_vllm():
    for path in FILES:
        if subpackage_of(module_of(path)) in PURE:
            assert not packages_imported(path) & STACK, place_of(path)


def test_conformance_imports_only_the_standard_library():
    for path in FILES:
        if subpackage_of(module_of(path)) == "conformance":
            assert packages_imported(path) <= {*sys.stdlib_module_names, "gdpo_verl"}, path
