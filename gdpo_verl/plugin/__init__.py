"""The entry point in verl's group `verl.plugins`: what is registered, and when.

verl loads it in each of its processes, so it imports next to nothing; each registration
waits until verl itself imports the module concerned.
"""

from __future__ import annotations

import sys
from typing import Any

from gdpo_verl import __version__
from gdpo_verl.hooks import Hook, when_imported, wrap


def _on_supported_verl(hook: Hook) -> Hook:
    def supported(module: Any) -> None:
        from gdpo_verl.plugin import contract

        if contract.misfit() is None:
            hook(module)

    return supported


@when_imported("verl.trainer.ppo.core_algos")
def _register_estimator(core_algos: Any) -> None:
    from gdpo_verl.plugin import contract, estimator

    # register_adv_est refuses a second "gdpo" (core_algos.py), hence the assignment.
    reason = contract.misfit()
    core_algos.ADV_ESTIMATOR_REGISTRY["gdpo"] = (
        estimator.gdpo if reason is None else estimator.unsupported(reason)
    )


@when_imported("verl.utils.config")
def _check_before_ray_starts(config_module: Any) -> None:
    def validate_config(original: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        from gdpo_verl.plugin import validation

        if validation.is_gdpo(config):
            validation.check_run(config)
            _announce()
        else:
            validation.check_schedule(config)
        return original(config, *args, **kwargs)

    wrap(config_module, "validate_config", validate_config)


@when_imported("verl.trainer.ppo.v1")
@_on_supported_verl
def _wrap_default_trainer(v1: Any) -> None:
    from gdpo_verl.plugin import trainer

    trainer.install(v1)


@when_imported("verl.trainer.ppo.v1.agent_loop_tq")
@_on_supported_verl
def _record_session_errors(agent_loop_tq: Any) -> None:
    from gdpo_verl.plugin import replay_buffer

    replay_buffer.record_errors(agent_loop_tq)


@when_imported("verl.trainer.ppo.ray_trainer")
@_on_supported_verl
def _wrap_legacy_trainer(ray_trainer: Any) -> None:
    from gdpo_verl.plugin import trainer

    trainer.install_legacy(ray_trainer)


@when_imported("verl.experimental.reward_loop.reward_manager")
@_on_supported_verl
def _register_reward_manager(_: Any) -> None:
    import gdpo_verl.plugin.reward_manager  # noqa: F401  it registers itself


def _announce() -> None:
    """One line on stderr; verl's root logger shows nothing below WARNING."""
    from importlib.metadata import version

    sys.stderr.write(
        f"gdpo-verl {__version__}: estimator 'gdpo' in place of verl {version('verl')}'s own; "
        "components, metrics and dumps through its PPO trainers\n"
    )
