"""The entry point in verl's group `verl.plugins`, which registers all hooks of the plug-in.

verl loads this module in each of its processes, so the module imports very little. A hook is a
function that runs when verl itself imports the module that the hook changes.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from gdpo_verl import __version__
from gdpo_verl.upstream.hooks import Hook, when_imported, wrap


def _log_to_stderr() -> None:
    """Give our loggers their own handler, as verl does for its loggers.

    Without it our warnings would be lost in a process with vLLM. There the package
    model_hosting_container_standards, which vLLM needs, sets the level of the root logger and of
    its handlers to ERROR. For verl's handler see verl/utils/logging_utils.py.
    """
    ours = logging.getLogger("gdpo_verl")
    if not ours.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s:%(asctime)s:gdpo-verl: %(message)s"))
        ours.addHandler(handler)
        ours.setLevel(logging.WARNING)
        ours.propagate = False


def _on_supported_verl(hook: Hook) -> Hook:
    """Let the hook run only if the installed verl is supported."""

    def supported(module: Any) -> None:
        from gdpo_verl.plugin import contract

        if contract.first_violation() is None:
            hook(module)

    return supported


@when_imported("verl.trainer.ppo.core_algos")
def _register_estimator(core_algos: Any) -> None:
    from gdpo_verl.plugin import contract
    from gdpo_verl.plugin.step import estimator

    # register_adv_est rejects a second "gdpo" (core_algos.py), hence the assignment.
    reason = contract.first_violation()
    core_algos.ADV_ESTIMATOR_REGISTRY["gdpo"] = (
        estimator.gdpo if reason is None else estimator.unsupported(reason)
    )


@when_imported("verl.utils.config")
def _check_before_ray_starts(config_module: Any) -> None:
    def validate_config(original: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        from importlib.metadata import version

        from gdpo_verl.plugin.checks import checks, validation

        checks.check_before_ray(config)
        if validation.is_gdpo(config):
            # This line is not logged, because verl's root logger shows nothing below WARNING.
            sys.stderr.write(
                f"gdpo-verl {__version__}: estimator 'gdpo' in place of verl {version('verl')}'s "
                "own; components, metrics and dumps through its PPO trainers\n"
            )
        return original(config, *args, **kwargs)

    wrap(config_module, "validate_config", validate_config)


@when_imported("verl.trainer.main_ppo")
def _check_trainers_that_do_not_validate(main_ppo: Any) -> None:
    # fully_async does not call `validate_config`, but calls this function. Under `python -m
    # verl.trainer.main_ppo` this hook does not run, because the module is then named `__main__`;
    # that command calls `validate_config`.
    def run_ppo(original: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        from gdpo_verl.plugin.checks import checks

        checks.check_before_ray(config)
        return original(config, *args, **kwargs)

    wrap(main_ppo, "run_ppo", run_ppo)


@when_imported("verl.trainer.constants_ppo")
def _listen_locally(constants: Any) -> None:
    # verl calls this function only in the driver, and only if it starts Ray itself (main_ppo.py,
    # `run_ppo`).
    def runtime_env(original: Any, config: Any = None) -> Any:
        from gdpo_verl.plugin.checks import validation
        from gdpo_verl.upstream import loopback

        if config is not None and "algorithm" in config and validation.uses_plugin(config):
            loopback.listen_locally(config)
        return original(config)

    wrap(constants, "get_ppo_ray_runtime_env", runtime_env)


@when_imported("torch.distributed.rendezvous")
def _keep_stores_local(rendezvous: Any) -> None:
    def store(original: Any, *positional: Any, **arguments: Any) -> Any:
        from gdpo_verl.upstream import loopback

        return original(*positional, **loopback.store_arguments(arguments))

    wrap(rendezvous, "TCPStore", store)


@when_imported("verl.trainer.ppo.v1")
@_on_supported_verl
def _wrap_default_trainer(v1: Any) -> None:
    from gdpo_verl.plugin.step import trainer

    trainer.install(v1)


@when_imported("verl.trainer.ppo.v1.agent_loop_tq")
@_on_supported_verl
def _record_session_errors(agent_loop_tq: Any) -> None:
    from gdpo_verl.plugin.step import replay_buffer

    replay_buffer.record_errors(agent_loop_tq)


@when_imported("verl.trainer.ppo.ray_trainer")
@_on_supported_verl
def _wrap_legacy_trainer(ray_trainer: Any) -> None:
    from gdpo_verl.plugin.step import legacy

    wrap(ray_trainer.RayPPOTrainer, "__init__", legacy.init)


@when_imported("verl.experimental.separation.ray_trainer")
@_on_supported_verl
def _wrap_separate_trainers(ray_trainer: Any) -> None:
    from gdpo_verl.plugin.step import legacy

    # fully_async does not call the constructor of RayPPOTrainer, which the hook above wraps.
    wrap(ray_trainer.SeparateRayPPOTrainer, "_fit_compute_advantage", legacy.before_advantage)


@when_imported("verl.trainer.ppo.metric_utils")
@_on_supported_verl
def _add_metrics_without_queue(metric_utils: Any) -> None:
    def compute(original: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        from gdpo_verl.plugin.step import legacy

        return original(batch, *args, **kwargs) | legacy.metrics_of(batch)

    wrap(metric_utils, "compute_data_metrics", compute)


@when_imported("verl.workers.engine_workers")
def _share_prompts(engine_workers: Any) -> None:
    def init_model(original: Any, worker: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(worker, *args, **kwargs)
        if worker.config.actor.get("use_prefix_grouper", False):
            from gdpo_verl.plugin import shared_prompts

            shared_prompts.share(worker)
        return result

    wrap(engine_workers.ActorRolloutRefWorker, "init_model", init_model)


@when_imported("verl.experimental.reward_loop.reward_manager")
@_on_supported_verl
def _register_reward_manager(_: Any) -> None:
    import gdpo_verl.plugin.step.reward_manager  # noqa: F401  it registers itself


_log_to_stderr()
