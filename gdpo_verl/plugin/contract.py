"""The parts of verl that the plug-in wraps or calls, held against the verl that is installed.

One table; a verl that fits it is supported, whatever its version. The comparison reads verl's
source: nothing is imported for it, so it is known before anything is wrapped.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from gdpo_verl import __version__

# The version of requirements/*.lock, with which everything was run.
TESTED = "0.9.1"


@dataclass(frozen=True)
class Dependency:
    """A verl name that the plug-in depends on.

    Attributes:
      name: a function, a class, a method as Class.method, or a variable of its module.
      parameters: those of a function in verl's order, as our wrapper takes them or we pass them;
        after "..." there may be others, before it none.
      reads: names that its source has to hold, because we read them.
    """

    name: str
    parameters: str = "..."
    reads: str = ""


Contract = Mapping[str, Sequence[Dependency]]  # by the module, below `verl`
_D = Dependency
# fmt: off
CONTRACT: Contract = {
    # The estimator: where it is registered, and the names by which it is called.
    "trainer.ppo.core_algos": [_D("ADV_ESTIMATOR_REGISTRY")],
    "trainer.ppo.ray_trainer": [
        _D("compute_advantage", "data adv_estimator ...",
           "token_level_rewards response_mask config index non_tensor_batch"),
        _D("RayPPOTrainer", reads="config tokenizer train_dataset __init__"),
    ],
    "trainer.ppo.v1.trainer_base": [
        _D("PPOTrainer",
           reads="config replay_buffer tokenizer train_dataset val_dataset global_steps"),
        _D("PPOTrainer._init_dataloader", "self"),
        _D("PPOTrainer.fit", "self ..."),
        _D("PPOTrainer._save_checkpoint", "self"),
        _D("PPOTrainer._compute_advantage", "self batch metrics",
           "keys partition_id compute_advantage_for_multi_trajectories"),
        _D("PPOTrainer._dump_generations",
           "self inputs outputs gts scores reward_extra_infos_dict ..."),
        _D("PPOTrainer._log_rollout_data", "self batch ..."),
    ],
    "trainer.ppo.v1.utils": [
        _D("compute_advantage_for_multi_trajectories", "data ..."),
        _D("MetricsAggregator", reads="metric_weights"),
        _D("MetricsAggregator._get_aggregation_type", "self metric_name"),
        _D("MetricsAggregator._get_metric_weight", "self metric_name metrics sample_count"),
        _D("MetricsAggregator._aggregate_single_metric", "self metric_name values"),
    ],
    # Failed sessions and the filter of groups.
    "trainer.ppo.v1.agent_loop_tq": [_D("_settle_session_tasks", "tasks")],
    "trainer.ppo.v1.replay_buffer": [
        _D("ReplayBuffer",
           reads="partitions pending_keys running_keys finished_keys failure_keys trainer_mode "
           "filter_groups_metric _dapo_classification_cache"),
        _D("ReplayBuffer._sync_metadata_from_transfer_queue", "self"),
        _D("ReplayBuffer._dapo_filtered_keys", "self partition_id"),
    ],
    # The trainers without a TransferQueue; the hooks are of verl's pull request 7894.
    "experimental.separation.ray_trainer": [
        _D("SeparateRayPPOTrainer._fit_compute_advantage", "self ...", "config compute_advantage"),
    ],
    "trainer.ppo.pre_advantage_hook": [_D("build_pre_advantage_hooks", "config")],
    "trainer.ppo.metric_utils": [
        _D("compute_data_metrics", "batch ...", "token_level_scores response_mask"),
    ],
    # Rewards, and the check of a run before it starts.
    "utils.config": [_D("validate_config", "config ...")],
    "trainer.main_ppo": [_D("run_ppo", "config ...")],
    "utils.import_utils": [_D("load_extern_object", "module_path object_name ...")],
    "trainer.ppo.reward": [
        _D("resolve_reward_manager_cls", "config"),
        _D("load_reward_manager", "config tokenizer ..."),
    ],
    "experimental.reward_loop.reward_manager.registry": [_D("register", "name")],
    "experimental.reward_loop.reward_manager.naive": [
        _D("NaiveRewardManager.__init__", "self config tokenizer compute_score ..."),
        _D("NaiveRewardManager.run_single", "self data",
           "reward_score reward_extra_info responses attention_mask extra_info"),
    ],
}
# Asked for only where actor_rollout_ref.actor.use_prefix_grouper is on.
SHARED_PROMPTS: Contract = {
    "workers.engine_workers": [_D("ActorRolloutRefWorker.init_model", "self", "actor ref")],
    "workers.engine.fsdp.transformer_impl": [
        _D("prepare_micro_batches", "data dp_group ...", "max_token_len_per_gpu"),
        _D("FSDPEngine.forward_backward_batch", "self data ...", "prepare_micro_batches"),
        _D("FSDPEngineWithLMHead.prepare_model_inputs", "self micro_batch",
           "input_ids position_ids attention_mask input_ids_rmpad_rolled temperature_rmpad"),
        _D("FSDPEngineWithLMHead.prepare_model_outputs",
           "self output output_args micro_batch ...", "input_ids offsets"),
    ],
}
# fmt: on
# A verl without the module has nothing there that we could serve.
OPTIONAL = {"experimental.separation.ray_trainer", "trainer.ppo.pre_advantage_hook"}


@cache
def misfit() -> str | None:
    """Say why the installed verl is not supported; None when it is."""
    found = violations(installed_verl())
    if not found:
        return None
    return (
        f"gdpo-verl {__version__} does not fit verl {version('verl')}: {'; '.join(found)}. Install "
        f"verl {TESTED} (pip install verl=={TESTED}), or a gdpo-verl for this one."
    )


def installed_verl() -> Path:
    """The directory of the installed verl."""
    spec = importlib.util.find_spec("verl")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def violations(root: Path, contract: Contract = CONTRACT) -> list[str]:
    """A sentence for each part of the contract that the verl in directory `root` does not keep."""
    return [
        f"verl.{module}.{dependency.name} {problem}"
        for module, dependencies in contract.items()
        if module not in OPTIONAL or _module(root.joinpath(*module.split("."))) is not None
        for dependency in dependencies
        for problem in _compare(dependency, _find(module, dependency.name, root))
    ]


def _compare(dependency: Dependency, node: ast.AST | None) -> Iterator[str]:
    if node is None:
        yield "is not there"
        return
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = node.args
        found = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        expected = dependency.parameters.split()
        first = len(expected) - 1 if expected[-1:] == ["..."] else None
        if found[:first] != expected[:first]:
            yield f"takes ({', '.join(found)}), expected ({', '.join(expected)})"
    if missing := sorted(set(dependency.reads.split()) - set(_words(node))):
        yield f"does not use {', '.join(missing)}"


def _find(module: str, name: str, root: Path) -> ast.AST | None:
    first, *inner = name.split(".")
    node = _definition(module, first, root)
    for part in inner:
        node = next((each for each in getattr(node, "body", ()) if part in _defines(each)), None)
    return node


def _definition(module: str, name: str, root: Path) -> ast.AST | None:
    """The definition of a name in a module, or in the one of verl's that it is imported from."""
    for node in getattr(_module(root.joinpath(*module.split("."))), "body", ()):
        if name in _defines(node):
            return node  # type: ignore[no-any-return]
        if isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            source = ".".join([*package, node.module or ""])
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return _definition(source.removeprefix("verl."), alias.name, root)
    return None


@cache
def _module(path: Path) -> ast.AST | None:
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return ast.parse(file.read_text(encoding="utf-8"))
    return None


def _defines(node: ast.AST) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = {ast.Assign: "targets", ast.AnnAssign: "target"}.get(type(node), "")
    found = getattr(node, targets, [])
    return [
        each.id
        for each in (found if isinstance(found, list) else [found])
        if isinstance(each, ast.Name)
    ]


def _words(node: ast.AST) -> Iterator[str]:
    """Every name, attribute, keyword and string in a piece of source."""
    for each in ast.walk(node):
        for field in ("id", "attr", "arg", "name", "value"):
            if isinstance(word := getattr(each, field, None), str):
                yield word
