"""The tiny policies: their tokenizers, their seeds, and the rejection of bad policies."""

import hashlib
import json
import random
import shutil
from dataclasses import replace
from itertools import islice
from statistics import mean
from unicodedata import normalize

import pytest
import torch
from hypothesis import example as for_example
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from gdpo_verl.lab import catalog, policy
from gdpo_verl.lab.cli import main
from gdpo_verl.lab.policy.model import make_model
from gdpo_verl.lab.policy.task import Settings

QUICK = Settings(steps=3, batch_size=4, evaluated=4, max_new_tokens=4)
TASKS = catalog.policy_tasks()
TOOLBOX = TASKS["toolbox"]


@pytest.fixture(params=TASKS)
def task(request):
    needed = {"bfcl": "bfcl_eval", "reasoning-gym": "reasoning_gym"}
    pytest.importorskip(needed.get(request.param, "json"))
    return TASKS[request.param]


@pytest.fixture(scope="module")
def tokenizer():
    return policy.train_tokenizer(TOOLBOX, 0, vocabulary=QUICK.vocabulary)


def make(out, *, settings=QUICK, **options):
    """Make a policy that is accepted even after a few steps."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(policy, "check_bands", lambda shares, task: None)
        policy.make_policy(out, TOOLBOX, settings=settings, **options)
    return out


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return make(tmp_path_factory.mktemp("made") / "policy", seed=0)


def test_the_command_offers_every_task():
    assert tuple(TASKS) == catalog.POLICY_TASKS


def test_any_text_survives_the_tokenizer(tokenizer):
    @for_example("Wie spät ist es in 東京? 🙂\r\n\t  zwei  Leerzeichen ")
    @for_example("<think> use add </think>\n<tool_call>\n{}\n</tool_call>")
    @for_example(" don't , a_b.c != 3.14159e-10")
    @given(st.text())
    def survives(text):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == normalize("NFC", text)

    survives()
    assert tokenizer.tokenize("1234567") == list("1234567")


def test_the_demonstrations_of_the_toolboxs_policy_never_change():
    # The digest of the tokens is fixed, so that a seed always gives the same policy.
    settings = TOOLBOX.settings
    tokenizer = policy.train_tokenizer(TOOLBOX, 0, vocabulary=settings.vocabulary)
    batches = islice(policy.batches(TOOLBOX, tokenizer, settings, seed=0), 8)
    read = [batch["input_ids"].tolist() for batch in batches]
    assert hashlib.sha256(str(read).encode()).hexdigest()[:32] == "dcc354a9af24306a9b01b2f597119a58"


def test_only_responses_enter_the_loss(tokenizer):
    settings = Settings(batch_size=8, flawed_format=0.0, flawed_content=0.0)
    batch = next(policy.batches(TOOLBOX, tokenizer, settings, seed=0))
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        trained = labels[labels != -100]
        text = tokenizer.decode(trained)
        assert text.startswith("<think>")
        assert text.endswith(f"</tool_call>{tokenizer.eos_token}")
        (where,) = (labels != -100).nonzero(as_tuple=True)
        assert tokenizer.decode(ids[: where[0]]).endswith("<|im_start|>assistant\n")
        assert (ids[where[-1] + 1 :] == tokenizer.pad_token_id).all()


def test_the_saved_policy_is_an_ordinary_qwen2_checkpoint(saved, tokenizer):
    record = json.loads((saved / "policy.json").read_text())
    assert (record["task"], record["seed"]) == ("toolbox", 0)
    assert record["settings"]["steps"] == QUICK.steps
    assert record["sampled"].keys() == {"format", "exact"}
    assert record["greedy"].keys() == {"format", "exact"}

    model = AutoModelForCausalLM.from_pretrained(saved)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert model.dtype == torch.float32
    assert 0.7e6 < model.num_parameters() < 0.9e6

    loaded = AutoTokenizer.from_pretrained(saved)
    assert len(loaded) == model.config.vocab_size
    assert (loaded.eos_token, loaded.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert model.generation_config.eos_token_id == loaded.eos_token_id
    example = TOOLBOX.draw(random.Random(5))
    prompts = [policy.encode_prompts(each, [example]) for each in (loaded, tokenizer)]
    assert prompts[0] == prompts[1]
    text = example.ground_truth + " 東京 1234"
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]


def test_the_same_seed_gives_the_same_weights(saved, tmp_path):
    torch.manual_seed(99)  # earlier random numbers must not matter
    weights = (saved / "model.safetensors").read_bytes()
    for seed in (0, 1):
        made = make(tmp_path / str(seed), seed=seed)
        same = (made / "model.safetensors").read_bytes() == weights
        assert same == (seed == 0)


def test_a_policy_outside_the_bands_is_rejected_and_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"'format', found 0\.0%; nothing was written"):
        policy.make_policy(tmp_path / "policy", TOOLBOX, settings=QUICK)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="in 'exact'"):
        policy.check_bands({"format": 0.68, "exact": 0.41}, TOOLBOX)
    policy.check_bands({"format": 0.55, "exact": 0.40}, TOOLBOX)


@pytest.mark.slow
def test_the_toolboxs_policy_is_within_its_bands(tmp_path):
    # this raises an error if the policy is outside the bands
    policy.make_policy(tmp_path / "policy", TOOLBOX)


def test_each_tasks_fixed_texts_are_one_token_and_its_perfect_answers_are_right(task):
    rng = random.Random(1)
    tokenizer = policy.train_tokenizer(task, 0, vocabulary=task.settings.vocabulary)
    assert all(len(tokenizer(phrase)["input_ids"]) == 1 for phrase in task.phrases)
    examples = [task.draw(rng) for _ in range(50)]
    prompts = policy.encode_prompts(tokenizer, examples)
    # the prompts have a thousand characters
    assert max(map(len, prompts)) <= (64 if task is TOOLBOX else 1000)
    for example, prompt in zip(examples, prompts, strict=True):
        assert example.messages[-1]["content"] in tokenizer.decode(prompt)
        answer = task.demonstrate(example, rng, 0.0, 0.0)
        assert task.grade(answer, example.ground_truth) == (True, True)
        if task.phrases:
            assert len(tokenizer(answer)["input_ids"]) < task.settings.max_new_tokens


def test_a_tasks_flaws_make_format_or_content_wrong_with_the_requested_probability(task):
    rng = random.Random(2)
    examples = [task.draw(rng) for _ in range(400)]

    def shares(*flawed):
        answers = [(task.demonstrate(e, rng, *flawed), e.ground_truth) for e in examples]
        graded = [task.grade(*each) for each in answers]
        return mean(form for form, _ in graded), mean(exact for _, exact in graded)

    assert shares(1.0, 0.0)[0] < 0.02
    form, exact = shares(0.0, 1.0)
    assert form == 1.0
    # A flaw may have no effect, for example if the drawn number is the same, or if there is only
    # one tool.
    assert exact < 0.25


def test_no_held_out_question_is_ever_demonstrated(task):
    rng = random.Random(3)
    drawn = {task.draw(rng).question for _ in range(3000)}
    held_out = {example.question for example in islice(task.held_out(0), 256)}
    assert len(held_out) > 20
    assert not drawn & held_out


# --- from a pretrained model ----------------------------------------------------------

PRETRAINED = replace(QUICK, vocabulary=0)


def test_a_pretrained_model_keeps_its_tokenizer_and_dtype(saved, tmp_path):
    AutoModelForCausalLM.from_pretrained(saved, dtype=torch.bfloat16).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(saved).save_pretrained(tmp_path)
    made = make(tmp_path / "made", base=str(tmp_path), settings=PRETRAINED)
    assert json.loads((made / "policy.json").read_text())["base"] == str(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(made, dtype="auto").dtype == torch.bfloat16
    before, after = (AutoTokenizer.from_pretrained(each) for each in (saved, made))
    assert after.get_vocab() == before.get_vocab()
    assert after.chat_template == before.chat_template
    old, new = ((each / "model.safetensors").read_bytes() for each in (tmp_path, made))
    assert old != new


def test_the_loss_of_a_pretrained_model_is_that_of_all_logits(saved, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(saved)
    whole, kept = (
        next(policy.batches(TOOLBOX, tokenizer, settings, seed=0))
        for settings in (QUICK, PRETRAINED)
    )
    assert kept["logits_to_keep"] < whole["input_ids"].shape[1]
    torch.testing.assert_close(model(**kept).loss, model(**whole).loss)


def test_every_step_uses_the_updated_weights_also_in_bfloat16(tokenizer):
    torch.manual_seed(0)
    model, settings = make_model(tokenizer), replace(QUICK, steps=40)
    batch = next(policy.batches(TOOLBOX, tokenizer, settings, seed=1))
    before = model(**batch).loss.item()
    policy.train(TOOLBOX, model, tokenizer, settings, seed=0, bfloat16=True)
    assert model(**batch).loss.item() < before / 2


@pytest.fixture(scope="module")
def damaged(saved, tmp_path_factory):
    """Make models without a tokenizer, with another vocabulary, or without a padding token."""
    made = tmp_path_factory.mktemp("damaged")
    for name in ("none", "another", "no_pad"):
        weights = shutil.ignore_patterns("tokenizer*", "*.jinja")
        shutil.copytree(saved, made / name, ignore=weights)
    tokenizer = AutoTokenizer.from_pretrained(saved)
    tokenizer.add_tokens(["<another>"])
    tokenizer.save_pretrained(made / "another")
    tokenizer.pad_token = None
    tokenizer.save_pretrained(made / "no_pad")
    (made / "thesis").mkdir()
    (made / "thesis/thesis.txt").touch()
    return made


FOLDER = "expected a new or empty directory or a policy, found other files"


REFUSED = {
    "--task bfcl": "--task bfcl: expected a pretrained model to train, found none. Give --from",
    "smollm2 --from a": "--from: smollm2 is fetched and not trained. Leave out",
    "smollm2 --task bfcl --seed 1": "--task, --seed: smollm2 is fetched and not trained.",
    "--out thesis": FOLDER,
    "smollm2 --out thesis": FOLDER,
    "--from thesis": "--from: expected the directory of a model, found no config.json in",
    "--from none": "a tokenizer",
    "--from another": "found 594 rows of embeddings and the token 594 in 'another'. Use the",
    "--from no_pad": "--from: expected a tokenizer with pad_token, found none in 'no_pad'",
}


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED.items(), ids=REFUSED)
def test_a_policy_that_cannot_be_made_is_rejected_and_nothing_is_written(
    damaged,
    monkeypatch,
    capsys,
    arguments,
    sentence,
):
    monkeypatch.chdir(damaged)
    there = sorted(damaged.rglob("*"))
    assert main(["make-policy", *arguments.split()]) == 1
    assert sentence in capsys.readouterr().err
    assert sorted(damaged.rglob("*")) == there
