"""The replay buffer on a real TransferQueue: the filter by components, and failed sessions."""

import asyncio
from unittest import mock

import pytest
import ray
from fake_verl import emptied as emptied
from fake_verl import info, put, recipe, trainer_of

from gdpo_verl.plugin.step import replay_buffer
from gdpo_verl.plugin.step.replay_buffer import SessionFailures, filter_by_components

pytestmark = pytest.mark.real


def status(queue, status, *uids, partition="train"):
    for uid in uids:
        tag = {"is_prompt": True, "status": status, "global_steps": 1}
        queue.kv_put(key=uid, partition_id=partition, tag=tag)


def finish(queue, groups):
    """Leave groups with these rewards in the queue, as agent loops do."""
    for uid, infos in groups.items():
        put(queue, [(f"{uid}_{i}_0", [1], info) for i, info in enumerate(infos)])
        status(queue, "finished", uid)


def buffer_of(step=lambda: 1, **settings):
    """Make verl's replay buffer, which filters groups by the components of the toolbox recipe."""
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    config = recipe(**settings)
    buffer = ReplayBuffer(
        trainer_mode="sync",
        trainer_config=config.trainer.v1.sync,
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs={},
        refill_fn=lambda count: None,
        filter_groups_metric="components",
        train_batch_size=1,
        gen_batch_size=1,
    )
    filter_by_components(buffer, trainer_of(config).gdpo_hooks.objective, step)
    return buffer


GROUPS = {
    "same": [info(1.0, -1.0)] * 3,
    # Both rewards vary in two responses each. Normalised, they have the same size and opposite
    # signs.
    "cancels": [info(1.0, 0.0), info(0.0, 3.0)],
    "varies": [info(1.0, 3.0), info(1.0, 1.0)],
    "lonely": [info(1.0, 3.0)],
    "format": [info(1.0, -3.0), info(0.0, -3.0)],
}
CONDITION = {"conditions": {"format": {"on": "correctness", "at_least": -2.0}}}
SCHEDULE = {"schedule": {"format": {"steps": [0, 5], "weights": [0.0, 1.0]}}}


@pytest.mark.parametrize(
    ("settings", "dropped"),
    [
        # tests/numbers/test_variants.py tests other settings.
        (CONDITION, {"same", "cancels", "format"}),
        ({"variant": "rvpo"}, {"same"}),
    ],
)
def test_a_group_is_filtered_only_if_the_estimator_gives_it_no_advantage(queue, settings, dropped):
    finish(queue, GROUPS)
    buffer = buffer_of(**settings)
    buffer._sync_metadata_from_transfer_queue()
    found, counts = buffer._dapo_filtered_keys("train")
    assert found == dropped
    assert sum(counts.values()) == len(dropped)
    assert counts[0.0] == 1  # the score of "same"


def test_groups_are_filtered_again_when_a_weight_changes(queue):
    finish(queue, GROUPS)
    steps = [1]
    buffer = buffer_of(lambda: steps[-1], **SCHEDULE)
    buffer._sync_metadata_from_transfer_queue()
    assert buffer._dapo_filtered_keys("train")[0] == {"same", "format"}
    steps.append(5)
    assert buffer._dapo_filtered_keys("train")[0] == {"same", "cancels"}


def test_the_filter_reads_each_group_once_and_forgets_sampled_groups(queue, monkeypatch):
    read = mock.Mock(wraps=replay_buffer.reward_infos)
    monkeypatch.setattr(replay_buffer, "reward_infos", read)
    buffer = buffer_of()
    for name in ("same", "varies"):
        finish(queue, {name: GROUPS[name]})
        for _ in range(2):
            buffer._sync_metadata_from_transfer_queue()
            assert buffer._dapo_filtered_keys("train") == ({"same"}, {0.0: 1})
    first, second = [sorted(call.args[0]) for call in read.call_args_list]
    assert first == ["same_0_0", "same_1_0", "same_2_0"]
    assert second == ["varies_0_0", "varies_1_0"]

    # Groups that are sampled leave the queue, and the filter forgets them as well.
    buffer.finished_keys["train"] = {"varies"}
    assert buffer._dapo_filtered_keys("train") == (set(), {})
    assert buffer._dapo_classification_cache["train"].keys() == {"varies"}


def test_failed_sessions_are_counted_once(queue):
    finish(queue, {"whole": [info(1.0, 3.0)] * 3})
    buffer = buffer_of()
    failures = SessionFailures(buffer, 3, stop=False)
    buffer._sync_metadata_from_transfer_queue()
    assert failures.take() == 0

    # One of three sessions left two outputs, and no session of another prompt left any. A prompt
    # with more responses than sessions does not reduce the count.
    put(queue, [("half_0_0", [1], info(1.0, 3.0)), ("half_0_1", [1], info(1.0, 3.0))])
    put(queue, [(f"many_{row}_0", [1], info(1.0, 3.0)) for row in range(4)])
    status(queue, "failure", "half", "none", "many")
    status(queue, "failure", "held-out", partition="val")
    for _ in range(2):
        buffer._sync_metadata_from_transfer_queue()
    assert failures.take() == 2 + 3
    assert failures.take() == 0


def test_failed_sessions_are_no_longer_counted_after_the_counting_itself_fails(queue, caplog):
    buffer = buffer_of()
    failures = SessionFailures(buffer, None, stop=False)
    status(queue, "failure", "p")
    for _ in range(2):
        buffer._sync_metadata_from_transfer_queue()
    (record,) = (record for record in caplog.records if "failed_sessions" in record.getMessage())
    assert record.exc_info is not None
    assert failures.take() == 0


def worker_in_which_fails(*messages, name="agent_loop_worker_0_ab12"):
    """Start an actor, named like an agent loop worker, whose sessions have raised these errors."""

    @ray.remote
    class Worker:
        async def fail(self):
            import verl.trainer.ppo.v1.agent_loop_tq as agent_loop_tq

            async def session(message):
                raise KeyError(message)

            tasks = [asyncio.ensure_future(session(message)) for message in messages]
            return len(await agent_loop_tq._settle_session_tasks(tasks))

    worker = Worker.options(name=name, num_cpus=0).remote()
    assert ray.get(worker.fail.remote()) == len(messages)
    return worker


def test_a_run_in_which_every_session_fails_stops_with_the_reason(queue):
    buffer = buffer_of()
    SessionFailures(buffer, 3, stop=True)
    other = worker_in_which_fails("no such file", name="reward_loop_worker_0")
    assert replay_buffer.last_error() == "unknown"
    worker = worker_in_which_fails("no such table", "no such tool")
    uids = [f"p{i}" for i in range(8)]
    status(queue, "failure", *uids[:7])
    status(queue, "running", uids[7])
    buffer._sync_metadata_from_transfer_queue()  # one session may still answer
    status(queue, "failure", uids[7])
    with pytest.raises(RuntimeError, match=r"session failed: 8 prompts .*KeyError: 'no such tool'"):
        buffer._sync_metadata_from_transfer_queue()
    ray.kill(worker)
    ray.kill(other)


def test_a_run_that_refills_stops_if_failed_sessions_are_more_than_twice_the_waiting_ones(queue):
    buffer = buffer_of()
    buffer.trainer_mode = "separate_async"
    SessionFailures(buffer, 3, stop=True)
    status(queue, "running", "w0")
    status(queue, "pending", "w1")
    status(queue, "failure", "p0", "p1", "p2")
    buffer._sync_metadata_from_transfer_queue()
    # verl replaces failed prompts in the queue by new ones.
    queue.kv_clear(keys=["p0", "p1", "p2"], partition_id="train")
    status(queue, "failure", "q0")
    buffer._sync_metadata_from_transfer_queue()  # four have failed, and two wait
    # After one response the count starts again.
    put(queue, [("w0_0_0", [1], info(1.0, 3.0))])
    buffer._sync_metadata_from_transfer_queue()
    queue.kv_clear(keys=["w0_0_0"], partition_id="train")
    status(queue, "failure", "q1", "q2", "q3")
    buffer._sync_metadata_from_transfer_queue()
    status(queue, "failure", "q4")
    with pytest.raises(RuntimeError, match=r"session failed: 5 prompts of the partition 'train'"):
        buffer._sync_metadata_from_transfer_queue()
