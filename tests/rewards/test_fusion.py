"""The code rewards through a service that speaks Sandbox Fusion's protocol."""

import json
import pickle
import threading

import pytest
from servers import Handler, serving
from test_sandbox import HOLDS, SCRIPT, SCRIPTS, verdict
from verdicts import SETTINGS, cases_of

from gdpo_verl.plugin.checks.reward_function import in_configuration
from gdpo_verl.rewards.code import ParseError, compute_score
from gdpo_verl.sandbox import Limits, Sandbox, SandboxError, Status, best_protection, child
from gdpo_verl.sandbox.fusion import check_service


class Service(Handler):
    """Speaks the protocol of Sandbox Fusion's `run_code`, and really runs the program."""

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
    Service.seen = []
    Service.failures = 0
    with serving(Service) as address:
        yield f"{address}/run_code"


KINDS = [
    "script",
    "script, one right and one raises",
    "call",
    "call, beside a line of the service's own",
    "call, an object",
    "call, no Python",
    "assert",
]
CASES = {case["why"]: case for case in cases_of("code") if case["why"] in KINDS}


@HOLDS
@pytest.mark.parametrize("kind", KINDS)
def test_a_service_gives_the_same_verdicts_and_sees_no_expected_output(service, kind):
    case = CASES[kind]
    semaphore = threading.Semaphore(2)
    found = compute_score(
        "mine",
        case["answer"],
        case["truth"],
        {"response_length": 1},
        sandbox_fusion_url=service,
        concurrent_semaphore=semaphore,
        **SETTINGS["code"],
    )
    found["parse_error"] = ParseError(found["parse_error"]).name
    assert {key: found[key] for key in case["expected"]} == case["expected"]
    assert not any("candidate(" in request["stdin"] for request in Service.seen)
    assert semaphore.acquire(blocking=False)


@HOLDS
def test_a_program_that_never_ends_is_ended_there(service):
    found = verdict("while True: pass", SCRIPTS, timeout=1, sandbox_fusion_url=service)
    assert found == (0, 0, ParseError.TIMEOUT)


@HOLDS
def test_a_busy_service_is_asked_again_and_a_broken_one_stops_the_run(service):
    Service.failures = 1
    assert verdict(SCRIPT, SCRIPTS, sandbox_fusion_url=service) == (1, 1, 0)
    with pytest.raises(SandboxError, match=r"sandbox_fusion_url=") as refused:
        check_service(service.replace("run_code", "").replace("127.0.0.1", "127.0.0.1:1/x?"))
    assert in_configuration(refused.value).startswith("reward.sandbox_fusion.url=http://127")
    again = pickle.loads(pickle.dumps(refused.value))  # as Ray does from one process to another
    assert str(again) == str(refused.value)
