"""The code rewards through a service that speaks Sandbox Fusion's protocol."""

from __future__ import annotations

import json
import pickle
import threading

import pytest
from servers import Handler, serving
from test_sandbox import ASSERTS, CALL, CALLS, HOLDS, SCRIPT, SCRIPTS, TOTAL, verdict

from gdpo_verl.plugin.reward_function import in_configuration
from gdpo_verl.rewards.code import ParseError
from gdpo_verl.sandbox import Limits, Sandbox, SandboxError, Status, best_protection, child
from gdpo_verl.sandbox.fusion import check_service


class Service(Handler):
    """Speaks the protocol of Sandbox Fusion's `run_code`, and really runs the program."""

    failures = 0
    seen: list[dict] = []  # noqa: RUF012

    def do_POST(self):
        request = self.request_body()
        Service.seen.append(request)
        if Service.failures:
            Service.failures -= 1
            self.answer("", 504)
            return
        limits = Limits(request["run_timeout"], 600, int(request["memory_limit_MB"]))
        with Sandbox(best_protection(), limits) as sandbox:
            outcome = sandbox.run(request["code"], request["stdin"])
        late, passed = outcome.status is Status.TIMEOUT, outcome.status is Status.OK
        status = {Status.OK: 0, Status.SYNTAX: child.SYNTAX}.get(outcome.status, 1)
        ended = "TimeLimitExceeded" if late else "Finished"
        result = {"status": ended, "return_code": status, "stdout": outcome.text, "stderr": ""}
        body = {"status": "Success" if passed else "Failed", "message": "", "run_result": result}
        self.answer(json.dumps(body | {"compile_result": None}))


@pytest.fixture
def service():
    Service.seen.clear()
    Service.failures = 0
    with serving(Service) as address:
        yield f"{address}/run_code"


@HOLDS
@pytest.mark.parametrize(
    ("code", "tests", "expected"),
    [
        pytest.param(SCRIPT, SCRIPTS, (1, 1, 0), id="script"),
        pytest.param("1 / 0", SCRIPTS, (0, 0, 21), id="raises"),
        pytest.param("while True: pass", SCRIPTS, (0, 0, 22), id="never ends"),
        pytest.param("print('V3')\n" + CALL, CALLS, (1, 1, 0), id="call"),
        pytest.param("def add(a, b): return object()", CALLS, (0, 0, 26), id="an object"),
        pytest.param("def f(:", CALLS, (0, 0, 20), id="does not compile"),
        pytest.param(TOTAL, ASSERTS, (1, 1, 0), id="assert"),
    ],
)
def test_a_service_gives_the_same_verdicts_and_sees_no_expected_output(
    service, code, tests, expected
):
    semaphore = threading.Semaphore(2)
    timeout = 1 if expected[-1] == ParseError.TIMEOUT else 60
    found = verdict(
        code, tests, timeout=timeout, sandbox_fusion_url=service, concurrent_semaphore=semaphore
    )
    assert found == expected
    assert not any("candidate(" in request["stdin"] for request in Service.seen)
    assert semaphore.acquire(blocking=False)


@HOLDS
def test_a_busy_service_is_asked_again_and_a_broken_one_stops_the_run(service):
    Service.failures = 1
    assert verdict(SCRIPT, SCRIPTS, sandbox_fusion_url=service) == (1, 1, 0)
    with pytest.raises(SandboxError, match=r"sandbox_fusion_url=") as refused:
        check_service(service.replace("run_code", "").replace("127.0.0.1", "127.0.0.1:1/x?"))
    assert in_configuration(refused.value).startswith("reward.sandbox_fusion.url=http://127")
    again = pickle.loads(pickle.dumps(refused.value))  # as Ray does from one process to another
    assert str(again) == str(refused.value)
