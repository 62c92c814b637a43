"""The commands in the README and the documentation."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import hydra
import pytest
from documents import PAGES, ROOT, name_of
from omegaconf import OmegaConf
from test_check_reward import check as check
from test_check_reward import work as work
from test_check_reward import write_data

from gdpo_verl.config import GdpoConfig
from gdpo_verl.lab.check_reward import compose as compose_for_check
from gdpo_verl.lab.cli import _parser, main
from gdpo_verl.lab.dry_run import dry_run
from gdpo_verl.lab.run.composition import RecipeError, compose, hardware_of
from gdpo_verl.lab.run.submit import absolute

DEFAULT = compose("toolbox/gdpo").actor_rollout_ref.model.path
VERL = "python -m verl.trainer.main_ppo"


def commands(page):
    """Return the commands in a page's blocks of bash, each as one line."""
    text = page.read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL))
    return re.sub(r" *\\\n *", " ", blocks).splitlines()


def printed(page, begin):
    """Return the commands of a page that begin with these words."""
    return [line for line in commands(ROOT / "docs" / page) if line.startswith(begin)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_printed_command_parses(page):
    parser = _parser()
    for line in commands(page):
        line = re.sub(r"^(\w+=\S+ )+|^for .* do |; done$", "", line.strip())
        for name in re.findall(r"scripts/[\w/]+\.(?:sh|py)\b", line):
            assert (ROOT / name).is_file(), line
        line = re.sub(r"scripts/(train|submit)\.sh", r"gdpo-verl \1", line)
        if not line.startswith("gdpo-verl "):
            continue
        words = shlex.split(line, comments=True)[1:]
        words = words[: words.index("--")] if "--" in words else words
        if words[0] == "submit":
            words += ["--run", "runs/mine"]  # scripts/submit.sh reads it from the variable RUN
        options, rest = parser.parse_known_args(words)
        assert options.takes_overrides or not rest, line
        assert not [word for word in rest if word.startswith("--")], line


def test_verls_own_command_composes_with_known_settings():
    lines = [line for page in PAGES for line in commands(page) if VERL in line]
    lines = [line for line in lines if "--config-" not in line]
    assert len(lines) > 3  # README, the tutorial, the weights, the page on CPUs
    recipe = compose("toolbox/gdpo")
    for line in lines:
        variables, _, words = line.partition(" ...")[0].partition(VERL)
        with hydra.initialize_config_module("verl.trainer.config", version_base=None):
            config = hydra.compose("ppo_trainer", shlex.split(words.replace("$1", "gdpo")))
        GdpoConfig.from_algorithm(config.algorithm)
        assert config.algorithm.adv_estimator == "gdpo"
        if variables == "VERL_PLATFORM=cpu ":
            for key in ("ray_kwargs", "trainer.device", "actor_rollout_ref.rollout.dtype"):
                assert OmegaConf.select(config, key) == OmegaConf.select(recipe, key)


@pytest.fixture
def conf(tmp_path, monkeypatch):
    """Make a clone, and run the page's commands that make a user's own recipe."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    for begin in ("mkdir ", "cp ", "sed "):
        (line,) = printed("recipes.md", begin)
        subprocess.run(["bash", "-c", line], check=True)
    return tmp_path / "conf"


def test_commands_of_the_pages_compose_and_name_a_model(conf, capsys):
    lines = printed("recipes.md", "gdpo-verl train") + printed("cpu.md", "gdpo-verl train")
    lines += printed("choose_variant.md", "scripts/train.sh")
    assert len(lines) > 5
    for line in lines:
        words = shlex.split(line.replace("$PWD", str(conf.parent)), comments=True)[1:]
        command = ["train", *words] if line.startswith("scripts/train.sh") else words
        printing = [word for word in command if word != "--dry-run"] + ["--cfg", "job"]
        assert main(printing) == 0, line
        config = OmegaConf.create(capsys.readouterr().out)
        assert config.actor_rollout_ref.model.path != DEFAULT, line


def test_a_users_recipe_is_found_by_every_command_and_uses_parts_of_gdpo_verl(conf):
    task = conf / "mine" / "task.yaml"
    task.write_text(task.read_text().replace("train_batch_size: 32", "train_batch_size: 64"))
    # verl's own command composes in this way
    with hydra.initialize_config_dir(str(conf), version_base=None):
        verls = hydra.compose("mine/gdpo")
    assert verls.data.train_batch_size == 64
    assert verls.trainer.device == "cpu"
    assert compose("mine/gdpo", directory=conf) == verls
    assert compose_for_check("mine/gdpo", [], conf).data == verls.data
    assert hardware_of("mine/gdpo", directory=conf) == "cpu"

    model = conf.parent / "model"
    model.mkdir()
    (model / "config.json").touch()
    path = f"actor_rollout_ref.model.path={model}"
    assert path in absolute("mine/gdpo", ["actor_rollout_ref.model.path=model"], None, conf)
    lines = dry_run("mine/gdpo", conf.parent / "run", [path], config_dir=conf).lines
    assert f"--config-dir {conf} --config-name mine/gdpo" in "\n".join(lines)
    with pytest.raises(RecipeError, match=r"'mine/gdop' does not exist in .*Did you mean 'mine/gd"):
        compose("mine/gdop", directory=conf)


def test_a_recipe_with_its_own_search_path_keeps_it(conf):
    own = conf / "mine" / "gdpo.yaml"
    (conf.parent / "more" / "hardware").mkdir(parents=True)
    (conf.parent / "more" / "hardware" / "mine.yaml").write_text(
        "# @package _global_\ntrainer: { device: cpu, n_gpus_per_node: 3 }\n"
    )
    places = f"[file://{conf.parent / 'more'}]"  # neither verl's folder nor that of gdpo-verl
    own.write_text(re.sub(r"searchpath: .*", f"searchpath: {places}", own.read_text()))
    config = compose("mine/gdpo", ["hardware=mine"], conf)
    assert config.trainer.n_gpus_per_node == 3


def test_the_settings_of_the_judges_page_reach_the_judge_and_a_missing_reply_is_a_problem(check):
    text, _ = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/judge.md").read_text(), re.DOTALL)
    Path("mine").mkdir()
    head = "# @package _global_\ndefaults: [/ppo_trainer, /hardware: cpu, _self_]\n"
    head += "hydra: {searchpath: [pkg://verl.trainer.config, pkg://gdpo_verl.recipes]}\n"
    Path("mine/gdpo.yaml").write_text(head + text.replace("HOST:8000", "127.0.0.1:9"))
    write_data("rows.parquet", truths=["2222"] * 3)
    options = ["--config-dir", ".", "--recipe", "mine/gdpo", "--data", "rows.parquet"]
    options += ["actor_rollout_ref.model.path=null"]
    again = "reward.custom_reward_function.reward_kwargs.judge.repeats=0"
    status, output, _ = check(None, *options, f"+{again}")
    assert status == 1
    assert re.search(
        r"(\d+) of \1 responses .* no 'judge'; at most 10% may\. .*127\.0\.0\.1:9", output
    )


def test_the_quickstart_explains_at_ctrl_c_how_to_continue(tmp_path):
    folder = tmp_path / "scripts"
    folder.mkdir()
    for name in ("quickstart.sh", "environment.sh"):
        shutil.copy(ROOT / "scripts" / name, folder)
    (folder / "setup.sh").write_text("#!/bin/sh\nkill -INT $PPID\n")
    (folder / "setup.sh").chmod(0o755)
    command = ["bash", str(folder / "quickstart.sh")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert "Interrupted. The same command continues" in done.stderr


def test_the_names_of_the_quickstarts_policies_and_data_exist():
    script = (ROOT / "scripts/quickstart.sh").read_text(encoding="utf-8")
    assert re.findall(r"make_policy=(\w+)", script) == ["tiny", "smollm2"]
    for command in ("make-policy tiny", "make-policy smollm2"):
        _parser().parse_args(command.split())
    for words in re.findall(r"prepare=\((.+?)\)", script):
        _parser().parse_args(["prepare", *words.split()])


def test_the_quickstart_page_changes_one_setting_of_the_scripts_run():
    text = (ROOT / "scripts/quickstart.sh").read_text(encoding="utf-8")
    (settings,) = re.findall(r"^recipe=toolbox[\s\S]*?^half=.*$", text, re.MULTILINE)
    (training,) = re.findall(r"\$gdpo train ([\s\S]*?trainer\.save_freq=\S+)", text)
    shell = f"name=toolbox estimator=gdpo\n{settings}\nmodel=$PWD/models/$policy\n"
    shell += f"printf '%s\\n' {training}"
    script = subprocess.check_output(["bash", "-c", shell], cwd=ROOT, text=True).splitlines()
    (line,) = printed("quickstart.md", "gdpo-verl train")
    page = shlex.split(line.replace("$PWD", str(ROOT)))[2:]
    assert page[:2] == ["toolbox/gdpo", "--run"]
    assert script[:2] == page[:2]
    page.remove("+algorithm.gdpo.conditions={format: {on: correctness, at_least: 3.0}}")
    assert compose("toolbox/gdpo", page[3:]) == compose("toolbox/gdpo", script[3:])


# Lines of verl's file logger for a step, without spaces, and for a validation.
STEP = '{"step":%d,"data":{"val-core/format":0.5,"timing_s/step":%.1f,"timing_s/gen":2.0}}\n'
VALIDATED = '{"step":%d,"data":{"val-core/format":0.5}}\n'


@pytest.mark.parametrize(
    ("steps", "before", "rest"),
    [
        # After 3 steps of 60 s from a start at step 0, GDPO has 17 steps left, and GRPO has 20.
        (20, 0, "37 min more, at 60.0 s a step"),
        (12, 0, "21 min more, at 60.0 s a step"),
        # The run resumes after step 6. The earlier steps were slower, but only the new ones count.
        (20, 6, "31 min more, at 60.0 s a step"),
    ],
)
def test_the_quickstart_estimates_after_three_steps_how_long_both_runs_will_take(
    steps, before, rest, tmp_path
):
    script = (ROOT / "scripts/quickstart.sh").read_text(encoding="utf-8")
    # A function of the script is one line, or ends with a line that contains only a brace.
    functions = re.findall(r"^\w+\(\) \{(?: .*\}|\n[\s\S]*?\n\})$", script, re.MULTILINE)
    earlier = [STEP % (step, 500.0) for step in range(1, before + 1)]
    (tmp_path / "metrics.1.jsonl").write_text("".join(earlier))
    new = [VALIDATED % before]
    new += [STEP % (before + 1, 70.0), STEP % (before + 2, 50.0), STEP % (before + 3, 60.0)]
    (tmp_path / "new").write_text("".join(new))
    # Whenever the script waits, the simulated run writes another line.
    functions.append("sleep() { head -n $((++lines)) new > metrics.jsonl; }")
    functions.append(f"set -euo pipefail; lines=0; steps={steps}; say_rest .")
    shell = "\n".join(functions)
    said = subprocess.check_output(["bash", "-c", shell], cwd=tmp_path, text=True)
    assert said.startswith(f"     both runs take about {rest}   [")
