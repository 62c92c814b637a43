"""The parts of verl that the plug-in wraps or calls, held against the verl that is installed.

One table; a verl that fits it is supported, whatever its version. The comparison reads verl's
source: nothing is imported for it, so it is known before anything is wrapped.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from gdpo_verl import __version__

# The version of requirements/*.lock, with which everything was run.
TESTED = "0.9.1"


@dataclass(frozen=True)
class Use:
    """One thing of verl's that we rely on.

    Attributes:
      module: where it is defined, below `verl`.
      name: a function, a class, a method as Class.method, or a variable of the module.
      parameters: those of a function in verl's order, as our wrapper takes them or we pass them;
        after "..." there may be others, before it none.
      reads: what else we read of it: names that its source has to hold.
      optional: a verl without the module has nothing there that we could serve.
    """

    module: str
    name: str
    parameters: str = "..."
    reads: str = ""
    optional: bool = False

    def __str__(self) -> str:
        return f"verl.{self.module}.{self.name}"


_V1, _BUFFER = "trainer.ppo.v1.trainer_base", "trainer.ppo.v1.replay_buffer"
_FSDP = "workers.engine.fsdp.transformer_impl"
_NAIVE = "experimental.reward_loop.reward_manager.naive"
# fmt: off
CONTRACT = (
    # The estimator: where it is registered, and the names by which it is called.
    Use("trainer.ppo.core_algos", "ADV_ESTIMATOR_REGISTRY"),
    Use("trainer.ppo.ray_trainer", "compute_advantage", "data adv_estimator ...",
        "token_level_rewards response_mask config index non_tensor_batch"),
    # The default trainer.
    Use(_V1, "PPOTrainer",
        reads="config replay_buffer tokenizer train_dataset val_dataset global_steps"),
    Use(_V1, "PPOTrainer._init_dataloader", "self"),
    Use(_V1, "PPOTrainer.fit", "self ..."),
    Use(_V1, "PPOTrainer._save_checkpoint", "self"),
    Use(_V1, "PPOTrainer._compute_advantage", "self batch metrics",
        "keys partition_id compute_advantage_for_multi_trajectories"),
    Use(_V1, "PPOTrainer._dump_generations",
        "self inputs outputs gts scores reward_extra_infos_dict ..."),
    Use(_V1, "PPOTrainer._log_rollout_data", "self batch ..."),
    Use("trainer.ppo.v1.utils", "compute_advantage_for_multi_trajectories", "data ..."),
    Use("trainer.ppo.v1.utils", "MetricsAggregator", reads="metric_weights"),
    Use("trainer.ppo.v1.utils", "MetricsAggregator._get_aggregation_type", "self metric_name"),
    Use("trainer.ppo.v1.utils", "MetricsAggregator._get_metric_weight",
        "self metric_name metrics sample_count"),
    Use("trainer.ppo.v1.utils", "MetricsAggregator._aggregate_single_metric",
        "self metric_name values"),
    # Failed sessions and the filter of groups.
    Use("trainer.ppo.v1.agent_loop_tq", "_settle_session_tasks", "tasks"),
    Use(_BUFFER, "ReplayBuffer",
        reads="partitions pending_keys running_keys finished_keys failure_keys trainer_mode "
        "filter_groups_metric _dapo_classification_cache"),
    Use(_BUFFER, "ReplayBuffer._sync_metadata_from_transfer_queue", "self"),
    Use(_BUFFER, "ReplayBuffer._dapo_filtered_keys", "self partition_id"),
    # The trainers without a TransferQueue; the hooks are of verl's pull request 7894.
    Use("trainer.ppo.ray_trainer", "RayPPOTrainer",
        reads="config tokenizer train_dataset __init__", optional=True),
    Use("experimental.separation.ray_trainer", "SeparateRayPPOTrainer._fit_compute_advantage",
        "self ...", "config compute_advantage", optional=True),
    Use("trainer.ppo.pre_advantage_hook", "build_pre_advantage_hooks", "config", optional=True),
    Use("trainer.ppo.metric_utils", "compute_data_metrics", "batch ...",
        "token_level_scores response_mask"),
    # Rewards, and the check of a run before it starts.
    Use("utils.config", "validate_config", "config ..."),
    Use("trainer.main_ppo", "run_ppo", "config ..."),
    Use("utils.import_utils", "load_extern_object", "module_path object_name ..."),
    Use("trainer.ppo.reward", "resolve_reward_manager_cls", "config"),
    Use("trainer.ppo.reward", "load_reward_manager", "config tokenizer ..."),
    Use("experimental.reward_loop.reward_manager.registry", "register", "name"),
    Use(_NAIVE, "NaiveRewardManager.__init__", "self config tokenizer compute_score ..."),
    Use(_NAIVE, "NaiveRewardManager.run_single", "self data",
        "reward_score reward_extra_info responses attention_mask extra_info"),
)
# Asked for only where actor_rollout_ref.actor.use_prefix_grouper is on.
SHARED_PROMPTS = (
    Use("workers.engine_workers", "ActorRolloutRefWorker.init_model", "self", "actor ref"),
    Use(_FSDP, "prepare_micro_batches", "data dp_group ...", "max_token_len_per_gpu"),
    Use(_FSDP, "FSDPEngine.forward_backward_batch", "self data ...", "prepare_micro_batches"),
    Use(_FSDP, "FSDPEngineWithLMHead.prepare_model_inputs", "self micro_batch",
        "input_ids position_ids attention_mask input_ids_rmpad_rolled temperature_rmpad"),
    Use(_FSDP, "FSDPEngineWithLMHead.prepare_model_outputs",
        "self output output_args micro_batch ...", "input_ids offsets"),
)
# fmt: on


@cache
def misfit() -> str | None:
    """Say why the installed verl is not supported; None when it is."""
    found = problems(installed_verl())
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


def problems(root: Path, contract: Sequence[Use] = CONTRACT) -> list[str]:
    """A sentence for each part of the contract that the verl in directory `root` does not keep."""
    return [
        problem
        for use in contract
        if not (use.optional and _module(root.joinpath(*use.module.split("."))) is None)
        for problem in _compare(use, _find(use, root))
    ]


def _compare(use: Use, node: ast.AST | None) -> Iterator[str]:
    if node is None:
        yield f"{use} is not there"
        return
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = node.args
        found = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        expected = use.parameters.split()
        first = len(expected) - 1 if expected[-1:] == ["..."] else None
        if found[:first] != expected[:first]:
            yield f"{use} takes ({', '.join(found)}), expected ({', '.join(expected)})"
    if missing := sorted(set(use.reads.split()) - set(_words(node))):
        yield f"{use} does not use {', '.join(missing)}"


def _find(use: Use, root: Path) -> ast.AST | None:
    first, *inner = use.name.split(".")
    node = _definition(use.module, first, root)
    for name in inner:
        node = next((each for each in getattr(node, "body", ()) if name in _defines(each)), None)
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
