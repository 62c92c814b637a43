"""Instructions: a short text about a topic, under one to three constraints that can be checked.

    Write one or two sentences about the sea. In your entire response, refrain from the use of
    any commas.

This module draws topics and constraints at random. The sentences that describe the constraints are
those of IFEval (package if-verifiable, Apache-2.0). With ``--from``, the rows come from
https://huggingface.co/datasets/allenai/RLVR-IFeval (ODC-BY) instead. The rows are for the rewards
of `rewards.instructions`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gdpo_verl.lab.tasks import generated
from gdpo_verl.lab.tasks.build import build
from gdpo_verl.lab.tasks.examples import Example
from gdpo_verl.lab.tasks.rows import BadRow, Row, check_messages, make_row, text_of
from gdpo_verl.lab.tasks.source import Record, open_source
from gdpo_verl.rewards import instructions as rewards
from gdpo_verl.rewards.instruction_checkers import REQUIREMENTS

DATA_SOURCE = "instructions"
_TOPICS = """
the sea, bicycles, bread, winter, honey bees, the moon, trains, gardens, coffee, mountains,
music, chess, rivers, libraries, volcanoes, dogs, cats, the human heart, bridges, rain, cheese,
paper, clocks, forests, whales, football, painting, salt, deserts, computers, kites, mushrooms,
the sun, glass, tea, horses, islands, money, dreams, schools, ants, wind, maps, apples,
electricity, castles, snow, languages, swimming, the stars, soap, owls, potatoes, windmills,
markets, shoes, lighthouses, gold, theatre
"""
TOPICS = tuple(topic.strip() for topic in _TOPICS.split(","))
# Words that a text has to contain or to avoid. The checker also finds a word inside other words,
# where these words are rare.
KEYWORDS = ("people", "water", "world", "because", "often", "small", "years", "always", "together")
ENDINGS = ("That is all.", "The end.", "Now you know.", "Thank you for reading.")

# IFEval's ids, and the functions that draw the arguments of each.
CONSTRAINTS: Mapping[str, Callable[[random.Random], dict[str, Any]]] = {
    "length_constraints:number_words": lambda rng: {
        "num_words": rng.randrange(20, 45, 5),
        "relation": rng.choice(("at least", "less than")),
    },
    "change_case:english_lowercase": lambda rng: {},
    "change_case:english_capital": lambda rng: {},
    "punctuation:no_comma": lambda rng: {},
    "keywords:existence": lambda rng: {"keywords": sorted(rng.sample(KEYWORDS, 2))},
    "keywords:forbidden_words": lambda rng: {"forbidden_words": sorted(rng.sample(KEYWORDS, 2))},
    "startend:end_checker": lambda rng: {"end_phrase": rng.choice(ENDINGS)},
    "startend:quotation": lambda rng: {},
    "detectable_format:number_bullet_lists": lambda rng: {"num_bullets": rng.randint(2, 4)},
    "detectable_format:title": lambda rng: {},
    "detectable_format:json_format": lambda rng: {},
}

# The functions of RLVR-IFeval, and the ids of the same constraints in IFEval.
FUNCTIONS = {
    "verify_keywords": "keywords:existence",
    "validate_forbidden_words": "keywords:forbidden_words",
    "validate_word_constraint": "length_constraints:number_words",
    "verify_paragraph_count": "length_constraints:number_paragraphs",
    "validate_paragraphs": "length_constraints:nth_paragraph_first_word",
    "verify_postscript": "detectable_content:postscript",
    "validate_placeholders": "detectable_content:number_placeholders",
    "verify_bullet_points": "detectable_format:number_bullet_lists",
    "validate_title": "detectable_format:title",
    "validate_highlighted_sections": "detectable_format:number_highlighted_sections",
    "validate_sections": "detectable_format:multiple_sections",
    "validate_json_format": "detectable_format:json_format",
    "validate_repeat_prompt": "combination:repeat_prompt",
    "validate_two_responses": "combination:two_responses",
    "validate_uppercase": "change_case:english_capital",
    "validate_lowercase": "change_case:english_lowercase",
    "validate_end": "startend:end_checker",
    "validate_quotation": "startend:quotation",
    "validate_no_commas": "punctuation:no_comma",
}
# Arguments of IFEval that have another name in RLVR-IFeval. Every argument num_… is called N there.
COLUMNS = {
    "keywords": "keyword_list",
    "nth_paragraph": "i",
    "section_spliter": "section_splitter",
    "prompt_to_repeat": "original_prompt",
}
REPEAT = (
    "First, repeat the request without change, then give your answer (do not say anything before "
    "repeating the request; the request you need to repeat does not include this sentence)"
)


def ground_truth(topic: str, constraints: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a topic and its constraints as text, for `rewards.instructions.parse_ground_truth`."""
    names, options = list(constraints), list(constraints.values())
    return json.dumps({"topic": topic, "instruction_id_list": names, "kwargs": options})


def draw_example(rng: random.Random) -> Example:
    """Draw a topic and one to three constraints of different kinds that one text can follow."""
    from if_verifiable.ifeval.instructions_registry import INSTRUCTION_CONFLICTS, conflict_make

    conflicts = conflict_make(INSTRUCTION_CONFLICTS)
    chosen: dict[str, dict[str, Any]] = {}
    wanted = rng.choice((1, 2, 2, 3))
    for name in rng.sample(list(CONSTRAINTS), len(CONSTRAINTS)):
        kind = name.partition(":")[0]
        if all(name not in conflicts[other] and not other.startswith(kind) for other in chosen):
            chosen[name] = CONSTRAINTS[name](rng)
        if len(chosen) == wanted:
            break
    topic = rng.choice(TOPICS)
    sentences = [f"Write one or two sentences about {topic}."]
    for name, options in chosen.items():
        sentences.append(rewards.registry()[name](name).build_description(**options))
    question = " ".join(sentences)
    truth = ground_truth(topic, chosen)
    return Example(question, [{"role": "user", "content": question}], truth)


def convert(record: Record) -> Row:
    """Convert a row of RLVR-IFeval; raise `BadRow` for a constraint without a checker."""
    messages = check_messages(record.values.get("messages"))
    constraint = json.loads(text_of(record.values, "ground_truth"))
    function = constraint.get("func_name") if isinstance(constraint, dict) else None
    name = FUNCTIONS.get(str(function), "")
    options = _options(name, constraint) if name else {}
    if rewards.is_followed(name, options, "A text.") is None:
        wanted = {key: value for key, value in constraint.items() if value} if name else function
        raise BadRow("constraint", f"expected a constraint of IFEval's checkers, found {wanted}")
    return make_row(
        DATA_SOURCE,
        messages,
        ground_truth(messages[-1]["content"], {name: options}),
        ability="instructions",
        extra_info=record.place,
    )


def _options(name: str, constraint: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the arguments of RLVR-IFeval's function to those of IFEval's checker."""
    options: dict[str, Any] = {}
    for argument in rewards.registry()[name](name).get_instruction_args_keys():
        column = COLUMNS.get(argument, "N" if argument.startswith("num_") else argument)
        if column in constraint:
            options[argument] = constraint[column]
    if name == "length_constraints:number_words":
        relations = {"at least": ("at least", 0), "at most": ("less than", 1)}  # 9 at most: < 10
        options["relation"], more = relations.get(str(constraint.get("quantifier")), (None, 0))
        words = options.get("num_words")
        options["num_words"] = words + more if isinstance(words, int) else None
    if name == "combination:repeat_prompt":
        # The prompt says that the request to repeat does not include the sentence `REPEAT`, but the
        # column includes it.
        options["prompt_to_repeat"] = str(constraint.get("original_prompt") or "").replace(
            REPEAT, ""
        )
    return options


def prepare(out_dir: Path, *, source: str | None = None, **options: Any) -> dict[str, Any]:
    """Write drawn rows, or the rows of RLVR-IFeval; see `generated.write` and `build`."""
    rewards.registry()  # raises an error with a remedy if the packages are missing
    if source is not None:
        about = {"data_source": DATA_SOURCE, "published": "allenai/RLVR-IFeval on the hub; ODC-BY"}
        return build(out_dir, open_source(source), convert, about=about, **options)
    return generated.write(
        out_dir,
        DATA_SOURCE,
        draw_example,
        ability="instructions",
        source=f"topics and constraints drawn here, checkers of {REQUIREMENTS[0]}",
        about={"topics": len(TOPICS), "constraints": list(CONSTRAINTS)},
        **options,
    )
