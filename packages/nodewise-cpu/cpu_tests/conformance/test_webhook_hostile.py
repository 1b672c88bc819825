"""The webhook responds to any input, and to valid reviews meanwhile."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cpu_tests.conformance import webhook_process
from cpu_tests.conformance.webhook_process import Object, Webhook

CORES = "cmk.intel.com/exclusive-cores"
LONGEST = 3 * 2**20
SPOILS: list[Any] = [None, True, 0, -1, 1.5, "", "x", [], [[]], [None], {}, {"a": None}]


@pytest.fixture(scope="module")
def webhook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    with webhook_process.serving(tmp_path_factory.mktemp("hostile"), "--insecure=True") as running:
        yield running


def corrupted(value: Any) -> Iterator[Any]:
    """The value, with each part in turn replaced or removed."""
    yield from SPOILS
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {name: value[name] for name in value if name != key}
            yield from (value | {key: other} for other in corrupted(inner))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from ([*value[:index], other, *value[index + 1 :]] for other in corrupted(inner))


def whole() -> Object:
    """A review of a pod with every field that is read."""
    pod = webhook_process.pod_with_request()
    pod["metadata"]["annotations"] = {"cmk.intel.com/mutate": "true"}
    container = pod["spec"]["containers"][0]
    container |= {"env": [{"name": "A", "value": "b"}], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    container["resources"]["limits"] = {CORES: "1"}
    pod["spec"] |= {"initContainers": [container], "volumes": [{"name": "v"}], "tolerations": [{"key": "a"}]}
    return webhook_process.review(pod)


def in_a_review(pod: str) -> bytes:
    return json.dumps(webhook_process.review({})).replace('"object": {}', f'"object": {pod}').encode()


def in_a_container(text: str) -> bytes:
    """A container that requests cores, with more fields."""
    asks = f'"resources": {{"requests": {{"{CORES}": "1"}}}}'
    return in_a_review(f'{{"spec": {{"containers": [{{"name": "c", {asks}, {text}}}]}}}}')


def filled(before: str, unit: str, after: str) -> str:
    """A review with as many units as a body may have."""
    return before + ",".join([unit] * ((LONGEST - 4096) // (len(unit) + 1))) + after


DEEP = 200_000
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "blanks": b" " * 1000,
    "no JSON": b"\x00\xff\xfe",
    "no UTF-8": in_a_review('{"a": "X"}').replace(b"X", b"\xff"),
    "half a surrogate": in_a_review('{"metadata": {"annotations": {"a": "\\ud800"}}}'),
    "more after it": in_a_review("{}") + b"{}",
    "a byte order mark": b"\xef\xbb\xbf" + in_a_review("{}"),
    "deep lists": b"[" * DEEP,
    "a deep pod": in_a_review("[" * DEEP + "]" * DEEP),
    "a deep spec": in_a_review('{"spec": ' + '{"a": ' * DEEP + "1" + "}" * DEEP + "}"),
    "deep where nobody looks": in_a_container('"x": ' + "[" * DEEP + "]" * DEEP),
    "deep variables": in_a_container('"env": ' + "[" * 900 + "]" * 900),
    "a long number": in_a_container('"x": ' + "9" * 100_000),
    "a number out of range": in_a_container('"x": 1e999'),
    "cores without end": in_a_review(
        f'{{"spec": {{"containers": [{{"resources": {{"requests": {{"{CORES}": {"9" * 5000}}}}}}}]}}}}'
    ),
    "cores of many powers": in_a_review(
        f'{{"spec": {{"containers": [{{"resources": {{"requests": {{"{CORES}": "1e9999"}}}}}}]}}}}'
    ),
    "a key twice": in_a_review('{"spec": {"containers": []}, "spec": {"containers": 5}}'),
    "many containers": in_a_review(
        filled('{"spec": {"containers": [', f'{{"resources": {{"limits": {{"{CORES}": 1}}}}}}', "]}}")
    ),
    "many variables": in_a_container(filled('"env": [', '{"name": "a"}', "]")),
    "many lists": in_a_container(filled('"volumeMounts": [', "[]", "]")),
    "many keys": in_a_container(filled('"x": {', '"a": 1', "}")),
    "a long text": in_a_container('"x": "' + "x" * (LONGEST - 4096) + '"'),
    "too long": b"[" + b" " * LONGEST,
}


def expect_answer(webhook: Webhook, body: bytes) -> int:
    answer = webhook.post(body)
    review = answer.json()
    if answer.status_code == 200:
        response = review["response"]
        assert response["uid"]
        assert response["allowed"] or response["status"]["message"]
    else:
        assert answer.status_code in (400, 413)
        assert review["error"]
        assert review["problems"]
    return answer.status_code


def test_each_thing_that_is_something_else(webhook: Webhook) -> None:
    bodies = [json.dumps(document).encode() for document in corrupted(whole())]
    assert len(bodies) > 500
    with webhook.client(webhook.certificates.context()) as client:
        for body in bodies:
            answer = client.post("/mutate", content=body, headers={"Content-Type": "application/json"})
            review = answer.json()
            if answer.status_code == 200:
                assert review["response"]["allowed"] or review["response"]["status"]["message"], body
            else:
                # a conflict with the mutations can be caused by the pod or by the mutations
                assert answer.status_code == (500 if "mutations" in review["error"] else 400), body
                assert review["problems"], body
    assert webhook.operations()


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_bodies_that_mean_harm(webhook: Webhook, body: bytes) -> None:
    expect_answer(webhook, body)
    assert webhook.operations()


def test_valid_reviews_are_answered_during_invalid_ones(webhook: Webhook) -> None:
    """All of them at once, again and again."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def pester(bodies: list[bytes]) -> None:
        try:
            while not ended.is_set():
                for body in bodies:
                    expect_answer(webhook, body)
        except BaseException as error:
            failures.append(error)

    bodies = list(HOSTILE.values())
    threads = [threading.Thread(target=pester, args=(bodies[start::2],)) for start in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            assert webhook.operations()
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert webhook.process.is_running
    assert not webhook.process.log_line_has("request_failed")
