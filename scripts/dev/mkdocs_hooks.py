"""Add pages from outside docs/, built pages, equations and examples to the site of mkdocs.yml."""

from __future__ import annotations

import argparse
import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from gdpo_verl.lab import cli

ROOT = Path(__file__).parents[2]
RECIPES = {
    path.relative_to(ROOT).as_posix(): f"recipes/{path.parent.name}.md"
    for path in sorted(ROOT.glob("recipes/*/README.md"))
}
# The place of a page in the repository, and on the site.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    **RECIPES,
}
# The page that `gdpo-verl explain` writes.
EXPLAIN = ROOT / "build/explain_page.html"
LINK = re.compile(r"(\]\(|src=\")([^)\s#:\"]+)(?=[)\s#\"])")
# Where the page of the command line has the options of every command.
HELP = "<!-- help -->"
# A sentence with a link to the built page: a comment in the repository, where there is none.
ON_THE_SITE = re.compile(r"<!-- on the site: (.*?) -->", re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Convert fences named `math` from LaTeX, as on GitHub, to MathML, which browsers show."""
    fences = [{"name": "math", "class": "math", "format": _equation}]
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": fences}
    config.markdown_extensions.append(Examples())
    # The pages of recipes are found, so a new one needs no line in mkdocs.yml.
    recipes = next(part["Recipes"] for part in config.nav or [] if "Recipes" in part)
    recipes.extend(RECIPES.values())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    command = [sys.executable, "-m", "gdpo_verl.lab.cli", "explain", "--static", str(EXPLAIN)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    files.append(File.generated(config, EXPLAIN.name, abs_src_path=str(EXPLAIN)))
    return files


def _command_help() -> str:
    """Write a section for each command, with the text of its `--help`."""
    os.environ["COLUMNS"] = "88"
    parser = cli._parser()
    commands = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    sections = [
        f"## gdpo-verl {name}\n\n```text\n{command.format_help()}```\n"
        for name, command in commands.choices.items()
    ]
    return "\n".join(sections)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Convert links between files of the repository to links between pages of the site."""
    if HELP in markdown:
        markdown = markdown.replace(HELP, _command_help())
    markdown = ON_THE_SITE.sub(r"\1", markdown)
    here = Path(str(page.file.abs_src_path)).parent
    folder = posixpath.dirname(page.file.src_uri)

    def rewrite(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        if not target.is_relative_to(ROOT):
            return link[0]  # mkdocs reports what is wrong
        source = target.relative_to(ROOT).as_posix()
        place = OUTSIDE.get(source, source.removeprefix("docs/"))
        return link[1] + posixpath.relpath(place, folder or ".")

    return LINK.sub(rewrite, markdown)


def _equation(source: str, *_: Any, **__: Any) -> str:
    return convert(source, display="block")


class Examples(Extension):
    """Treat `>>>` as the beginning of Python code up to an empty line, not as a quotation."""

    def extendMarkdown(self, md: Markdown) -> None:
        # Between the normalisation of white space (30) and the fences (25).
        md.preprocessors.register(_FenceExamples(md), "examples", 27)


class _FenceExamples(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        result: list[str] = []
        fenced, closing = False, ""
        for line in lines:
            text = line.lstrip()
            if text.startswith("```"):
                fenced = not fenced
            elif text.startswith(">>> ") and not fenced and not closing:
                closing = line.removesuffix(text) + "```"
                result.append(closing + "pycon")
            elif not text and closing:
                result.append(closing)
                closing = ""
            result.append(line)
        return [*result, closing] if closing else result
