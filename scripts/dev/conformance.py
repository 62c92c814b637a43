"""Compute the advantages in gdpo_verl/conformance/vectors.json, and docs/conformance.md's table.

    python scripts/dev/conformance.py            # the advantages
    python scripts/dev/conformance.py --table    # the table as well, after scripts/test.sh --all

Add a new vector to the file without `expected`. The equations of the paper are computed with
decimals of 50 digits: this shares no code with `gdpo_verl.advantage`, and what is 0 in exact
arithmetic is 0 here. The digits of a variant (five places) are computed by hand and are not
changed:

The example has two groups of four. Unbiased deviations: r1 1/sqrt(3) in both groups, r2
sqrt(11/12) = .95743 and sqrt(2) = 1.41421; of the population: 1/2 in both, .82916 and 1.22474.
Rewards minus their means: r1 ±.5, r2 -.75 -.75 1.25 .25 in the first group, 2 -1 -1 0 in the
second.
  dvao         (-.25 -1.25 1.75 -.25) / 1.32916 and (2.5 -.5 -1.5 -.5) / 1.72474
  sa_mrpo      s = .5 and 7/24: w = .5^.25 = .84090 and (17/24)^.25 = .91740; gamma .5: .70711
               and .84163; target .8 of r1: s = .625 and w = .375^.25 = .78254; targets .4 and
               2, floor .1: w = .1 and (1 - .4375)^.25 = .86603
  dara         both components vary in both groups: GDPO
  gd2po        rows 1, 4 and 6 are in conflict; half of the first group and 3/4 of the second are
               kept; with tau .2 row 4 stays, whose terms -.86602 and .26112 agree by .54
  saw          CV = .53452 / .5 and 1.12599 / .875, in shares of 2: .90755 and 1.09245
  corr_grpo    rho = (.5 / 3) / (.57735 * .95743) = .30151 and (1 / 3) / (.57735 * 1.41421) =
               .40825: dvao's numerators over sqrt(2 + 2 rho) = 1.61339 and 1.67824
  tchebycheff  worst distances 1 1 1/3 1 | 0 1 1 1
  mgda         two z of equal length: a half each
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from decimal import Decimal, getcontext
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

from gdpo_verl.conformance import check

sys.path.append(str(Path(__file__).parents[1] / "studies"))
from page import ROOT, markdown_table, replace_block

getcontext().prec = 50
VECTORS = ROOT / "gdpo_verl/conformance/vectors.json"
TINY = Decimal("1e-30")
# Where scripts/test.sh installs them, because verl cannot be imported in the same environment.
TRL = Path(sys.prefix) / "trl"
MS_SWIFT = Path(sys.prefix) / "ms_swift/swift"
Rows = list[list[Any]]


def combined(rewards: Rows, groups: list[int], weights: list[Any], epsilon: Decimal) -> list[Any]:
    """Compute sum_k w_k z[i, k] (Eq. 4, 5 and 7); None for a row without any reward."""
    sums: list[Any] = []
    for row in rewards:
        is_scored = any(reward is not None for reward in row)
        sums.append(Decimal(0) if is_scored else None)
    for k, weight in enumerate(weights):
        for group in set(groups):
            own = [i for i, g in enumerate(groups) if g == group and rewards[i][k] is not None]
            # Converted from their text: 0.1 is a tenth here, and not the nearest binary number.
            values = [Decimal(str(rewards[i][k])) for i in own]
            if len(set(values)) < 2:
                continue  # a constant group: nothing to normalise
            mean = sum(values) / len(values)
            deviation = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)).sqrt()
            for i, value in zip(own, values, strict=True):
                sums[i] += Decimal(str(weight)) * (value - mean) / (deviation + epsilon)
    return sums


def spread(sums: list[Any], shares: list[Any]) -> tuple[Any, Any]:
    """Compute mean and unbiased variance of the sums, weighted with their shares (Eq. 6)."""
    pairs = [(s, Decimal(share)) for s, share in zip(sums, shares, strict=True) if s is not None]
    n = sum(share for _, share in pairs)
    mean = sum(s * share for s, share in pairs) / n if n else Decimal(0)
    square = sum(share * (s - mean) ** 2 for s, share in pairs)
    return mean, square / (n - 1) if n > 1 else Decimal(0)


def group_of(vector: dict[str, Any], row: int) -> list[int]:
    """Return the rows of a row's group."""
    groups = vector["groups"]
    return [other for other, group in enumerate(groups) if group == groups[row]]


def brevity(vector: dict[str, Any], row: int, outcome: int, at_least: float) -> Any:
    """Compute (longest - own) / (longest - shortest) of the group's rows that pass; else None."""
    rewards = vector["rewards"]
    passing = [i for i in group_of(vector, row) if rewards[i][outcome] >= at_least]
    if row not in passing or len(passing) < 2:
        return None
    tokens = [vector["token_counts"][i] for i in passing]
    longest = Decimal(max(tokens))
    return (longest - vector["token_counts"][row]) / (longest - min(tokens))


def rank(vector: dict[str, Any], row: int, of: int) -> Any:
    """Compute the share of the group's other scored rows that are lower; equal ones count half."""
    column = [rewards[of] for rewards in vector["rewards"]]
    own = column[row]
    others = [column[i] for i in group_of(vector, row) if i != row and column[i] is not None]
    if own is None or not others:
        return None
    below = [other for other in others if other < own]
    return (len(below) + Decimal(others.count(own)) / 2) / len(others)


def earned(reward: Any, turn: int, credit: str) -> Any:
    """Return the reward of a turn, or the sum from it on; None if not scored or not per turn."""
    if not isinstance(reward, list):
        return None
    counted = reward[turn:] if credit == "to_go" else [reward[turn]]
    scored = [Decimal(str(value)) for value in counted if value is not None]
    return sum(scored) if scored else None


def by_turn(vector: dict[str, Any], epsilon: Decimal) -> list[Any]:
    """Compute sums of every turn: columns with lists in groups of (group, turn), others copied."""
    credit = vector["settings"]["credit"]
    weights = vector["weights"]
    turns = [(i, t) for i, own in enumerate(vector["token_counts"]) for t in range(len(own))]
    entries = []
    for i, t in turns:
        entries.append([earned(reward, t, credit) for reward in vector["rewards"][i]])
    reached = [100 * vector["groups"][i] + t for i, t in turns]
    of_turns = combined(entries, reached, weights, epsilon)
    plain = []
    for row in vector["rewards"]:
        plain.append([None if isinstance(reward, list) else reward for reward in row])
    of_rows = combined(plain, vector["groups"], weights, epsilon)
    sums: list[Any] = []
    for (i, _), own in zip(turns, of_turns, strict=True):
        parts = [part for part in (of_rows[i], own) if part is not None]
        sums.append(sum(parts) if parts else None)
    return sums


def criterion(reward: Any, name: str) -> tuple[Any, Decimal]:
    """Return the value of a criterion, None where not scored, and its weight."""
    entry = (reward or {}).get(name)
    if isinstance(entry, dict):
        return entry["value"], Decimal(str(entry["weight"]))
    return entry, Decimal(1)


def criteria_sums(vector: dict[str, Any], column: int, epsilon: Decimal) -> list[Any]:
    """Compute sum_c w_c z[i, c] of a rubric for each response; None where nothing is scored."""
    rubrics = [row[column] for row in vector["rewards"]]
    sums: list[Any] = [None] * len(rubrics)
    for group in set(vector["groups"]):
        own = [i for i, g in enumerate(vector["groups"]) if g == group]
        names = sorted({name for i in own for name in rubrics[i] or ()})
        table = []
        for i in own:
            table.append([criterion(rubrics[i], name)[0] for name in names])
        weights = []
        for name in names:
            first = next(i for i in own if name in (rubrics[i] or ()))
            weights.append(criterion(rubrics[first], name)[1])
        of_group = combined(table, [0] * len(own), weights, epsilon)
        for i, value in zip(own, of_group, strict=True):
            sums[i] = value
    return sums


def number(reward: Any) -> Any:
    """Compute sum_c w_c v_c over the sum of the positive weights, of the scored criteria."""
    entries = [criterion(reward, name) for name in reward or ()]
    scored = [(Decimal(str(value)), weight) for value, weight in entries if value is not None]
    if not scored:
        return None
    positive = sum(weight for _, weight in scored if weight > 0)
    divisor = positive or sum(abs(weight) for _, weight in scored)
    return sum(value * weight for value, weight in scored) / divisor


def by_criterion(vector: dict[str, Any], epsilon: Decimal) -> Rows:
    """Return the rewards with one number for each rubric: its sums, or its usual number."""
    rewards = [[*row] for row in vector["rewards"]]
    for column in range(len(rewards[0])):
        if not any(isinstance(row[column], dict) for row in rewards):
            continue
        values = [number(row[column]) for row in rewards]
        if vector["settings"]["criteria"] == "decoupled":
            values = criteria_sums(vector, column, epsilon)
        for row, value in zip(rewards, values, strict=True):
            row[column] = value
    return rewards


def advantages(vector: dict[str, Any], choices: dict[str, Any]) -> list[Any]:
    if vector.get("feature") == "by_turn":
        shares = [count for own in vector["token_counts"] for count in own]
        sums = by_turn(vector, Decimal(choices["epsilon"]))
        flat = iter(whitened(sums, shares, choices))
        by_response = []
        for own in vector["token_counts"]:
            by_response.append([next(flat) for _ in own])
        return by_response
    rewards = [[*row] for row in vector["rewards"]]
    if vector.get("feature") == "derived":
        arguments = dict(vector["settings"]["derived"])
        derive = {"relative_length": brevity, "rank": rank}[arguments.pop("function")]
        for place, row in enumerate(rewards):
            row.append(derive(vector, place, **arguments))
    # Eq. 8. Nested conditions are written in the order of dependence.
    for condition in vector["settings"].get("conditions", ()):
        for row in rewards:
            if not holds(row[condition["on"]], condition):
                row[condition["reward"]] = 0
    if vector.get("feature") == "by_criterion":
        rewards = by_criterion(vector, Decimal(choices["epsilon"]))
    if choices["unscored"] == "zero":
        for row in rewards:
            for k, reward in enumerate(row):
                if reward is None:
                    row[k] = 0
    weights = vector["weights"]
    tokens = vector["token_counts"]
    # With whitening over tokens, a row counts once for each of its tokens.
    shares = tokens if choices["whiten"] == "token" else [1] * len(rewards)
    # Computed without epsilon, which leaves a remainder where components cancel.
    if spread(combined(rewards, vector["groups"], weights, Decimal(0)), shares)[1] < TINY:
        return [0.0] * len(rewards)
    sums = combined(rewards, vector["groups"], weights, Decimal(choices["epsilon"]))
    return whitened(sums, shares, choices)


def holds(value: float, condition: dict[str, Any]) -> bool:
    """Return whether a value meets the limits of a condition."""
    least = condition.get("at_least", condition.get("equals", value))
    most = condition.get("at_most", condition.get("equals", value))
    return bool(least <= value <= most)


def whitened(sums: list[Any], shares: list[Any], choices: dict[str, Any]) -> list[float]:
    mean, variance = spread(sums, shares)
    form, text = choices["last"]
    last = Decimal(text)
    size = (variance + last).sqrt() if form == "root" else variance.sqrt() + last
    return [0.0 if s is None else float((s - mean) / size) for s in sums]


def write(path: Path = VECTORS) -> None:
    """Write the file with the advantages of every vector without a variant."""
    content = json.loads(VECTORS.read_text(encoding="utf-8"))
    profiles = content["profiles"]
    vectors = content.pop("vectors")
    for vector in vectors:
        if "variant" not in vector["settings"]:
            feature = vector.get("feature")
            expected = {}
            for name, choices in profiles.items():
                # With per-turn credit, whitening over sequences is not defined.
                if feature == "by_turn" and choices["whiten"] != "token":
                    continue
                # A rubric of which nothing is scored has no number.
                if feature == "by_criterion" and choices["unscored"] == "zero":
                    continue
                expected[name] = advantages(vector, choices)
            vector["expected"] = expected
    # One vector per line, so that a change is one line in a diff.
    body = ",\n  ".join(json.dumps(vector, ensure_ascii=False) for vector in vectors)
    head = json.dumps(content, indent=1)[:-2]
    path.write_text(f'{head},\n "vectors": [\n  {body}\n ]\n}}\n', encoding="utf-8")


# ---------------------------------------------------------------- the table


def ours(
    rewards: Rows,
    groups: list[int],
    token_counts: list[int],
    weights: list[float],
    *,
    conditions: Sequence[dict[str, Any]] = (),
    **settings: Any,
) -> list[float]:
    import torch

    from gdpo_verl import advantages_of, apply_conditions, gdpo_advantages

    if settings.keys() & {"credit", "criteria", "derived"}:
        rows = []
        for row in rewards:
            rows.append({f"r{k}": reward for k, reward in enumerate(row)})
        names = [*rows[0]]
        if "derived" in settings:
            arguments = dict(settings["derived"])
            arguments["function"] = f"pkg://gdpo_verl.rewards.derived:{arguments['function']}"
            # The vectors name a component by its column.
            for key in arguments.keys() & {"outcome", "of"}:
                arguments[key] = names[arguments[key]]
            settings["derived"] = {"derived": arguments}
            names.append("derived")
        named = dict(zip(names, weights, strict=True))
        config = {"gdpo_reward_weights": named, "gdpo": settings}
        return advantages_of(rows, groups, token_counts, config=config)
    wanted: dict[int, list[dict[str, Any]]] = {}
    for condition in conditions:
        own = {key: value for key, value in condition.items() if key != "reward"}
        wanted.setdefault(condition["reward"], []).append(own)
    table = torch.tensor(as_nan(rewards), dtype=torch.float64)
    table = apply_conditions(table, range(table.shape[1]), wanted)
    mask = torch.arange(max(token_counts)) < torch.tensor(token_counts)[:, None]
    computed = gdpo_advantages(table, groups, mask, weights=weights, **settings)
    return computed[:, 0].tolist()  # type: ignore[no-any-return]


def verls(
    rewards: Rows, groups: list[int], token_counts: list[int], weights: list[float], **settings: Any
) -> list[float]:
    """Compute the installed verl's `compute_gdpo_outcome_advantage` in its float32."""
    import numpy as np
    import torch
    from verl.trainer.ppo.core_algos import compute_gdpo_outcome_advantage

    if settings:
        raise NotImplementedError  # shown as –
    # It looks for the last attended token, of prompt and response: here prompts have no tokens.
    mask = (torch.arange(max(token_counts)) < torch.tensor(token_counts)[:, None]).long()
    columns = dict(zip("abcdef", np.array(as_nan(rewards), dtype=np.float32).T, strict=False))
    computed, _ = compute_gdpo_outcome_advantage(
        token_level_rewards=torch.zeros(mask.shape),
        response_mask=mask,
        index=np.array(groups, dtype=object),
        config={"gdpo_reward_keys": list(columns), "gdpo_reward_weights": weights},
        non_tensor_batch=columns,
        batch={"prompts": torch.ones(len(rewards), 0), "attention_mask": mask},
    )
    return computed[:, 0].tolist()  # type: ignore[no-any-return]


def consecutive(function: Callable[..., list[float]]) -> Callable[..., list[float]]:
    """Call a function of (rewards, group size, weights) that needs groups of one size in order."""

    def advantages(
        rewards: Rows, groups: list[int], _: list[int], weights: list[float], **settings: Any
    ) -> list[float]:
        order = sorted(range(len(groups)), key=groups.__getitem__)
        sizes = {groups.count(group) for group in groups}
        if settings or len(sizes) > 1:
            raise NotImplementedError
        computed = function([rewards[i] for i in order], sizes.pop(), weights)
        return [value for _, value in sorted(zip(order, computed, strict=True))]

    return advantages


def ms_swifts() -> Callable[..., list[float]]:
    """Load the function of ms-swift, which needs only torch and this `nanstd`."""
    import torch

    # From the files, because importing swift would need all of its dependencies.
    source = (MS_SWIFT / "rl_core/advantage.py").read_text(encoding="utf-8")
    utils = ast.parse((MS_SWIFT / "utils/torch_utils.py").read_text(encoding="utf-8"))
    nanstd = next(node for node in utils.body if getattr(node, "name", "") == "nanstd")
    space: dict[str, Any] = {"torch": torch}
    exec(ast.unparse(nanstd), space)
    exec(source.replace("from swift.utils import nanstd", ""), space)

    def function(rewards: Rows, size: int, weights: list[float]) -> list[float]:
        computed, _ = space["compute_advantages"](
            torch.tensor(as_nan(rewards)), torch.tensor(weights), size, scale_rewards="gdpo"
        )
        return computed.tolist()  # type: ignore[no-any-return]

    return consecutive(function)


def trls() -> Callable[..., list[float]]:
    """Run a step of TRL's trainer on each vector (tests/trl_step.py); return its log."""
    import pyarrow.parquet as pq

    calls: list[tuple[Any, ...]] = []

    def ask(*step: Any) -> list[float]:
        calls.append(step)
        raise NotImplementedError  # all are computed together, below

    list(check(consecutive(ask), "trl"))
    gdpo = {"multi_objective_aggregation": "normalize_then_sum"}
    steps = {
        str(i): {"rewards": rewards, "group_size": size, "config": {"reward_weights": w, **gdpo}}
        for i, (rewards, size, w) in enumerate(calls)
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        (out / "steps.json").write_text(json.dumps(steps))
        program = [sys.executable, ROOT / "tests/trl_step.py", out / "steps.json", out]
        environment = os.environ | {"PYTHONPATH": f"{TRL}{os.pathsep}{ROOT}"}
        subprocess.run(program, env=environment, check=True)
        tables = [next((out / name / "completions").glob("*.parquet")) for name in steps]
        computed = [pq.read_table(table)["advantage"].to_pylist() for table in tables]
    return consecutive(lambda *step: computed[calls.index(step)])


def as_nan(rewards: Rows) -> Rows:
    table = []
    for row in rewards:
        table.append([float("nan") if reward is None else reward for reward in row])
    return table


PLAIN = (
    "two groups",
    "lengths",
    "weights",
    "one reward",
    "small unit",
    "large unit",
    "interleaved",
)
ALONE = (
    "sizes",
    "group of one",
    "constant 0.1",
    "cancelling",
    "unscored",
    "unscored row",
    "far from 0",
    "condition",
)
# The vectors of each of the table's columns.
COLUMNS: dict[str, tuple[str, ...]] = {"plain": PLAIN}
COLUMNS |= {name: (name,) for name in ALONE}
# Of each implementation: what returns its function, its profile, and its precision.
RUN: dict[str, tuple[Callable[..., Any], str, float]] = {
    "gdpo-verl": (lambda: ours, "tokens", 0.0),
    "gdpo-verl, `whiten=sequence`": (lambda: partial(ours, whiten="sequence"), "sequences", 0.0),
    "verl 0.9.1": (lambda: verls, "tokens", 1e-4),
    "TRL 1.16.0": (trls, "trl", 1e-5),
    "ms-swift 4.6.0": (ms_swifts, "ms-swift", 1e-5),
}


def table_row(name: str) -> list[str]:
    """Write the line of an implementation: ✔, or the worst digits and the expected ones."""
    make, profile, tolerance = RUN[name]
    results = {r.vector["name"]: r for r in check(make(), profile, tolerance)}
    cells = []
    for names in COLUMNS.values():
        own = [results[vector] for vector in names]
        failed = [result for result in own if not result.conforms]
        if failed:
            # NaN is worse than any wrong number.
            pairs = zip(failed[0].found, failed[0].expected, strict=False)
            worst = max(pairs, key=lambda pair: (isnan(pair[0]), abs(pair[0] - pair[1])))
            cells.append("NaN" if isnan(worst[0]) else f"{worst[0]:.3g} for {worst[1]:.3g}")
        else:
            cells.append("–" if all(result.found is None for result in own) else "✔")
    return [name, f"`{profile}`", *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--table", action="store_true", help="needs verl, TRL and ms-swift")
    options = parser.parse_args()
    write()
    if options.table:
        rows = [table_row(name) for name in RUN]
        table = markdown_table(["", "profile", *COLUMNS], rows)
        replace_block(ROOT / "docs/conformance.md", "conformance", table)


if __name__ == "__main__":
    main()
