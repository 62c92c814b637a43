"""Make a tiny policy that solves a part of a task, in a few minutes on one CPU core.

The policy is a Qwen2 of about a million parameters with its own tokenizer, trained from random
weights on flawed demonstrations. Its training ends where reinforcement learning is interesting: the
format of a response is often right, its content seldom. The fixed parts of the prompt (header,
tools, footer) are one token each, so that the toolbox's prompts of a thousand characters take about
forty tokens. A pretrained model with its own tokenizer can be used instead of random weights.

The questions and demonstrations of a task are in the folder of its recipe, in ``policy.py``.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gdpo_verl.cpu.settings import multiplies_bfloat16
from gdpo_verl.lab.generation import generate
from gdpo_verl.lab.policy.model import encode_prompts, make_model, train_tokenizer
from gdpo_verl.lab.policy.pretrained import check_out, load, save
from gdpo_verl.lab.policy.task import FINETUNING, PolicyTask, Settings
from gdpo_verl.lab.tasks.examples import Example


def batches(
    task: PolicyTask, tokenizer: PreTrainedTokenizerBase, settings: Settings, *, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield batches of new demonstrations, padded on the right; only responses enter the loss."""
    rng = random.Random(f"policy/{seed}")
    while True:
        examples = [task.draw(rng) for _ in range(settings.batch_size)]
        flawed = settings.flawed_format, settings.flawed_content
        answers = [task.demonstrate(example, rng, *flawed) for example in examples]
        prompts = encode_prompts(tokenizer, examples)
        # The policy has to learn the end token as well, because only this token ends a response.
        ended = [f"{answer}{tokenizer.eos_token}" for answer in answers]
        responses = tokenizer(ended, add_special_tokens=False)["input_ids"]
        rows = []
        trained = []
        for prompt, response in zip(prompts, responses, strict=True):
            rows.append(torch.tensor(prompt + response))
            trained.append(torch.tensor([-100] * len(prompt) + response))
        # In causal attention no token sees the tokens after it, so that padding on the right needs
        # no attention mask.
        ids = pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
        labels = pad_sequence(trained, batch_first=True, padding_value=-100)
        batch: dict[str, Any] = {"input_ids": ids, "labels": labels}
        if not settings.vocabulary:
            # Logits over a large vocabulary take most of the memory, and only those of the response
            # are needed.
            keep = ids.shape[1] - min(map(len, prompts)) + 1
            batch |= {"labels": labels[:, -keep:], "logits_to_keep": keep}
        yield batch


def train(
    task: PolicyTask,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: Settings,
    *,
    seed: int,
    bfloat16: bool = False,
) -> None:
    """Train ``model`` in place on flawed demonstrations.

    With ``bfloat16``, matrix products are computed in bfloat16.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, total_steps=settings.steps, pct_start=settings.warmup
    )
    model.train()
    bar = tqdm(
        islice(batches(task, tokenizer, settings, seed=seed), settings.steps),
        total=settings.steps,
        desc="training the policy",
        # A terminal shows a moving bar; a log file gets a line every 20 seconds.
        mininterval=0.1 if sys.stderr.isatty() else 20.0,
    )
    for step, batch in enumerate(bar):
        # Each step needs a new context, because autocast caches its copy of the weights.
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)


def evaluate(
    task: PolicyTask,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    settings: Settings,
    *,
    sample: bool,
) -> dict[str, float]:
    """Measure the shares of responses with the right format, and with exactly the right content."""
    # A training run samples its rollouts without top-k and top-p as well.
    how = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {}
    most = settings.max_new_tokens
    prompts = encode_prompts(tokenizer, examples)
    responses = generate(model, tokenizer, prompts, max_new_tokens=most, do_sample=sample, **how)
    answers = tokenizer.batch_decode(responses, skip_special_tokens=True)
    pairs = zip(answers, examples, strict=True)
    graded = [task.grade(answer, example.ground_truth) for answer, example in pairs]
    right_formats = sum(right_format for right_format, _ in graded)
    exact = sum(right_content for _, right_content in graded)
    return {"format": right_formats / len(graded), "exact": exact / len(graded)}


def check_bands(shares: Mapping[str, float], task: PolicyTask) -> None:
    """Raise ValueError unless reinforcement learning can still improve the sampled shares."""
    for name, (low, high) in (("format", task.format_band), ("exact", task.exact_band)):
        if not low <= shares[name] <= high:
            raise ValueError(
                f"policy: expected {low:.0%} to {high:.0%} of the sampled responses to be "
                f"right in {name!r}, found {shares[name]:.1%}; nothing was written. "
                "Try another seed, or change Settings.flawed_format and Settings.flawed_content."
            )


def make_policy(
    out_dir: Path,
    task: PolicyTask,
    *,
    seed: int = 0,
    settings: Settings | None = None,
    base: str | None = None,
) -> dict[str, Any]:
    """Train the policy and save it as an ordinary checkpoint with its tokenizer.

    This function sets torch's seed and number of threads, and does not restore them.

    Args:
      out_dir: the directory of the checkpoint; an earlier policy in it is replaced.
      task: the task, such as one of `catalog.policy_tasks`.
      seed: determines the weights. On machines of the same kind they are equal to the last bit.
      settings: settings that replace the calibrated ones.
      base: the directory of a pretrained model to start from; None starts from random weights.

    Returns:
      the content of ``policy.json``: task, base, seed, settings, measured shares, seconds.

    Raises:
      ValueError: the measured shares are outside the task's bands (nothing is written), the task
        needs a ``base``, or `load` rejects the base.
      FileExistsError: ``out_dir`` contains something that is not a policy.
    """
    if base:
        threads = torch.get_num_threads()
        settings = settings or replace(task.settings, **FINETUNING, threads=threads)
    elif not task.phrases:
        raise ValueError(
            f"--task {task.name}: expected a pretrained model to train, found none. Give --from "
            "MODEL; `gdpo-verl make-policy smollm2` downloads one."
        )
    settings = settings or task.settings
    check_out(out_dir)  # before the training, which takes minutes
    began = time.monotonic()
    fast = base is not None and multiplies_bfloat16()
    torch.manual_seed(seed)
    torch.set_num_threads(settings.threads)
    if base:
        tokenizer, model, dtype = load(base)
    else:
        tokenizer = train_tokenizer(task, seed, vocabulary=settings.vocabulary)
        model = make_model(tokenizer)
        dtype = torch.float32
    train(task, model, tokenizer, settings, seed=seed, bfloat16=fast)
    # The shares are measured with the dtype of the saved weights, unless float32 is faster here.
    model.to(dtype if fast else torch.float32)
    examples = list(islice(task.held_out(seed), settings.evaluated))
    shares = {
        how: evaluate(task, model, tokenizer, examples, settings, sample=how == "sampled")
        for how in ("sampled", "greedy")
    }
    record: dict[str, Any] = {
        "task": task.name,
        "base": base,
        "seed": seed,
        "settings": asdict(settings),
        "parameters": sum(p.numel() for p in model.parameters()),
        **shares,
        "seconds": round(time.monotonic() - began, 1),
    }
    # The sampled shares count, because a training run samples. Greedy responses are right more
    # often.
    check_bands(shares["sampled"], task)
    save(out_dir, model.to(dtype), tokenizer, record)
    return record
