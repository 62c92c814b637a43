"""IFEval's published checkers (package if-verifiable), and the worker that asks them.

A constraint's arguments are texts and numbers, never patterns. Checkers that take quadratic time
on some texts have a linear one here; for what else may hang, `instructions` asks them in a process
with a deadline.
"""

from __future__ import annotations

import importlib
import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache
from string import ascii_letters
from typing import Any

from gdpo_verl.rewards.deadline import serve_questions

REQUIREMENTS = ("if-verifiable==0.1.2", "wordllama==0.4.0.post1")
INSTALL = f"pip install {' '.join(REQUIREMENTS)}"

_FEWEST_LETTERS = 20  # of fewer, only the script is read
# The scripts, by their names in Unicode, of langdetect's languages that are not written in Latin.
_SCRIPTS = """
ARABIC ar fa ur
BENGALI bn
CJK zh-cn zh-tw
CJK HIRAGANA KATAKANA ja
CYRILLIC bg mk ru uk
DEVANAGARI hi mr ne
GREEK el
GUJARATI gu
GURMUKHI pa
HANGUL ko
HEBREW he
KANNADA kn
MALAYALAM ml
TAMIL ta
TELUGU te
THAI th
"""
# Address space of the worker: what NLTK imports takes 1.5 GB of it, most of it never touched.
_MEMORY_BYTES = 4 * 2**30
_LISTS = ("keywords", "forbidden_words")
_QUOTES = '"'
# "don't", "well-known", "1,000", "3:30" and "p.m." are one word each.
_WITHIN_WORDS = r"(?<=\w)['’-](?=\w)|(?<=\d)[.,:/–](?=\d)|(?<=\b\w)\.(?=\w\b)"


def is_followed(name: str, options: Mapping[str, Any], text: str) -> bool | None:
    """Return whether a text follows a constraint; None where no checker can judge it.

    Whether one can is the same for every text. A text without a word follows nothing.

    Args:
      name: the id of IFEval's instruction, as in ``punctuation:no_comma``.
      options: its arguments; None stands for one that it does not have, as in IFEval's rows.
    """
    if name not in registry():
        return None
    text = plain_text(text)
    checker = registry()[name](name)
    try:
        arguments = {
            key: _literal(key, value) for key, value in options.items() if value is not None
        }
        if set(arguments) != set(checker.get_instruction_args_keys()):
            return None
        checker.build_description(**arguments)
        if "nth_paragraph" in arguments:
            last = arguments["num_paragraphs"]
            if not 0 < arguments["nth_paragraph"] <= last:
                return None
        if name == "length_constraints:number_words":
            text = re.sub(_WITHIN_WORDS, "", text)
        if name in _OWN:
            followed = _OWN[name](options, text)
        else:
            followed = bool(checker.check_following(text))
        return followed and _has_word(text)  # signs alone are no text
    except RecursionError:  # brackets without an end, where JSON is asked for
        return False
    except (TypeError, ValueError, AttributeError, LookupError):  # bad arguments, no data of NLTK's
        return None


@cache
def registry() -> dict[str, Any]:
    """IFEval's checkers by the id of their instruction."""
    # It draws; the same text is to get the same verdict.
    import_package("langdetect").DetectorFactory.seed = 0
    return dict(import_package("if_verifiable.ifeval.instructions_registry").INSTRUCTION_DICT)


def import_package(name: str) -> Any:
    """A module of the packages that the rewards of instructions need."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"instructions: expected the packages {' and '.join(REQUIREMENTS)} with what they "
            f"need, found no {error.name}. Install them with: {INSTALL}"
        ) from error


def plain_text(text: str) -> str:
    """A text without what no reader sees: other ends of lines, runs of empty lines, half signs."""
    text = text.encode(errors="replace").decode().replace("\r\n", "\n").strip()
    return re.sub(r"\n\s+\n", "\n\n", text)


def reads_as(language: str, text: str) -> bool:
    """Return whether a text may be in a language, by its code in langdetect."""
    langdetect = import_package("langdetect")
    letters = [letter for letter in text if letter.isalpha()]
    if len(letters) < _FEWEST_LETTERS:
        scripts = [line for line in _SCRIPTS.splitlines() if language in line.split()] or ["LATIN"]
        names = [unicodedata.name(letter, "?").split()[0] for letter in letters]
        fitting = [name for name in names if name in scripts[0].split()]
        return 2 * len(fitting) >= len(letters)
    try:
        # Of a few words the likeliest language is often another one than theirs.
        return any(guess.lang == language for guess in langdetect.detect_langs(text))
    except langdetect.LangDetectException:  # addresses alone
        return True


def _literal(key: str, value: Any) -> Any:
    """An argument as the checker takes it; raises ValueError where the checker would draw one."""
    texts = value if isinstance(value, list) else [value]
    fits = bool(texts) and isinstance(value, list) == (key in _LISTS)
    for text in texts:
        if isinstance(text, str):
            fits = fits and bool(text.strip(_QUOTES + " \n"))
        else:
            fits = fits and text >= 0
    if key == "letter":
        fits = fits and len(value) == 1 and value in ascii_letters
    if not fits:
        raise ValueError(f"{key}: expected another value, found {value!r}")
    # These are parts of a pattern.
    if key in _LISTS:
        return list(map(re.escape, value))
    if key == "keyword":
        return re.escape(value.strip())
    if key == "prompt_to_repeat":
        return plain_text(value)
    if key == "end_phrase":  # the checker takes quotation marks off the text's end
        return value.strip().strip(_QUOTES)
    if key == "first_word":  # up to its punctuation, as the checker reads the text's
        return re.split("[.,?!'\"]", value.strip().lstrip("'\""))[0]
    return value


def _has_postscript(options: Mapping[str, Any], text: str) -> bool:
    # "P. S." is "P.S.".
    pattern = re.escape(options["postscript_marker"].strip()).replace(r"\.", r"\.\s?")
    # PS: is not in tips:
    return re.search(rf"(?<!\w){pattern}\W*\w", text, re.IGNORECASE) is not None


def _has_sections(options: Mapping[str, Any], text: str) -> bool:
    # RLVR-IFeval's "Section: X", where X may be anything; or "Section 1", which may be mentioned
    # again. As many as were asked for.
    marker = options["section_spliter"].strip()
    number = "" if marker.endswith(":") else r"\s?(\d+)"
    heads = re.findall(rf"(?<!\w){re.escape(marker)}{number}", text)
    sections = set(heads) if number else heads
    return bool(len(sections) == options["num_sections"])


def _has_paragraphs(options: Mapping[str, Any], text: str) -> bool:
    # Between them stands *** or a line * * *; ***bold*** is no divider.
    dividers = r"(?m)(?<![\w*])\*\*\*(?!\S)|^[^\S\n]*\* \* \*[^\S\n]*$"
    paragraphs = re.split(dividers, text)
    return bool(sum(map(_has_word, paragraphs)) == options["num_paragraphs"])


def _has_word(text: str) -> bool:
    return re.search(r"\w", text) is not None


# In place of checkers that know words in capitals worse, see parts of words, or take quadratic time
# on repeats of one sign and are pleased by signs without a word.
_OWN: Mapping[str, Callable[[Mapping[str, Any], str], bool]] = {
    "change_case:english_capital": lambda _, text: text.isupper() and reads_as("en", text.lower()),
    "change_case:english_lowercase": lambda _, text: text.islower() and reads_as("en", text),
    "language:response_language": lambda options, text: reads_as(options["language"], text),
    "detectable_content:number_placeholders": lambda options, text: (
        len(re.findall(r"\[[^\w\[\]\n]*\w[^\[\]\n]*\]", text)) >= options["num_placeholders"]
    ),
    "detectable_format:number_bullet_lists": lambda options, text: (
        len(re.findall(r"(?m)^[^\S\n]*[*-] .*\w", text)) == options["num_bullets"]
    ),
    "detectable_format:title": lambda _, text: any(
        map(_has_word, re.findall("(?m)^(?:(?!<<).)*<<(.*)>>", text))
    ),
    "detectable_content:postscript": _has_postscript,
    "detectable_format:multiple_sections": _has_sections,
    "length_constraints:number_paragraphs": _has_paragraphs,
}


def verdicts(question: tuple[list[str], list[dict[str, Any]], str]) -> list[bool | None]:
    """The verdict on each constraint: names, options, and the text."""
    names, options, text = question
    judged = []
    for name, arguments in zip(names, options, strict=True):
        judged.append(is_followed(name, arguments, text))
    return judged


if __name__ == "__main__":
    # Imports and languages, before the first deadline runs.
    registry()
    reads_as("en", "the first text takes longest, for its languages are read")
    serve_questions(verdicts, memory=_MEMORY_BYTES)
