"""Show the page: a local server that runs the notebook, or one static file."""

from __future__ import annotations

import importlib.util
import os
import runpy
import secrets
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from gdpo_verl.lab.text import pinned

PAGE = Path(__file__).with_name("notebook.py")


def serve_page(*, port: int | None = None, browser: bool = True) -> NoReturn:
    """Run marimo's server on this machine until Ctrl-C; it prints the address.

    The address contains a token, so that other users of the machine cannot use the server. Without
    a `port`, marimo chooses the first free one.

    Raises:
      ModuleNotFoundError: marimo is not installed.
    """
    _require_marimo()
    # --no-sandbox: because of the notebook's header, marimo would ask whether uv should create an
    # environment.
    arguments = ["run", str(PAGE), "--host", "127.0.0.1", "--no-sandbox", "--no-check"]
    arguments += ["--token", "--token-password-file", "-"]
    if port is not None:
        arguments += ["--port", str(port)]
    if not browser:
        arguments += ["--headless"]
    # The token is passed through a pipe, because every user can see the arguments of a process.
    # marimo's own token is not used: it is a hash, which is known if PYTHONHASHSEED is set.
    reader, writer = os.pipe()
    os.write(writer, secrets.token_urlsafe(16).encode())
    os.close(writer)
    os.dup2(reader, 0)
    # Run `python -m marimo` in this process, so that signals reach marimo and no process remains.
    sys.argv = ["marimo", *arguments]
    status = 1
    try:
        runpy.run_module("marimo", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        status = 130
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread that is still computing would abort the normal exit of the interpreter.
    os._exit(status)


def export(path: Path) -> Path:
    """Write the page, in its first state, into one HTML file without scripts.

    marimo's own export loads its assets from another host; this file loads nothing.

    Raises:
      ModuleNotFoundError: marimo is not installed.
    """
    _require_marimo()
    import marimo
    from markupsafe import Markup

    from gdpo_verl.lab.explain.charts import PARTS
    from gdpo_verl.lab.explain.notebook import app

    outputs: Any = app.run()[0]
    body = "\n".join(marimo.as_html(output).text for output in outputs if output is not None)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PARTS.static(Markup(body)), encoding="utf-8")
    return path


def _require_marimo() -> None:
    if importlib.util.find_spec("marimo") is None:
        raise ModuleNotFoundError(
            f"gdpo-verl explain: marimo is not installed. Run: pip install {pinned('marimo')}"
        )
