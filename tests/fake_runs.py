"""Write runs in verl's formats for the tests of the report, and read the report's page."""

import json
import uuid
from html.parser import HTMLParser

from gdpo_verl.lab.report import write_report

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
COMPONENTS = ["format", "correctness"]


def training(step, format_, correctness, **more):
    """Return the line of the `file` tracker for a training step."""
    data = {
        "training/global_step": step,
        "rewards/format/mean": format_,
        "gdpo/format/constant_groups": 0.25,
        "gdpo/format/influence": 0.5,
        "gdpo/noise_floor": 1.5,
        "rewards/format/max": 1.0,
        "rewards/correctness/mean": correctness,
        "gdpo/correctness/constant_groups": 0.5,
        "rewards/correctness/max": 3.0,
        "timing_s/step": 2.0,
        "actor/entropy": None,  # orjson writes NaN as null
    }
    return {"step": step, "data": data | more}


def validation(format_, correctness):
    return {
        "val-aux/toolbox/format/mean@1": format_,
        "val-aux/toolbox/correctness/mean@1": correctness,
        "val-core/toolbox/reward/mean@1": format_ + correctness,
        "val-aux/num_turns/mean": 2.0,
    }


def answer(prompt, output, format_, correctness):
    """Return a row of a validation dump."""
    score = format_ + correctness
    scores = {"score": score, "reward": score, "format": format_, "correctness": correctness}
    return {"input": prompt, "output": output, "gts": f"call for {prompt} {HOSTILE}", **scores}


def rollout(uid, format_, correctness, gdpo, grpo):
    """Return a row of a rollout dump, with the columns of the plug-in."""
    advantages = {"gdpo_advantage": gdpo, "grpo_advantage": grpo}
    return {"uid": uid, **answer("question", "…", format_, correctness), **advantages}


# Format and correctness add up to 2 in both of the first rows, so that they are equal for GRPO.
COLLAPSED = [
    rollout("a_0_0", 1.0, 1.0, 0.9, 0.5),
    rollout("a_1_0", 0.0, 2.0, -0.2, 0.5),
    rollout("a_2_0", 0.0, -3.0, -1.25, -1.5),
    rollout("b_0_0", 1.0, 1.0, 0.7, 0.7),
    rollout("b_1_0", 0.0, 1.0, -0.7, -0.7),
    rollout("padding_0_0", 0.0, 0.0, None, None),
]


def verls_uid(name):
    """Return a UUID, as verl uses for uids; the same name gives the same UUID."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


def write_lines(path, records, end=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + end)


def write_run(path, estimator="gdpo", *, gain=1.0):
    """Write a run of three steps, with a validation before the first and after the last step."""
    last = training(3, 0.8, 0.5 + gain, **validation(0.9, 1.5), **{"timing_s/testing": 4.0})
    lines = [
        {"step": 0, "data": validation(0.6, 0.25)},
        training(1, 0.6, 0.5),
        training(2, 0.7, 0.75),
        last,
    ]
    write_lines(path / "metrics.jsonl", lines)
    write_lines(path / "rollouts/2.jsonl", COLLAPSED)
    same = answer("add 2", "same", 1.0, 3.0)
    write_lines(path / "validation/0.jsonl", [answer("add 1", HOSTILE, 0.0, -3.0), same])
    write_lines(path / "validation/3.jsonl", [answer("add 1", "now right", 1.0, 3.0), same])
    (path / "config.yaml").write_text(
        f"algorithm: {{adv_estimator: {estimator}}}\n"
        f"trainer: {{total_training_steps: 3, default_local_dir: '{path}/saved'}}\n"
        "actor_rollout_ref: {model: {path: /somewhere/tiny}}\n"
    )
    return path


class Page(HTMLParser):
    """A page as a browser parses it, without running its script.

    Attributes:
      tags, references: the names of all elements, and all addresses in their attributes.
      open: the elements that are not closed.
      text: the text that a browser shows.
      scripts: the text of each script element by its id; the page's own script has no id.
    """

    def __init__(self, html):
        super().__init__()
        self.tags = []
        self.references = []
        self.open = []
        self.text = ""
        self.scripts = {}
        self.script = None  # the id of the element that is open
        self.feed(html)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in {"meta", "br", "link", "img", "input"}:
            self.open.append(tag)
        if tag == "script":
            self.script = dict(attrs).get("id", "")
        for name, value in attrs:
            is_reference = name in {"src", "href", "xlink:href", "action", "data", "srcset"}
            if is_reference and value != "data:,":  # the empty icon of the page
                self.references.append(value or "")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "script":
            self.script = None

    def handle_data(self, data):
        if self.script is None:
            self.text += f" {data}"
        else:
            self.scripts[self.script] = self.scripts.get(self.script, "") + data


def page_of(out, *runs):
    """Write the report about runs into `out`, and return its page."""
    return Page(write_report(runs, out).read_text(encoding="utf-8"))


def summary_of(out, *runs):
    """Write the report about runs into `out`, and return its tables and sentences as text."""
    write_report(runs, out)
    return (out / "summary.md").read_text(encoding="utf-8")
