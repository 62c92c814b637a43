"""Check the keys of verl's `algorithm` node; an error names the key in full."""

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
"""Under `algorithm`; no other may begin with gdpo."""
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
"""verl's own key, which is one of ours, too."""
_RAMP, _LIST = ("from", "to", "steps", "shape"), ("steps", "weights")
# verl's other keys under `algorithm`, with the value that asks for nothing; of a section, a dict
# in which none of the switches is on.
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
    """A mapping or an omegaconf DictConfig as a dict, interpolations resolved."""
    if not isinstance(node, (dict, type(None))):
        from omegaconf import DictConfig, OmegaConf

        if isinstance(node, DictConfig):
            node = OmegaConf.to_container(node, resolve=True)
    return dict(node or {})


def check_component(where: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is none of the reward's components."""
    if name not in known:
        raise ValueError(
            f"{where}: {name!r} is not among the reward components {list(known)}."
            f"{did_you_mean(name, known)}"
        )


def gdpo_node(algorithm: Mapping[str, Any], root: str) -> Mapping[str, Any]:
    """Return the section `gdpo`; reject keys outside it that would be ignored.

    verl's own node may have keys of other estimators: there, what begins like a key of ours.
    """
    if root != VERL.root:
        refuse_unused(algorithm, root)
    for key, value in algorithm.items():
        if str(key).startswith("gdpo") and key not in OUR_KEYS and value is not None:
            raise _not_ours(key, root, "unknown key", nearest(key, value, root))
    return mapping(f"{root}.gdpo", algorithm.get("gdpo"))


def refuse_unused(algorithm: Mapping[str, Any], root: str) -> None:
    """Refuse what has no effect outside of verl's trainer, unless it asks for nothing there."""
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
    """Return whether a setting of verl's asks for something, which it has only in verl."""
    if isinstance(value, Mapping):
        return any(value.get(switch) for switch in _SWITCHES)
    return value is not None and _VERLS[key] not in (None, value)


def nearest(key: Any, value: Any, root: str) -> str:
    """' Did you mean …?' with the place of the setting whose name is like this one, else ''."""
    paths = [*OUR_KEYS, SCALE]
    for name in (*SECTION, *VARIANTS):
        paths.append(f"gdpo.{name}")
    for variant in VARIANTS.values():
        paths += [f"gdpo.{variant.name}.{name}" for name in variant.defaults]
    places = {_short(path): path for path in reversed(paths)}
    places["scale"] = SCALE  # as the functions of `gdpo_verl` call it
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
    return str(key).rpartition(".")[2].removeprefix("gdpo_").removeprefix("reward_")


def reward_keys(keys: Any, wording: Wording) -> tuple[str, ...] | None:
    """`algorithm.gdpo_reward_keys`."""
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
    """`algorithm.gdpo_reward_weights`; a list goes by the order of the keys."""
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
    # Without keys the components, and so the weights that stay 1, are known only to `resolve`.
    if keys is not None and set(weights) >= set(keys) and not any(weights.values()):
        raise ValueError(f"{where}: all are zero, nothing would be learnt: {weights}")
    return dict(weights)


def flag(where: str, node: Mapping[str, Any], key: str, default: bool) -> bool:
    """A key that is true or false."""
    value = node.get(key, default)
    _expect(isinstance(value, bool), f"{where}.{key}", "true or false", value)
    return bool(value)


def choice(where: str, node: Mapping[str, Any], key: str, known: Any, default: Any) -> Any:
    """A key that is one of the values of a `Literal`; a written null is none of them."""
    # Whoever writes null means "none", and would get the default.
    found = node.get(key, default)
    values = list(get_args(known))
    _expect(key not in node or found in values, f"{where}.{key}", f"one of {values}", found)
    return found


def estimator(
    algorithm: Mapping[str, Any], node: Mapping[str, Any], root: str
) -> EstimatorSettings:
    """The settings that reach the estimator as they are written.

    Args:
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
    """`algorithm.gdpo.conditions`; what each holds is checked when the components are known."""
    found: dict[str, Any] = {}
    for name, own in mapping(f"{where}.conditions", node).items():
        found[name] = [_with_on(each) for each in own] if isinstance(own, list) else _with_on(own)
    return found


def gate(node: Any, section: str) -> dict[str, Any] | None:
    """`algorithm.gdpo.gate`."""
    where = f"{section}.gate"
    if node is None:
        return None
    given = _with_on(mapping(where, node, "{on: component}"))
    refuse_unknown(given, ("on", "when"), where)
    on = given.get("on")
    _expect(isinstance(on, str), f"{where}.on", "a component", on)
    return {"on": on, "when": choice(where, given, "when", When, "constant")}


def schedules(node: Any, section: str) -> dict[str, Schedule]:
    """`algorithm.gdpo.schedule`: a schedule for each component that has one.

    ``{from: 0.0, to: 1.0, steps: 200}``, with ``shape: cosine`` if not linear, or
    ``{steps: [0, 100, 200], weights: [0.0, 0.5, 1.0]}``.
    """
    where = f"{section}.schedule"
    found = mapping(where, node, "{component: {from, to, steps}}")
    return {str(name): _schedule(given, f"{where}.{name}") for name, given in found.items()}


def derived(node: Any, wording: Wording) -> dict[str, Derived]:
    """`algorithm.gdpo.derived`: a function for each derived component.

    Its address, ``pkg://module:function`` or ``FILE.py:function``, or ``{function: address, range:
    [low, high]}`` and the function's own arguments; only the first key is needed.
    """
    where = f"{wording.root}.gdpo.derived"
    found = mapping(where, node, f"{{component: {ADDRESS}}}")
    check_names(list(found), where)
    return {name: _derived(given, f"{where}.{name}") for name, given in found.items()}


def _derived(given: Any, where: str) -> Derived:
    options = dict(given) if isinstance(given, Mapping) else {"function": given}
    address = options.pop("function", None)
    fits = is_address(address) and ":" in address.removeprefix(PACKAGE)
    _expect(fits, where, f"{ADDRESS}, or it as {{function: …, argument: …}}", given)
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
    """Refuse targets of unknown components, targets that no mean reaches, and a floor without any.

    Args:
      options: the settings of the variant.
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
    """Refuse a component that is unknown or also has a fixed weight, and a step without a weight.

    Args:
      weights: of all components, without schedules.
    """
    section = f"{wording.root}.gdpo.schedule"
    for name in schedules:
        where = f"{section}.{name}"
        check_component(where, name, weights)
        # A fixed weight of 1 is the same as none.
        if weights[name] != 1.0:
            raise ValueError(
                f"{where}: the schedule is the weight of {name!r}, and "
                f"{wording.weights} gives it {weights[name]:g}. Remove one."
            )
    # Where every weight is scheduled, all may be 0 at one step, which would learn nothing.
    if schedules and not any(weight for name, weight in weights.items() if name not in schedules):
        last = max(each.steps[-1] for each in schedules.values())
        for step in range(1, last + 1):
            if not any(each.weight(step) for each in schedules.values()):
                raise ValueError(
                    f"{section}: at step {step} all weights are 0, and nothing would be learnt"
                )


def _schedule(given: Any, where: str) -> Schedule:
    _expect(isinstance(given, Mapping), where, "{from, to, steps}", given)
    listed = "weights" in given
    refuse_unknown(given, _LIST if listed else _RAMP, where)
    return _list_schedule(given, where) if listed else _ramp_schedule(given, where)


def _ramp_schedule(given: Mapping[str, Any], where: str) -> Schedule:
    steps: Any = given.get("steps")
    shape = given.get("shape", "linear")
    counts = isinstance(steps, int) and not isinstance(steps, bool) and steps > 0
    _expect(counts, f"{where}.steps", "a number of steps above 0", steps)
    _expect(shape in ("linear", "cosine"), f"{where}.shape", "linear or cosine", shape)
    low, high = (_number(given.get(key), f"{where}.{key}") for key in ("from", "to"))
    return Schedule((0, steps), (low, high), shape)


def _list_schedule(given: Mapping[str, Any], where: str) -> Schedule:
    steps: Any = given.get("steps")
    weights = given["weights"]
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
    """Return the variant and its settings; reject keys of other variants, and unknown ones."""
    where = f"{root}.gdpo"
    name = node.get("variant", "gdpo")
    # A user's function is imported by `GdpoConfig.chosen_variant`: reading settings runs nobody's
    # code.
    own = is_address(name)
    chosen = own_name(name) if own else find_variant(name, f"{where}.variant").name
    known = list(SECTION)
    for variant in VARIANTS:
        if variant != "gdpo":
            known.append(variant)
    if own:
        known.append(chosen)
    for key, value in node.items():
        if key not in known:
            raise ValueError(
                f"{where}.{key}: unknown key; known are {list(SECTION)} and the names of "
                f"variants.{did_you_mean(key, known) or nearest(key, value, root)}"
            )
        # Else whoever changes the variant alone trains without the settings written below it.
        if key not in (*SECTION, chosen):
            first = f".{next(iter(value))}" if isinstance(value, Mapping) and value else ""
            raise ValueError(
                f"{where}.{key}{first}: a setting of the variant {key!r}, but "
                f"{where}.variant is {name!r}. Remove it, or choose that variant."
            )
    options = mapping(f"{where}.{chosen}", node.get(chosen) or {})
    if not own:
        VARIANTS[chosen].with_settings(options, f"{where}.{chosen}.")
        if not VARIANTS[chosen].uses_epsilon and node.get("epsilon") is not None:
            raise ValueError(
                f"{where}.epsilon: the variant {chosen!r} has none, so that it would have "
                "no effect. Remove it."
            )
    return name, dict(options)


def mapping(where: str, node: Any, wanted: str = "a mapping") -> Mapping[str, Any]:
    """A section; empty for None."""
    # A section is None in YAML when all of its keys are commented out.
    found = {} if node is None else _from_json(where, node)
    _expect(isinstance(found, Mapping), where, wanted, found)
    return found


def _from_json(where: str, node: Any) -> Any:
    """A mapping that is written as a text of JSON, because Hydra does not take its names as keys.

    Anything else is returned as it is.
    """
    if not isinstance(node, str) or not node.startswith("{"):
        return node
    try:
        return json.loads(node)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: expected a mapping in JSON, found {node!r}: {error}") from error


def _with_on(node: Any) -> Any:
    """YAML 1.1 reads an unquoted key `on` as true."""
    if not isinstance(node, Mapping):
        return node
    return {"on" if key is True else key: value for key, value in node.items()}


def _expect(valid: Any, where: str, wanted: str, found: Any) -> None:
    if not valid:
        raise ValueError(f"{where}: expected {wanted}, found {found!r}")
