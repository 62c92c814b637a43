"""The parts of verl that the plug-in wraps or calls.

`upstream.dependencies` compares this table with the source of the installed verl. A verl that fits
the table is supported, whatever its version.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import version

from gdpo_verl import __version__
from gdpo_verl.upstream.dependencies import Contract, source_of, violations
from gdpo_verl.upstream.dependencies import Dependency as _D

# The version of verl in requirements/*.lock. All tests use it.
TESTED = "0.9.1"

# fmt: off
CONTRACT: Contract = {
    # The registry of estimators, and the functions that call an estimator.
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
    # The trainers without a TransferQueue.
    "experimental.separation.ray_trainer": [
        _D("SeparateRayPPOTrainer._fit_compute_advantage", "self ...", "config compute_advantage"),
    ],
    "trainer.ppo.metric_utils": [
        _D("compute_data_metrics", "batch ...", "token_level_scores response_mask"),
    ],
    # Rewards, and the check of a run before it starts.
    "utils.config": [_D("validate_config", "config ...")],
    "trainer.main_ppo": [_D("run_ppo", "config ...")],
    "trainer.constants_ppo": [_D("get_ppo_ray_runtime_env", "config")],
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
# These are needed only if actor_rollout_ref.actor.use_prefix_grouper is true.
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
# For each package, the texts that it writes and we read: lines of a run's log, an error of Ray, and
# names of files. Only a test compares them with the packages; a run is not rejected because of
# them. Ray's texts about memory and about the cause of a process's death are not listed, because
# Ray writes them in C++.
WRITTEN: Mapping[str, Contract] = {
    "verl": {
        # lab/run/progress.py
        "trainer.ppo.v1.trainer_base": [
            _D("PPOTrainer._init_dataloader", writes=["Total training steps: "]),
            _D("PPOTrainer.fit", writes=["Initial validation metrics: "]),
            # lab/run/checkpoints.py, lab/evaluate/model.py and plugin/watch/checkpoint.py
            _D("PPOTrainer._save_checkpoint",
               writes=["global_step_", "actor", "data.pt", "latest_checkpointed_iteration.txt"]),
            # lab/rundir/dumps.py
            _D("PPOTrainer._write_generations", writes=[".jsonl"]),
        ],
        "utils.tracking": [
            _D("FileLogger", reads="VERL_FILE_LOGGER_PATH step data",
               writes=["Creating file logger at "]),
        ],
        "utils.checkpoint.fsdp_checkpoint_manager": [
            _D("FSDPCheckpointManager.save_checkpoint",
               writes=["model_world_size_", "optim_world_size_", "extra_state_world_size_",
                       "_rank_", ".pt"]),
        ],
        # plugin/watch/deaths.py: the classes of the processes of a run
        "trainer.main_ppo": [_D("TaskRunnerV1")],
        "trainer.main_ppo_v0": [_D("TaskRunner")],
        "trainer.ppo.v1.agent_loop_tq": [_D("AgentLoopWorkerTQ")],
        "experimental.reward_loop.reward_loop": [_D("RewardLoopWorker")],
        "workers.rollout.router": [_D("GlobalRequestLoadBalancer")],
        "workers.rollout.sglang_rollout.async_sglang_server": [_D("SGLangHttpServer")],
        "workers.rollout.vllm_rollout.vllm_async_server": [
            _D("vLLMHttpServer"),
            # plugin/watch/liveness.py
            _D("vLLMReplica", writes=["vllm_", "server_"]),
        ],
        "single_controller.ray.base": [_D("create_colocated_worker_cls", reads="WorkerDict")],
    },
    "transfer_queue": {
        "controller": [_D("TransferQueueController")],
        "storage.simple_storage": [_D("SimpleStorageUnit")],
    },
    "ray": {
        "_private.worker": [
            _D("init", writes=["Started a local Ray instance", "Connected to Ray cluster"]),
        ],
        "_private.ray_logging": [
            _D("DedupState.formatted", writes=[" [repeated ", "x across cluster]"]),
        ],
        "exceptions": [
            _D("ActorDiedError.__init__",
               writes=["class_name: ", "actor_id: ", "pid: ", "name: ", "namespace: ", "ip: "]),
        ],
    },
    "vllm": {
        "v1.engine.core": [_D("EngineCore.__init__", writes=["Initializing a V1 LLM engine"])],
    },
}
# fmt: on
OPTIONAL = ("experimental.separation.ray_trainer",)


@cache
def first_violation() -> str | None:
    """Return why the installed verl is not supported, or None if it is supported."""
    problems = violations(source_of("verl"), CONTRACT, OPTIONAL)
    if not problems:
        return None
    return (
        f"gdpo-verl {__version__} does not fit verl {version('verl')}: {'; '.join(problems)}. "
        f"Install verl {TESTED} (pip install verl=={TESTED}), or a version of gdpo-verl for your "
        "verl."
    )
