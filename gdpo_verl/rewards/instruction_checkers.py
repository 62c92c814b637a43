"""IFEval's published checkers (package if-verifiable), and the worker that calls them.

The arguments of a constraint are texts and numbers, never regular expressions. Some checkers take
quadratic time on some texts, and are replaced here by checkers that take linear time. Other
checkers may hang, too, so `instructions` calls them in a process with a deadline.
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

# With fewer letters than this, the language is recognised only by its script.
_FEWEST_LETTERS = 20
# The scripts of langdetect's languages that are not written in Latin letters, by their names in
# Unicode.
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
# The limit of the worker's address space. The modules that NLTK imports reserve 1.5 GB of it, and
# use only a small part.
_MEMORY_BYTES = 4 * 2**30
_LISTS = ("keywords", "forbidden_words")
_QUOTES = '"'
# Characters within a word: "don't", "well-known", "1,000", "3:30" and "p.m." are one word each.
_WITHIN_WORDS = r"(?<=\w)['’-](?=\w)|(?<=\d)[.,:/–](?=\d)|(?<=\b\w)\.(?=\w\b)"


def is_followed(name: str, options: Mapping[str, Any], text: str) -> bool | None:
    """Return whether a text follows a constraint; None if no checker can judge the constraint.

    Whether it can be judged does not depend on the text. A text without a word follows no
    constraint.

    Args:
      name: the id of IFEval's instruction, such as ``punctuation:no_comma``.
      options: the arguments of the instruction. As in IFEval's rows, None means that the
        instruction does not have this argument.
      text: the text.
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
        return followed and _has_word(text)  # signs alone are not a text
    except RecursionError:  # JSON was asked for, and the text has endless opening brackets
        return False
    except (TypeError, ValueError, AttributeError, LookupError):
        # The arguments are wrong, or NLTK's data is not installed.
        return None


@cache
def registry() -> dict[str, Any]:
    """Return IFEval's checkers by the id of their instruction."""
    # langdetect draws random numbers. With a fixed seed, the same text always gets the same
    # verdict.
    import_package("langdetect").DetectorFactory.seed = 0
    return dict(import_package("if_verifiable.ifeval.instructions_registry").INSTRUCTION_DICT)


def import_package(name: str) -> Any:
    """Import a module of the packages that the rewards for instructions need."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"instructions: expected the packages {' and '.join(REQUIREMENTS)} with what they "
            f"need, found no {error.name}. Install them with: {INSTALL}"
        ) from error


def plain_text(text: str) -> str:
    """Normalise differences that no reader sees.

    These are line ends of other systems, runs of empty lines, and halves of surrogate pairs.
    """
    text = text.encode(errors="replace").decode().replace("\r\n", "\n").strip()
    return re.sub(r"\n\s+\n", "\n\n", text)


def reads_as(language: str, text: str) -> bool:
    """Return whether a text may be in a language, which is given by its code in langdetect."""
    langdetect = import_package("langdetect")
    letters = [letter for letter in text if letter.isalpha()]
    if len(letters) < _FEWEST_LETTERS:
        scripts = [line for line in _SCRIPTS.splitlines() if language in line.split()] or ["LATIN"]
        names = [unicodedata.name(letter, "?").split()[0] for letter in letters]
        fitting = [name for name in names if name in scripts[0].split()]
        return 2 * len(fitting) >= len(letters)
    try:
        # Any of the guesses is accepted, because for a few words the likeliest guess is often
        # wrong.
        return any(guess.lang == language for guess in langdetect.detect_langs(text))
    except langdetect.LangDetectException:  # the text has only addresses
        return True


def _literal(key: str, value: Any) -> Any:
    """Return an argument as the checker expects it.

    Raises ValueError for an argument that the checker would replace by a random one.
    """
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
    # The checker uses these texts as parts of regular expressions.
    if key in _LISTS:
        return list(map(re.escape, value))
    if key == "keyword":
        return re.escape(value.strip())
    if key == "prompt_to_repeat":
        return plain_text(value)
    if key == "end_phrase":  # the checker removes quotation marks from the end of the text
        return value.strip().strip(_QUOTES)
    if key == "first_word":  # the checker reads the first word of the text up to its punctuation
        return re.split("[.,?!'\"]", value.strip().lstrip("'\""))[0]
    return value


def _has_postscript(options: Mapping[str, Any], text: str) -> bool:
    # "P. S." is accepted for "P.S.".
    pattern = re.escape(options["postscript_marker"].strip()).replace(r"\.", r"\.\s?")
    # "PS:" must not be found in "tips:".
    return re.search(rf"(?<!\w){pattern}\W*\w", text, re.IGNORECASE) is not None


def _has_sections(options: Mapping[str, Any], text: str) -> bool:
    # A section begins with "Section: X" as in RLVR-IFeval, where X may be any text, or with
    # "Section 1". A numbered section may be mentioned again, and counts once.
    marker = options["section_spliter"].strip()
    number = "" if marker.endswith(":") else r"\s?(\d+)"
    heads = re.findall(rf"(?<!\w){re.escape(marker)}{number}", text)
    sections = set(heads) if number else heads
    return bool(len(sections) == options["num_sections"])


def _has_paragraphs(options: Mapping[str, Any], text: str) -> bool:
    # A divider is *** or a line * * *. ***bold*** is not a divider.
    dividers = r"(?m)(?<![\w*])\*\*\*(?!\S)|^[^\S\n]*\* \* \*[^\S\n]*$"
    paragraphs = re.split(dividers, text)
    return bool(sum(map(_has_word, paragraphs)) == options["num_paragraphs"])


def _has_word(text: str) -> bool:
    return re.search(r"\w", text) is not None


# Replacements of IFEval's checkers that have one of these faults: they recognise words in capital
# letters less well, match parts of words, take quadratic time on a repeated sign, or accept signs
# without a word.
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
    """Return whether each constraint is followed.

    The question has the names of the constraints, their arguments, and the text.
    """
    names, options, text = question
    judged = []
    for name, arguments in zip(names, options, strict=True):
        judged.append(is_followed(name, arguments, text))
    return judged


if __name__ == "__main__":
    # These calls load imports and languages, so that they do not count as part of the first
    # deadline.
    registry()
    reads_as("en", "the first text takes longest, for its languages are read")
    serve_questions(verdicts, memory=_MEMORY_BYTES)
