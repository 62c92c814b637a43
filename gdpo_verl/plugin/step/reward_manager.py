"""The reward manager that gives GDPO and its GRPO baseline the same components.

It extends verl's `naive` manager:

- The reward function gets the length of the response in tokens as `extra_info['response_length']`.
  As with verl's `gdpo` manager, it also gets the name of the experiment.
- The score is the weighted sum of the components. GDPO normalises the same components with the same
  weights, so both estimators optimise the same quantity.
- If the prompt itself opens the thought (it ends with a tag such as `<think>`), this tag is put in
  front of the response, so that the reward function sees the assistant's complete turn.
- A judge (a model that rates the response) may be configured in `reward_kwargs`. It is asked at the
  same time.

The reward function may be sync or async.

If the components of a response cannot be read, the response keeps the score of the reward function.
An exception here would only remove the rollout. Besides, validation data may have other rewards,
and verl does not tell a manager that a response belongs to a validation. For a training response
the trainer hooks raise an error that names the row.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from gdpo_verl.config import GdpoConfig, Objective
from gdpo_verl.names import UNSCORED
from gdpo_verl.plugin.checks.reward_function import JUDGE, MANAGER_NAME, components_of, judge_of
from gdpo_verl.reward_dicts import score_of, unnested, with_numbers
from gdpo_verl.rewards.thought import opened_thought

logger = logging.getLogger(__name__)

# The opening tag of a thought, with white space, has at most this many tokens, even if a tokenizer
# has one token for each byte.
_MOST_TOKENS_OF_OPENING = 32


@register(MANAGER_NAME)
class ComponentsRewardManager(NaiveRewardManager):
    """verl's `naive` manager with the score sum_k w_k r_k after the conditions.

    Its name in the configuration is ``reward.reward_manager.name=gdpo_components``.
    """

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **kwargs: Any) -> None:
        # verl wraps a custom function in a partial.
        function = getattr(compute_score, "args", [compute_score])[0]
        self.declared = components_of(function, config)
        self.judge = judge_of(function, config)
        judge = self.judge
        if judge:
            del compute_score.args[1]["judge"]  # verl's copy of the reward_kwargs
            self.judge = replace(
                judge,
                url=judge.url or f"http://{kwargs.get('reward_router_address')}/v1",
                model=judge.model or config.reward.reward_model.model_path,
                requests=math.ceil(judge.requests / config.reward.num_workers),
            )
        settings = _sandbox_settings(function, config.reward.get("sandbox_fusion") or {})
        compute_score = _may_lack_score(partial(compute_score, **settings))
        super().__init__(config, tokenizer, compute_score, **kwargs)
        gdpo = GdpoConfig.from_algorithm(config.algorithm)
        # Without components the reward function returns only a score, which is enough for other
        # estimators than GDPO.
        named = self.declared or gdpo.reward_keys is not None
        self.objective: Objective | None = gdpo.resolve(self.declared) if named else None
        # The data sources about which a warning was logged, and the judge's key if one was logged
        # about it.
        self.warned: set[str] = set()

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Score one rollout (verl's session) by its last output."""
        data = data[-1:]
        length = _trim_response(data)
        self._put_opened_thought_in_front(data)
        extra_info = {"experiment_name": self.config.trainer.experiment_name}
        extra_info |= data[0].non_tensor_batch.get("extra_info") or {}
        column = np.array([extra_info | {"response_length": length}], dtype=object)
        data.non_tensor_batch["extra_info"] = column
        judged: dict[str, Any]
        result: dict[str, Any]
        result, judged = await asyncio.gather(super().run_single(data), self._judge(data[0]))
        info = result["reward_extra_info"]
        both = judged.keys() & info.keys()
        if both:
            raise ValueError(f"{JUDGE}.name: the reward function returns {both} itself")
        info.update(judged)
        if self.judge and judged[f"{self.judge.name}_error"] and JUDGE not in self.warned:
            self.warned.add(JUDGE)
            text = "%s: a response is not scored, others are counted in %s: %s"
            error = judged[f"{self.judge.name}_error"]
            logger.warning(text, JUDGE, UNSCORED.of(self.judge.name), error)
        if self.objective is not None:
            source = str(data[0].non_tensor_batch["data_source"])  # instead of numpy's string type
            try:
                score = score_of(info, self.objective, f"of data source {source!r}")
                info["score"] = result["reward_score"] = score
                info.update(with_numbers(info, self.objective))
            except ValueError as error:
                if result["reward_score"] is None:
                    raise
                if source not in self.warned:
                    self.warned.add(source)
                    logger.warning(
                        "the score of the reward function is kept, as in a validation: %s", error
                    )
        elif result["reward_score"] is None:
            raise KeyError("score")
        return result

    async def _judge(self, row: Any) -> Any:
        """Let the judge rate the only response; return {} without a judge."""
        if self.judge is None:
            return {}
        columns = row.non_tensor_batch
        criteria = (columns.get("extra_info") or {}).get(self.judge.rubric)
        return await self.judge.ask(
            criteria=criteria if criteria is None else list(criteria),
            prompt="\n\n".join(str(turn["content"]) for turn in columns.get("raw_prompt", ())),
            response=self.tokenizer.decode(row.batch["responses"], skip_special_tokens=True),
            ground_truth=str(columns["reward_model"].get("ground_truth")),
        )

    def _put_opened_thought_in_front(self, data: Any) -> None:
        prompt = data.batch["prompts"][0]
        length = data.non_tensor_batch.get("prompt_len")
        if length is not None:
            prompt = prompt[: int(length[0])]  # there may be padding to the right of the prompt
        tokenizer: Any = self.tokenizer
        opening = opened_thought(tokenizer.decode(prompt[-_MOST_TOKENS_OF_OPENING:]))
        if opening:
            tokens = tokenizer.encode(opening, add_special_tokens=False)
            responses = data.batch["responses"]
            responses = torch.cat([responses.new_tensor([tokens]), responses], dim=1)
            data.batch["responses"] = responses
            data.batch["attention_mask"] = torch.ones_like(responses)


def _may_lack_score(function: Any) -> Any:
    """Wrap a reward function so that its dict always has a 'score', which may be None.

    verl's manager reads 'score', and this manager computes it later. The entries of
    `reward_components` are moved to the top level, because verl's validation averages each value
    there.
    """

    def completed(result: Any) -> Any:
        return {"score": None, **unnested(result)} if isinstance(result, dict) else result

    async def awaited(**kwargs: Any) -> Any:
        return completed(await function(**kwargs))

    if inspect.iscoroutinefunction(function):
        return awaited
    return lambda **kwargs: completed(function(**kwargs))


def _sandbox_settings(function: Any, sandbox_fusion: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments from `reward.sandbox_fusion` for a function that has such parameters.

    verl passes them only to its own rewards (verl/trainer/ppo/reward.py, `load_reward_manager`).
    """
    parameters = inspect.signature(function).parameters
    if not sandbox_fusion.get("url") or "sandbox_fusion_url" not in parameters:
        return {}
    return {
        "sandbox_fusion_url": sandbox_fusion["url"],
        "memory_limit_mb": sandbox_fusion["memory_limit_mb"],
        # The threads of this reward worker share one semaphore, as in verl.
        "concurrent_semaphore": threading.BoundedSemaphore(sandbox_fusion["max_concurrent"]),
    }


def _trim_response(data: Any) -> int:
    """Remove the padding of the only response, and return its length in tokens.

    The agent loop pads the outputs of a rollout on the right of prompt and response together. The
    place where verl's managers look for the mask of the response then has other tokens. They would
    read a response that is shorter than others of its group with its padding
    (verl/experimental/agent_loop/agent_loop.py, `_compute_score`). The agent loop also passes the
    length, which is used here.
    """
    responses = data.batch["responses"]
    mask = data.batch["attention_mask"]
    length = data.non_tensor_batch.get("response_len")
    length = int(mask[0, -responses.shape[-1] :].sum() if length is None else length[0])
    data.batch["responses"] = responses[:, :length]
    data.batch["attention_mask"] = torch.ones_like(responses[:, :length])
    return length
