"""A run of somebody else executes no code, and shows nothing of the reader's environment."""

import re
import subprocess
from pathlib import Path

import markdown_it
import pyarrow
import pyarrow.parquet
import pytest
import torch
from fake_runs import write_lines
from matplotlib.figure import Figure
from omegaconf import OmegaConf
from test_checkpoints import write_checkpoint
from test_evaluate import config_of_run, line

from gdpo_verl.config.parsing import plain
from gdpo_verl.lab.cli import main
from gdpo_verl.lab.evaluate.model import check_tensors
from gdpo_verl.lab.report import write_report
from gdpo_verl.lab.report.svg import inline_svg
from gdpo_verl.lab.report.tables import markdown
from gdpo_verl.lab.rundir import dumps
from gdpo_verl.lab.rundir.run import settings_with
from gdpo_verl.lab.rundir.source import Source
from gdpo_verl.lab.rundir.trust import foreign_code

SECRET = "a-secret-of-the-reader"
EVIL = "open({!r}, 'w')\ndef compute_score(*_, **__): ...\ncompute_score.components = ['right']\n"


TWO_ROWS = [line("q", 0, right=0.0, step=1), line("q", 1, right=1.0, step=1)]


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.setenv("SECRET", SECRET)


@pytest.fixture
def evil(tmp_path):
    """Write a module that leaves a trace when it is imported; return it and the trace."""
    trace = tmp_path / "executed"
    module = tmp_path / "evil.py"
    module.write_text(EVIL.format(str(trace)))
    return module, trace


def test_only_references_within_the_file_are_resolved(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "whole: ${oc.env:SECRET}\n"
        "a: {number: 3, of: '${a.number}', chain: '${a.of}'}\n"
        "parts: x ${a.number} ${oc.env:SECRET}\n"
        "nested: '${${whole}}'\n"
        "list: ['${oc.env:SECRET}', '\\${oc.env:SECRET}']\n"
    )
    settings = OmegaConf.to_container(settings_with(file), resolve=True)
    assert settings == {
        "whole": "${oc.env:SECRET}",
        "a": {"number": 3, "of": 3, "chain": 3},
        "parts": "x 3 ${oc.env:SECRET}",
        "nested": "${${oc.env:SECRET}}",
        "list": ["${oc.env:SECRET}", "\\${oc.env:SECRET}"],
    }


def test_report_and_replay_show_no_environment_variable_of_the_reader(tmp_path, capsys):
    text = "${oc.env:SECRET}"
    runs = [str(tmp_path / name) for name in "ab"]
    for run in runs:
        metrics = {"step": 1, "data": {"rewards/right/mean": 0.5}}
        write_lines(Path(run, "metrics.jsonl"), [metrics])
        write_lines(Path(run, "rollouts/1.jsonl"), TWO_ROWS)
        Path(run, "config.yaml").write_text(
            f"actor_rollout_ref: {{model: {{path: '{text}'}}}}\n"
            f"algorithm: {{adv_estimator: '{text}', gdpo: {{epsilon: '{text}'}}, of: {run}}}\n"
        )
    assert main(["report", *runs, "--out", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert text in page
    main(["replay", runs[0]])
    main(["replay", runs[0], "algorithm.adv_estimator=gdpo"])
    printed = capsys.readouterr()
    assert text in printed.err  # the epsilon is a text, which is no number
    for shown in (page, printed.out, printed.err):
        assert SECRET not in shown


FOREIGN = [
    ("reward.custom_reward_function.path", "/elsewhere/evil.py"),
    ("reward.custom_reward_function.path", "pkg://evil"),
    ("actor_rollout_ref.rollout.multi_turn.function_tool_path", "/elsewhere/evil.py"),
    ("actor_rollout_ref.rollout.multi_turn.tool_config_path", "tools.yaml"),
    ("actor_rollout_ref.rollout.agent.agent_loop_config_path", "agents.yaml"),
    ("actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module", "evil"),
    ("actor_rollout_ref.model.trust_remote_code", True),
    ("actor_rollout_ref.model.external_lib", "evil"),
    ("actor_rollout_ref.actor._target_", "os.system"),
    ("actor_rollout_ref.actor.optim.optimizer_impl", "evil"),
    ("+actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls", "evil.Worker"),
    ("global_profiler.finish_hook_cmd", "touch executed"),
    ("+ray_kwargs.ray_init.address", "ray://198.51.100.1:10001"),
    ("+ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH", "evil"),
    ("+ray_kwargs.ray_init.runtime_env.worker_process_setup_hook", "evil.hook"),
    ("+data.custom_cls.path", "/elsewhere/evil.py"),
    ("+algorithm.gdpo.variant", "pkg://evil:compute_score"),
    ("+algorithm.gdpo.derived.x", "/elsewhere/evil.py:compute_score"),
]  # fmt: skip


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    run = config_of_run(tmp_path_factory.mktemp("run"))
    return OmegaConf.load(run / "config.yaml")


def test_a_recipes_own_run_names_no_foreign_code(recipe):
    assert foreign_code(plain(recipe)) == {}


@pytest.mark.parametrize(("key", "value"), FOREIGN)
def test_code_from_elsewhere_is_found(recipe, key, value):
    config = recipe.copy()
    OmegaConf.update(config, key.lstrip("+"), value, force_add=True)
    found = foreign_code(plain(config))
    assert found[key.lstrip("+")] == str(value)
    assert set(found.values()) == {str(value)}  # keys that refer to it are found as well


def write_tensors(directory):
    checkpoint = write_checkpoint(directory, 1)
    for file in checkpoint.rglob("*.pt"):
        torch.save({"weight": torch.ones(2)}, file)
    return checkpoint


def a_run(tmp_path, config):
    run = tmp_path / "run"
    write_tensors(run / "checkpoints")
    OmegaConf.save(config, run / "config.yaml")
    return run


def test_evaluate_names_the_code_that_it_loads_and_rejects_foreign_code(
    recipe, tmp_path, monkeypatch, capsys, evil
):
    module, trace = evil
    started = []
    monkeypatch.setattr("gdpo_verl.lab.run.launch.answer", lambda *each, **_: started.append(each))
    config = recipe.copy()
    config.reward.custom_reward_function.path = str(module)
    run = a_run(tmp_path, config)
    command = ["evaluate", str(run), "--out", str(tmp_path / "out")]
    assert main(command) == 1
    assert not started
    refused = capsys.readouterr().err
    assert f"{run}/config.yaml: expected only code of gdpo-verl" in refused
    assert f"reward.custom_reward_function.path={module}" in refused
    assert "add --trust" in refused

    main([*command, "--trust"])
    main([*command, "reward.custom_reward_function.path=pkg://gdpo_verl.rewards.tool_call"])
    printed = capsys.readouterr().err
    assert f"evaluate loads reward.custom_reward_function.path: {module}" in printed
    assert f"evaluate loads the weights in {run}/checkpoints/global_step_1\n" in printed
    assert len(started) == 2
    assert not trace.exists()


class Executed:
    """An object whose pickle opens a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_checkpoint_that_would_execute_code_is_rejected(tmp_path):
    checkpoint = write_tensors(tmp_path)
    check_tensors(checkpoint)
    trace = tmp_path / "executed"
    torch.save({"weight": Executed(trace)}, checkpoint / "data.pt")
    with pytest.raises(ValueError, match=r"data\.pt: expected only tensors, .* add --trust"):
        check_tensors(checkpoint)
    assert not trace.exists()
    torch.load(checkpoint / "data.pt", weights_only=False)
    assert trace.exists()


def test_hydra_reads_only_the_settings_of_a_run(recipe, tmp_path, monkeypatch):
    executed = {"hydra": {"callbacks": {"x": {"_target_": "os.system", "command": "true"}}}}
    run = a_run(tmp_path, OmegaConf.merge(recipe, executed, {"defaults": ["other", "_self_"]}))
    for file in ("other.yaml", "hardware/cpu.yaml"):
        (run / file).parent.mkdir(exist_ok=True)
        (run / file).write_text(f"# @package _global_\n{OmegaConf.to_yaml(executed)}")
    shown = []

    def driver(config, command, *_, **__):
        show = [*command, "--cfg", "hydra"]
        shown.append(subprocess.run(show, capture_output=True, text=True, check=True).stdout)

    monkeypatch.setattr("gdpo_verl.lab.run.launch.answer", driver)
    main(["evaluate", str(run), "--out", str(tmp_path / "out"), "hardware=cpu"])
    assert "os.system" not in shown[0]
    assert "hardware: cpu" in shown[0]


def test_replay_and_compare_run_no_code_of_a_run_without_trust(tmp_path, capsys, evil):
    module, trace = evil
    run = str(tmp_path / "run")
    rows = [row | {"depth": 1.0} for row in TWO_ROWS]
    write_lines(Path(run, "rollouts/1.jsonl"), rows)
    write_lines(Path(run, "validation/0.jsonl"), rows)
    Path(run, "config.yaml").write_text(
        "algorithm: {adv_estimator: gdpo, gdpo: {variant: 'pkg://evil:compute_score'}}\n"
        "reward:\n"
        f"  custom_reward_function: {{path: {module}, name: compute_score}}\n"
        "  reward_manager: {name: gdpo_components, source: register, module: {}}\n"
    )
    assert main(["replay", run]) == 1
    assert "algorithm.gdpo.variant=pkg://evil:compute_score" in capsys.readouterr().err
    assert main(["compare", run, run]) == 0
    # every number counts, because the declaration is unknown
    assert "depth" in capsys.readouterr().out
    assert not trace.exists()
    assert main(["compare", run, run, "--trust"]) == 0
    assert "depth" not in capsys.readouterr().out
    assert trace.exists()


# ------------------------------------------------------------------ files from elsewhere


def test_a_small_file_with_a_huge_table_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(dumps, "DUMP_BYTES", 1 << 20)
    file = tmp_path / "completions_1.parquet"
    long = pyarrow.array(["x" * (1 << 20)])
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1024), long)
    pyarrow.parquet.write_table(pyarrow.table({"completion": column}), file, compression="zstd")
    assert file.stat().st_size < 4096
    with pytest.raises(ValueError, match=r"at most \d MiB, 1000 times its file, found more"):
        list(dumps.numbered_rows(file))


def test_a_dump_with_a_huge_step_number_needs_no_memory(tmp_path):
    for step in (1, 2, 3_000_000_000):
        write_lines(tmp_path / f"{step}.jsonl", [line("q", right=1.0) | {"step": step}])
    assert Source(tmp_path).notes == []


def test_a_name_does_not_reach_the_terminal_as_a_command(tmp_path, capsys):
    name = "right\x1b]0;owned\x07\u202e"
    rows = [line("q", sample, **{name: float(sample)}) | {"step": 1} for sample in range(2)]
    for folder in ("rollouts", "validation"):
        write_lines(tmp_path / folder / "1.jsonl", rows)
    main(["replay", str(tmp_path)])
    main(["replay", str(tmp_path / name)])
    main(["compare", str(tmp_path), str(tmp_path)])
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert "right\\x1b]0;owned\\x07\\u202e" in text
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_a_report_replaces_a_link_and_leaves_its_target(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    write_lines(tmp_path / "run" / "metrics.jsonl", [{"step": 1, "data": {"rewards/a/mean": 0.5}}])
    out = tmp_path / "report"
    out.mkdir()
    names = ("summary.md", "index.html")
    for name in names:
        (out / name).symlink_to(precious)
    write_report([tmp_path / "run"], out)
    assert precious.read_text() == "mine"
    assert not any((out / name).is_symlink() for name in names)


@pytest.mark.parametrize(
    "name", ["![x](http://a.b/c)", "[x](//a.b)", "https://a.b", "www.a.b", "<img src=x>", "[x]: y"]
)
def test_a_name_is_text_in_the_summary(name):
    text = markdown(name)
    html = markdown_it.MarkdownIt("commonmark").render(text)
    assert "<a" not in html
    assert "<img" not in html
    assert not re.search(r"(?<!\\)://|www\.", text)  # GitHub would turn these into links


def test_a_label_that_looks_like_an_id_stays_a_label():
    label = 'the id="e" of #e'
    figure = Figure()
    figure.subplots().set_title(label)
    svg = inline_svg(figure, "a name", {})
    assert label in svg
    references = re.findall(r'(?:href="#|url\(#)([\w-]+)', svg)
    assert references
    assert set(references) <= set(re.findall(r' id="([\w-]+)"', svg))
