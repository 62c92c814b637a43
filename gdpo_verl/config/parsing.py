"""Read and check our keys of verl's `algorithm` node.

All functions raise ValueError for a wrong setting. The error names the key in full.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from gdpo_verl.advantage import VARIANTS, Credit, EstimatorSettings, Whiten, find_variant
from gdpo_verl.advantage.checks import is_number
from gdpo_verl.advantage.criteria import CriteriaSetting
from gdpo_verl.advantage.gate import When
from gdpo_verl.advantage.schedule import Schedule
from gdpo_verl.advantage.variants import ADDRESS, PACKAGE, is_address, own_name
from gdpo_verl.config.components import check_distinct, check_names
from gdpo_verl.config.derived import Derived
from gdpo_verl.config.wording import VERL, Wording
from gdpo_verl.names import did_you_mean, refuse_unknown

OUR_KEYS = ("gdpo", "gdpo_reward_keys", "gdpo_reward_weights")
"""Our keys under `algorithm`. Other keys that begin with gdpo are rejected."""
SECTION = (
    "variant",
    "whiten",
    "epsilon",
    "conditions",
    "gate",
    "schedule",
    "derived",
    "credit",
    "criteria",
    "metrics",
)
"""The keys under `algorithm.gdpo`, in addition to the sections of variants."""
SCALE = "norm_adv_by_std_in_grpo"
"""The key of verl that we use, too: whether to divide by the groups' standard deviations."""
_RAMP, _LIST = ("from", "to", "steps", "shape"), ("steps", "weights")
# verl's other keys under `algorithm`, each with the value that has no effect. A section has no
# effect if none of the switches below is on.
_VERLS: Mapping[str, Any] = {
    "_target_": None,
    "adv_estimator": "gdpo",
    "gamma": 1.0,
    "lam": 1.0,
    "use_kl_in_reward": False,
    "kl_penalty": "kl",
    "kl_ctrl": {},
    "use_pf_ppo": False,
    "pf_ppo": {},
    "filter_groups": {},
    "rollout_correction": {},
}
_SWITCHES = ("enable", "rollout_is", "rollout_rs", "bypass_mode")


def plain(node: Any) -> dict[str, Any]:
    """Return a mapping or an omegaconf DictConfig as a dict, with interpolations resolved."""
    if not isinstance(node, (dict, type(None))):
        from omegaconf import DictConfig, OmegaConf

        if isinstance(node, DictConfig):
            node = OmegaConf.to_container(node, resolve=True)
    return dict(node or {})


def check_component(where: str, name: str, known: Iterable[str]) -> None:
    """Raise ValueError if `name` is not among the components `known`."""
    if name not in known:
        raise ValueError(
            f"{where}: {name!r} is not among the reward components {list(known)}."
            f"{did_you_mean(name, known)}"
        )


def gdpo_node(algorithm: Mapping[str, Any], root: str) -> Mapping[str, Any]:
    """Return the section `gdpo`, and reject keys next to it that would be ignored.

    In verl's node only unknown keys that begin with gdpo are rejected, because the node may have
    keys of other estimators. In an argument of our functions every other key is rejected.
    """
    if root != VERL.root:
        refuse_unused(algorithm, root)
    for key, value in algorithm.items():
        if str(key).startswith("gdpo") and key not in OUR_KEYS and value is not None:
            raise _not_ours(key, root, "unknown key", nearest(key, value, root))
    return mapping(f"{root}.gdpo", algorithm.get("gdpo"))


def refuse_unused(algorithm: Mapping[str, Any], root: str) -> None:
    """Reject keys that have no effect outside of verl's trainer.

    A key of verl is accepted if its value has no effect in verl's trainer either.
    """
    for key, value in algorithm.items():
        if key in (*OUR_KEYS, SCALE):
            continue
        meant = nearest(key, value, root)
        if key not in _VERLS:
            raise _not_ours(key, root, "unknown key", meant or did_you_mean(key, _VERLS))
        if _asks(key, value):
            fault = f"{value!r} asks verl's trainer for something, and has no effect here"
            raise _not_ours(key, root, fault, meant)


def _not_ours(key: Any, root: str, fault: str, meant: str) -> ValueError:
    known = [*OUR_KEYS, SCALE]
    return ValueError(f"{root}.{key}: {fault}; known under {root} are {known}.{meant}")


def _asks(key: str, value: Any) -> bool:
    """Return whether a setting of verl has an effect in verl's trainer."""
    if isinstance(value, Mapping):
        return any(value.get(switch) for switch in _SWITCHES)
    return value is not None and _VERLS[key] not in (None, value)


def nearest(key: Any, value: Any, root: str) -> str:
    """Return " Did you mean …?" with the full key of the setting with the most similar name.

    The result is empty if no name is similar.
    """
    paths = [*OUR_KEYS, SCALE]
    for name in (*SECTION, *VARIANTS):
        paths.append(f"gdpo.{name}")
    for variant in VARIANTS.values():
        paths += [f"gdpo.{variant.name}.{name}" for name in variant.defaults]
    places = {_short(path): path for path in reversed(paths)}
    places["scale"] = SCALE  # the functions of `gdpo_verl` use the name `scale` for this setting
    close = difflib.get_close_matches(_short(key), places, n=1)
    if not close:
        return ""
    path = places[close[0]]
    if root == VERL.root:
        return f" Did you mean {path!r}?"
    for part in reversed(path.split(".")):
        value = {part: value}
    return f" Did you mean {root}={value}?"


def _short(key: Any) -> str:
    """Return the part of a key that users confuse least: its last part without our prefixes."""
    return str(key).rpartition(".")[2].removeprefix("gdpo_").removeprefix("reward_")


def reward_keys(keys: Any, wording: Wording) -> tuple[str, ...] | None:
    """Read `algorithm.gdpo_reward_keys`."""
    if keys is None:
        return None
    where = f"{wording.root}.gdpo_reward_keys"
    _expect(_is_list(keys), where, "a list of component names", keys)
    check = check_names if wording is VERL else check_distinct
    check(keys, where)
    return tuple(keys)


def reward_weights(
    weights: Any, keys: tuple[str, ...] | None, wording: Wording
) -> dict[str, float] | None:
    """Read `algorithm.gdpo_reward_weights`. A list is in the order of `gdpo_reward_keys`."""
    if weights is None:
        return None
    where, order = wording.weights, f"{wording.root}.gdpo_reward_keys"
    weights = _from_json(where, weights)
    if not isinstance(weights, Mapping):
        _expect(_is_list(weights), where, "a list or {component: weight}", weights)
        if keys is None:
            raise ValueError(
                f"{where}: a list of weights needs {order}, which gives their order. Set it, or "
                "write {component: weight}."
            )
        if len(weights) != len(keys):
            raise ValueError(
                f"{where}: expected {len(keys)} weights, one for each of {order} {list(keys)}, "
                f"found {len(weights)}: {list(weights)}"
            )
        weights = dict(zip(keys, weights, strict=True))
    for key, weight in weights.items():
        if not is_number(weight):
            raise ValueError(f"{where}: expected finite numbers, found {weight!r} for {key!r}")
    # Without keys the components are not known yet. There may be one whose weight is 1 because it
    # is not given, so `GdpoConfig.resolve` checks this again.
    if keys is not None and set(weights) >= set(keys) and not any(weights.values()):
        raise ValueError(f"{where}: all are zero, nothing would be learnt: {weights}")
    return dict(weights)


def flag(where: str, node: Mapping[str, Any], key: str, default: bool) -> bool:
    """Read a key that is true or false."""
    value = node.get(key, default)
    _expect(isinstance(value, bool), f"{where}.{key}", "true or false", value)
    return bool(value)


def choice(where: str, node: Mapping[str, Any], key: str, known: Any, default: Any) -> Any:
    """Read a key that is one of the values of a `Literal`; null is rejected."""
    # A user who writes null probably means "none", and would get the default instead.
    value = node.get(key, default)
    values = list(get_args(known))
    _expect(key not in node or value in values, f"{where}.{key}", f"one of {values}", value)
    return value


def estimator(
    algorithm: Mapping[str, Any], node: Mapping[str, Any], root: str
) -> EstimatorSettings:
    """Read the settings that the estimator gets as they are written.

    Args:
      algorithm: the node.
      node: the section `gdpo` of `algorithm`.
    """
    section = f"{root}.gdpo"
    default = EstimatorSettings()
    epsilon = node.get("epsilon", default.epsilon)
    valid = is_number(epsilon) and epsilon >= 0
    _expect(valid, f"{section}.epsilon", "a number >= 0", epsilon)
    return EstimatorSettings(
        whiten=choice(section, node, "whiten", Whiten, default.whiten),
        epsilon=float(epsilon),
        scale=flag(root, algorithm, SCALE, default.scale),
        credit=choice(section, node, "credit", Credit, default.credit),
        criteria=choice(section, node, "criteria", CriteriaSetting, default.criteria),
    )


def conditions(node: Any, where: str) -> dict[str, Any]:
    """Read `algorithm.gdpo.conditions`. Each condition is checked when the components are known."""
    conditions: dict[str, Any] = {}
    for name, value in mapping(f"{where}.conditions", node).items():
        if isinstance(value, list):
            conditions[name] = [_with_on(condition) for condition in value]
        else:
            conditions[name] = _with_on(value)
    return conditions


def gate(node: Any, section: str) -> dict[str, Any] | None:
    """Read `algorithm.gdpo.gate`."""
    where = f"{section}.gate"
    if node is None:
        return None
    gate = _with_on(mapping(where, node, "{on: component}"))
    refuse_unknown(gate, ("on", "when"), where)
    on = gate.get("on")
    _expect(isinstance(on, str), f"{where}.on", "a component", on)
    return {"on": on, "when": choice(where, gate, "when", When, "constant")}


def schedules(node: Any, section: str) -> dict[str, Schedule]:
    """Read `algorithm.gdpo.schedule`: a schedule for each component that has one.

    A schedule is ``{from: 0.0, to: 1.0, steps: 200}``, with ``shape: cosine`` if it is not linear,
    or ``{steps: [0, 100, 200], weights: [0.0, 0.5, 1.0]}``.
    """
    where = f"{section}.schedule"
    entries = mapping(where, node, "{component: {from, to, steps}}")
    return {str(name): _schedule(entry, f"{where}.{name}") for name, entry in entries.items()}


def derived(node: Any, wording: Wording) -> dict[str, Derived]:
    """Read `algorithm.gdpo.derived`: a function for each derived component.

    An entry is the address of the function, ``pkg://module:function`` or ``FILE.py:function``. Or
    it is a mapping with the address as `function`, optionally ``range: [low, high]``, and further
    arguments of the function.
    """
    where = f"{wording.root}.gdpo.derived"
    entries = mapping(where, node, f"{{component: {ADDRESS}}}")
    check_names(list(entries), where)
    return {name: _derived(entry, f"{where}.{name}") for name, entry in entries.items()}


def _derived(entry: Any, where: str) -> Derived:
    options = dict(entry) if isinstance(entry, Mapping) else {"function": entry}
    address = options.pop("function", None)
    fits = is_address(address) and ":" in address.removeprefix(PACKAGE)
    _expect(fits, where, f"{ADDRESS}, or it as {{function: …, argument: …}}", entry)
    ends = options.pop("range", None)
    if ends is None:
        return Derived(where, address, options)
    pair = _is_list(ends) and len(ends) == 2 and all(map(is_number, ends))
    _expect(pair and ends[0] < ends[1], f"{where}.range", "[low, high], low < high", ends)
    return Derived(where, address, options, (float(ends[0]), float(ends[1])))


def check_targets(
    options: Mapping[str, Any],
    ranges: Mapping[str, tuple[float, float]],
    keys: Sequence[str],
    where: str,
) -> None:
    """Check the targets of the variant sa_mrpo.

    Args:
      options: the settings of the variant.
      ranges: the range of each component that declares one.
      keys: the names of the components.
      where: the key of the variant's section in error messages.

    Raises:
      ValueError: a component is unknown, a target is outside of the component's range, or
        `targets_floor` is set without targets.
    """
    if "targets" not in options:
        floor = options.get("targets_floor", 0)
        _expect(not floor, f"{where}.targets_floor", "no floor where there are no targets", floor)
        return
    place = f"{where}.targets"
    for name, target in mapping(place, options["targets"], "{component: target}").items():
        check_component(place, name, keys)
        low, high = ranges.get(name, (-math.inf, math.inf))
        fits = is_number(target) and low < target <= high
        wanted = f"a number above {low:g} and at most {high:g}, the declared range"
        _expect(fits, f"{place}.{name}", wanted, target)


def check_schedules(
    schedules: Mapping[str, Schedule], weights: Mapping[str, float], wording: Wording
) -> None:
    """Check the schedules against the components and their weights.

    Args:
      schedules: the schedule of each component that has one.
      weights: the weights of all components, without schedules.
      wording: the words of error messages.

    Raises:
      ValueError: a component is unknown, a component has a schedule and a fixed weight, or all
        weights are 0 at some step.
    """
    section = f"{wording.root}.gdpo.schedule"
    for name in schedules:
        where = f"{section}.{name}"
        check_component(where, name, weights)
        # A fixed weight of 1 cannot be distinguished from a weight that is not given.
        if weights[name] != 1.0:
            raise ValueError(
                f"{where}: the schedule is the weight of {name!r}, and "
                f"{wording.weights} gives it {weights[name]:g}. Remove one."
            )
    # If every weight is scheduled, all weights may be 0 at some step. Such a step learns nothing.
    if schedules and not any(weight for name, weight in weights.items() if name not in schedules):
        last = max(schedule.steps[-1] for schedule in schedules.values())
        for step in range(1, last + 1):
            if not any(schedule.weight(step) for schedule in schedules.values()):
                raise ValueError(
                    f"{section}: at step {step} all weights are 0, and nothing would be learnt"
                )


def _schedule(entry: Any, where: str) -> Schedule:
    _expect(isinstance(entry, Mapping), where, "{from, to, steps}", entry)
    listed = "weights" in entry
    refuse_unknown(entry, _LIST if listed else _RAMP, where)
    return _list_schedule(entry, where) if listed else _ramp_schedule(entry, where)


def _ramp_schedule(entry: Mapping[str, Any], where: str) -> Schedule:
    steps: Any = entry.get("steps")
    shape = entry.get("shape", "linear")
    counts = isinstance(steps, int) and not isinstance(steps, bool) and steps > 0
    _expect(counts, f"{where}.steps", "a number of steps above 0", steps)
    _expect(shape in ("linear", "cosine"), f"{where}.shape", "linear or cosine", shape)
    low, high = (_number(entry.get(key), f"{where}.{key}") for key in ("from", "to"))
    return Schedule((0, steps), (low, high), shape)


def _list_schedule(entry: Mapping[str, Any], where: str) -> Schedule:
    steps: Any = entry.get("steps")
    weights = entry["weights"]
    are_steps = _is_list(steps) and all(isinstance(step, int) and step >= 0 for step in steps)
    _expect(are_steps, f"{where}.steps", "a list of steps, as many as weights", steps)
    _expect(list(steps) == sorted(set(steps)), f"{where}.steps", "rising steps", list(steps))
    fits = _is_list(weights) and len(weights) == len(steps)
    _expect(fits, f"{where}.weights", f"{len(steps)}, one for each step", weights)
    numbers = tuple(_number(weight, f"{where}.weights") for weight in weights)
    return Schedule(tuple(steps), numbers, "list")


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and bool(value)


def _number(value: Any, where: str) -> float:
    _expect(is_number(value), where, "a finite number", value)
    return float(value)


def variant(node: Mapping[str, Any], root: str) -> tuple[str, dict[str, Any]]:
    """Return the name of the variant and its settings.

    Unknown keys, and the sections of other variants, are rejected.
    """
    where = f"{root}.gdpo"
    name = node.get("variant", "gdpo")
    # Reading the settings must not run a user's code. `GdpoConfig.chosen_variant` imports a user's
    # function later.
    is_users = is_address(name)
    chosen = own_name(name) if is_users else find_variant(name, f"{where}.variant").name
    known = list(SECTION)
    for variant in VARIANTS:
        if variant != "gdpo":
            known.append(variant)
    if is_users:
        known.append(chosen)
    for key, value in node.items():
        if key not in known:
            raise ValueError(
                f"{where}.{key}: unknown key; known are {list(SECTION)} and the names of "
                f"variants.{did_you_mean(key, known) or nearest(key, value, root)}"
            )
        # Otherwise a user who changes only `variant` would train without the settings that are
        # written for the other variant.
        if key not in (*SECTION, chosen):
            first = f".{next(iter(value))}" if isinstance(value, Mapping) and value else ""
            raise ValueError(
                f"{where}.{key}{first}: a setting of the variant {key!r}, but "
                f"{where}.variant is {name!r}. Remove it, or choose that variant."
            )
    options = mapping(f"{where}.{chosen}", node.get(chosen) or {})
    if not is_users:
        VARIANTS[chosen].with_settings(options, f"{where}.{chosen}.")
        if not VARIANTS[chosen].uses_epsilon and node.get("epsilon") is not None:
            raise ValueError(
                f"{where}.epsilon: the variant {chosen!r} has none, so that it would have "
                "no effect. Remove it."
            )
    return name, dict(options)


def mapping(where: str, node: Any, wanted: str = "a mapping") -> Mapping[str, Any]:
    """Read a section. The section of None is empty."""
    # A section is None in YAML when all of its keys are commented out.
    section = {} if node is None else _from_json(where, node)
    _expect(isinstance(section, Mapping), where, wanted, section)
    return section


def _from_json(where: str, node: Any) -> Any:
    """Read a mapping that is written as JSON text, and return other values unchanged.

    JSON text is accepted because Hydra's command line rejects some names of components as keys.
    """
    if not isinstance(node, str) or not node.startswith("{"):
        return node
    try:
        return json.loads(node)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: expected a mapping in JSON, found {node!r}: {error}") from error


def _with_on(node: Any) -> Any:
    """Rename a key True to "on", because YAML 1.1 reads an unquoted key `on` as true."""
    if not isinstance(node, Mapping):
        return node
    return {"on" if key is True else key: value for key, value in node.items()}


def _expect(valid: Any, where: str, wanted: str, found: Any) -> None:
    """Raise ValueError unless `valid` is true."""
    if not valid:
        raise ValueError(f"{where}: expected {wanted}, found {found!r}")
