"""The examples in docstrings, README and docs run and print what they say."""

import doctest
import importlib
from pathlib import Path

import documents
import pytest

import gdpo_verl

PACKAGE = Path(gdpo_verl.__file__).parent


def with_examples(files):
    return [path for path in sorted(files) if ">>> " in path.read_text(encoding="utf-8")]


# Modules are selected by their text. Modules without examples may need verl, Ray or vLLM, and are
# not imported.
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in with_examples([*PACKAGE.rglob("*.py")])
]
PAGES = with_examples(documents.PAGES)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0, "'>>> ' stands in the file, but in no docstring"
    assert result.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_in_docs_are_true(page):
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0
