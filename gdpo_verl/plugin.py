"""The entry point in verl's group `verl.plugins`: what is registered, and when.

verl loads it in each of its processes, so it imports next to nothing; each registration
waits until verl itself imports the module concerned. A hook must not raise: the importer
would get the exception, and the next import would succeed without the hook.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import wrapt

from gdpo_verl import __version__

logger = logging.getLogger(__name__)

Hook = Callable[[Any], None]


def _when_imported(name: str, *, only_supported: bool = True) -> Callable[[Hook], Hook]:
    def register(hook: Hook) -> Hook:
        def guarded(module: Any) -> None:
            try:
                from gdpo_verl import checks

                if not only_supported or checks.unsupported_verl() is None:
                    hook(module)
            except Exception:
                logger.exception(
                    "gdpo-verl could not be set up on %s; run `gdpo-verl doctor`", name
                )

        wrapt.register_post_import_hook(guarded, name)
        return hook

    return register


def _validate_config(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    from gdpo_verl import checks

    config = args[0] if args else kwargs["config"]
    if checks.is_gdpo(config):
        reason = checks.unsupported_verl()
        if reason is not None:
            raise ValueError(f"algorithm.adv_estimator=gdpo: {reason}")
        checks.check_run(config)
        announce()
    return wrapped(*args, **kwargs)


def announce() -> None:
    """One line on stderr; verl's root logger shows nothing below WARNING."""
    from importlib.metadata import version

    line = (
        f"gdpo-verl {__version__}: estimator 'gdpo' in place of verl {version('verl')}'s own; "
        "components, metrics and dumps through its PPO trainers"
    )
    sys.stderr.write(line + "\n")


@_when_imported("verl.trainer.ppo.core_algos", only_supported=False)
def _register_estimator(core_algos: Any) -> None:
    from gdpo_verl import checks, estimator

    # register_adv_est refuses a second "gdpo" (core_algos.py), hence the assignment.
    reason = checks.unsupported_verl()
    core_algos.ADV_ESTIMATOR_REGISTRY["gdpo"] = (
        estimator.gdpo if reason is None else estimator.unsupported(reason)
    )


@_when_imported("verl.utils.config", only_supported=False)
def _check_before_ray_starts(config_module: Any) -> None:
    wrapt.wrap_function_wrapper(config_module, "validate_config", _validate_config)


@_when_imported("verl.trainer.ppo.v1")
def _wrap_default_trainer(v1: Any) -> None:
    from gdpo_verl import trainer

    trainer.install(v1)


@_when_imported("verl.trainer.ppo.v1.agent_loop_tq")
def _record_session_errors(agent_loop_tq: Any) -> None:
    from gdpo_verl import failures

    failures.record_errors(agent_loop_tq)


@_when_imported("verl.trainer.ppo.ray_trainer")
def _wrap_legacy_trainer(ray_trainer: Any) -> None:
    from gdpo_verl import trainer

    trainer.install_legacy(ray_trainer)


@_when_imported("verl.experimental.reward_loop.reward_manager")
def _register_reward_manager(reward_manager: Any) -> None:
    from gdpo_verl.checks import MANAGER_NAME
    from gdpo_verl.reward_manager import ComponentsRewardManager

    reward_manager.register(MANAGER_NAME)(ComponentsRewardManager)
