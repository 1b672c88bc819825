"""Malformed statistics, requests and clusters for the scoring agents, in real processes.

For every input, the response is valid or a refusal, scores are integers from 0 to 10, and the decision names missing
statistics.
"""

import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests import forked_commands
from tests.hostile import response_checks
from tests.hostile.extender_process import AttackedExtender, RawConnection
from tests.hostile.json_strategies import encoded

from scorers_tests.hostile import scoring_extender, scoring_inputs
from scorers_tests.hostile.scoring_extender import CLUSTERLESS, GOOD, scores
from scorers_tests.hostile.scoring_inputs import (
    AGE,
    AMOUNTS,
    RESOURCES,
    ROOM,
    SCORES,
    STATISTICS,
    TEXTS,
    VERBS,
    AnnotationText,
    body,
    node,
    pod,
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedExtender]:
    with scoring_extender.running(tmp_path_factory.mktemp("scoring"), *CLUSTERLESS) as target:
        yield target


@pytest.fixture(scope="module")
def line(target: AttackedExtender) -> Iterator[RawConnection]:
    with scoring_extender.connected(target) as line:
        yield line


def ask_everything(
    line: RawConnection,
    pod: Any,
    nodes: Sequence[Any],
    *,
    refused: bool = False,
    paths: Iterable[str] = tuple(VERBS),
) -> None:
    """Checks the responses of all paths; with `refused`, a refusal is accepted too."""
    names = [node["metadata"]["name"] for node in nodes]
    bodies = {verb: encoded(body(pod, nodes, verb)) for verb in {VERBS[path] for path in paths}}
    for path in paths:
        verb = VERBS[path]
        answer = line.ask(path, bodies[verb])
        assert refused or answer.status == 200, (path, answer.body[:300])
        response_checks.check(verb, answer, names if answer.status == 200 else None)


def numbers(line: RawConnection, name: str) -> dict[str, Any]:
    """The numbers on which the newest decision about the pod is based, by agent and node."""
    answer = line.ask(f"/decisions?pod={name}&limit=1", b"", "GET", {})
    numbers: dict[str, Any] = response_checks.document(answer)["decisions"][0]["numbers"]
    return numbers


def missing_statistics(line: RawConnection, name: str, of: str) -> dict[str, Any]:
    """The missing statistics of a node in the newest decision about the pod, by agent."""
    numbers_of_node = numbers(line, name)
    safe = {resource: numbers_of_node["safe"][of][resource].get("missing") for resource in ("cpu", "memory")}
    return {
        "safe": safe,
        "congestion": numbers_of_node["congestion"][of].get("missing"),
        "pigeon": numbers_of_node["pigeon"][of].get("missing", []),
    }


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_annotations(line: RawConnection, text: AnnotationText) -> None:
    nodes = [node("odd", dict.fromkeys(STATISTICS, text.text)), node("good", GOOD)]
    new_pod = pod("annotations", cpu="100m", memory="64Mi")
    ask_everything(line, new_pod, nodes)
    scores(line, "/scheduler/prioritize", new_pod, nodes)
    reasons = missing_statistics(line, "annotations", "odd")
    nothing = None if text.is_number else "no statistics"
    assert reasons["safe"] == {"cpu": nothing, "memory": nothing}
    assert bool(reasons["congestion"]) is not text.is_whole
    assert reasons["pigeon"] == ([] if text.is_number else list(RESOURCES))
    good = missing_statistics(line, "annotations", "good")
    assert good == {"safe": {"cpu": None, "memory": None}, "congestion": None, "pigeon": []}


@pytest.mark.parametrize("text", [text for text in TEXTS.values() if not text.is_number])
def test_a_missing_deviation_is_reported(line: RawConnection, text: AnnotationText) -> None:
    odd = node("odd", {**GOOD, "std-free-cpu": text.text})
    ask_everything(line, pod("deviation"), [odd])
    scores(line, "/scheduler/prioritize", pod("deviation"), [odd])
    assert missing_statistics(line, "deviation", "odd")["safe"] == {"cpu": "no deviation", "memory": None}


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_times_that_are_none_are_no_age(line: RawConnection, text: AnnotationText) -> None:
    odd = node("odd", {**GOOD, AGE: text.text})
    assert scores(line, "/scheduler/priorities/safe-overload", pod("times"), [odd]) == [10]
    assert numbers(line, "times")["safe"]["odd"]["cpu"].get("missing") is None


@pytest.mark.parametrize(
    ("time", "why"),
    [
        ("0001-01-01T00:00:00Z", "statistics are too old"),
        ("1969-12-31T23:59:59Z", "statistics are too old"),
        ("9999-12-31T23:59:59Z", "statistics are too old"),
        ("2026-02-30T00:00:00Z", None),
        ("99999-01-01T00:00:00Z", None),
    ],
)
def test_times_of_another_age(line: RawConnection, time: str, why: str | None) -> None:
    odd = node("odd", {**GOOD, AGE: time})
    ask_everything(line, pod("ages"), [odd])
    scores(line, "/scheduler/priorities/safe-overload", pod("ages"), [odd])
    assert numbers(line, "ages")["safe"]["odd"]["cpu"].get("missing") == why


NO_AMOUNTS = ("", "0", "-1", "abc", "NaN", "1_000", "0x10", 0, -1, True, None, [], {})


@pytest.mark.parametrize("amount", NO_AMOUNTS, ids=repr)
def test_nothing_is_allocatable(line: RawConnection, amount: Any) -> None:
    odd = node("odd", GOOD, dict.fromkeys(ROOM, amount))
    ask_everything(line, pod("room"), [odd, node("good", GOOD)])
    assert scores(line, "/scheduler/prioritize", pod("room"), [odd, node("good", GOOD)])[1] > 0
    reasons = missing_statistics(line, "room", "odd")["safe"]
    assert reasons == {"cpu": "nothing is allocatable", "memory": "nothing is allocatable"}


@pytest.mark.parametrize(
    "room", [None, [], {}, "", 0, "4 cores", {"": 1}, {"CPU": "4"}, [["cpu", "4"]]], ids=repr
)
def test_allocatable_of_every_wrong_shape(line: RawConnection, room: Any) -> None:
    odd = node("odd", GOOD, room)
    ask_everything(line, pod("shape"), [odd, node("good", GOOD)])
    scores(line, "/scheduler/prioritize", pod("shape"), [odd])
    assert missing_statistics(line, "shape", "odd")["safe"]["cpu"] == "nothing is allocatable"


@pytest.mark.parametrize("amount", AMOUNTS, ids=lambda amount: repr(amount)[:20])
def test_amounts(line: RawConnection, amount: Any) -> None:
    """Amounts of nodes, and of pods with containers of every kind."""
    nodes = [node("odd", GOOD, dict.fromkeys(ROOM, amount)), node("good", GOOD)]
    ask_everything(line, pod("amounts", cpu="100m", memory="64Mi"), nodes)
    new_pod = pod("amounts", cpu=amount, memory=amount, gpu=amount, ephemeral_storage=amount)
    container = new_pod["spec"]["containers"][0]
    new_pod["spec"]["initContainers"] = [container, {**container, "restartPolicy": "Always"}]
    new_pod["spec"]["overhead"] = {"cpu": amount}
    ask_everything(line, new_pod, nodes, refused=isinstance(amount, bool | list | dict))


def test_a_pod_that_asks_for_more_than_there_is_fits_nowhere(line: RawConnection) -> None:
    nodes = [node("a", GOOD), node("b", GOOD)]
    new_pod = pod("large", cpu="9Ei", memory="9Ei")
    ask_everything(line, new_pod, nodes)
    assert scores(line, "/scheduler/priorities/pigeon-holing", new_pod, nodes) == [0, 0]
    assert scores(line, "/scheduler/priorities/safe-overload", new_pod, nodes) == [0, 0]
    _, failed = response_checks.check_filtered(line.ask("/scheduler/filter", encoded(body(new_pod, nodes))))
    assert set(failed) == {"a", "b"}


@pytest.mark.parametrize("count", [1, 1000])
def test_pods_of_many_containers(line: RawConnection, count: int) -> None:
    new_pod = pod("containers", cpu="9Ei", memory="9Ei")
    new_pod["spec"]["containers"] *= count
    new_pod["spec"]["initContainers"] = new_pod["spec"]["containers"]
    ask_everything(line, new_pod, [node("a", GOOD)])


SPECS = (
    {}, {"containers": None}, {"containers": []}, {"containers": [{}]}, {"containers": [{"resources": None}]},
    {"containers": [{"resources": {"requests": None}}]}, {"containers": [{"resources": {"requests": {}}}]},
    {"containers": [{"resources": {"requests": {"cpu": None, "memory": None}}}], "initContainers": None},
)  # fmt: skip
ODD_SPECS = (
    None, [], "", 0, {"containers": {}}, {"containers": "c"}, {"containers": [None]}, {"containers": ["c"]},
    {"containers": [{"resources": []}]}, {"containers": [{"resources": {"requests": ["cpu"]}}]},
    {"containers": [{"resources": {"requests": "cpu=1"}}]}, {"initContainers": [[]]},
)  # fmt: skip


@pytest.mark.parametrize("spec", [*SPECS, *ODD_SPECS], ids=repr)
def test_pods_of_every_shape(line: RawConnection, spec: Any) -> None:
    pod = {"metadata": {"name": "spec", "namespace": "d"}, "spec": spec}
    ask_everything(line, pod, [node("a", GOOD)], refused=spec in ODD_SPECS)


@pytest.mark.parametrize(
    "labels", [None, {}, {"": ""}, {"podtype": None}, {"podtype": 7}, {"app": []}, [], "x", 0], ids=repr
)
def test_labels_of_every_shape(line: RawConnection, labels: Any) -> None:
    new_pod = pod("labels")
    new_pod["metadata"]["labels"] = labels
    odd = node("odd", GOOD)
    odd["metadata"]["labels"] = labels
    ask_everything(line, new_pod, [odd], refused=True)


def test_no_nodes(line: RawConnection) -> None:
    ask_everything(line, pod("none"), [])
    for path in SCORES:
        assert scores(line, path, pod("none"), []) == []


def test_one_node(line: RawConnection) -> None:
    ask_everything(line, pod("one"), [node("n1", GOOD)])
    assert scores(line, "/scheduler/priorities/pigeon-holing", pod("one"), [node("n1", GOOD)]) == [10]


LONG = "0" * 60_000
TIMES = 100


@pytest.mark.parametrize("where", ["request", "allocatable", "annotation"])
def test_long_texts_are_not_remembered(line: RawConnection, target: AttackedExtender, where: str) -> None:
    """All texts differ. Those of one field have 6 MB together, more than the process may grow."""

    def send(number: int) -> None:
        text = f"{number}.{LONG}"
        new_pod = pod("long", cpu=text if where == "request" else "1")
        room = dict.fromkeys(ROOM, text) if where == "allocatable" else ROOM
        annotations = dict.fromkeys(STATISTICS, text) if where == "annotation" else GOOD
        scores(line, "/scheduler/prioritize", new_pod, [node("n1", annotations, room)])

    for number in range(10):
        send(number)
    before = target.rss_mib()
    for number in range(10, 10 + TIMES):
        send(number)
    assert target.rss_mib() < before + 4


def test_a_node_that_is_named_twice_is_scored_once(line: RawConnection) -> None:
    nodes = [node("n1", GOOD), node("n1", {**GOOD, "congestion-factor": "55"}), node("n2", GOOD)]
    for path in SCORES:
        answer = line.ask(path, encoded(body(pod("twice"), nodes)))
        response_checks.check_scored(answer, ["n1", "n2"])


def test_names_without_nodes_have_no_statistics(line: RawConnection) -> None:
    answer = line.ask("/scheduler/prioritize", encoded({"Pod": pod("names"), "NodeNames": ["a", "b"]}))
    response_checks.check_scored(answer, ["a", "b"])
    reasons = missing_statistics(line, "names", "a")
    assert reasons["safe"] == {"cpu": "no statistics", "memory": "no statistics"}
    assert reasons["congestion"]
    assert reasons["pigeon"] == list(RESOURCES)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawConnection]:
    """An extender with a cluster from files: a node for each text, with a pod whose type is that text."""
    folder = tmp_path_factory.mktemp("held")
    nodes = [
        {"apiVersion": "v1", "kind": "Node", **node(f"n{number}", dict.fromkeys(STATISTICS, text.text))}
        for number, text in enumerate(TEXTS.values())
    ]
    pods = []
    for number, text in enumerate(TEXTS.values()):
        made = pod(f"p{number}")
        made["metadata"]["labels"] = {"podtype": text.text}
        made["spec"]["nodeName"] = f"n{number}"
        pods.append({"apiVersion": "v1", "kind": "Pod", **made, "status": {"phase": "Failed"}})
    objects = {"apiVersion": "v1", "kind": "List", "items": [*nodes, *pods]}
    (folder / "objects.json").write_text(json.dumps(objects))
    agents = f"{scoring_inputs.AGENTS},learned"
    options = ("--objects-from", str(folder / "objects.json"), "--agents", agents)
    with scoring_extender.running(folder, *options) as target, target.line() as line:
        yield line


@pytest.mark.parametrize(
    "labels", [{"podtype": text.text} for text in TEXTS.values()] + [{}], ids=[*TEXTS, "no label"]
)
def test_names_of_nodes_with_odd_statistics(held: RawConnection, labels: dict[str, str]) -> None:
    new_pod = pod("held", cpu="100m")
    new_pod["metadata"]["labels"] = labels
    names = ["nobody", *(f"n{number}" for number in range(len(TEXTS)))]
    for path in (*SCORES, "/scheduler/priorities/rl-priority", "/agents/learned/prioritize"):
        answer = held.ask(path, encoded({"Pod": new_pod, "NodeNames": names}))
        response_checks.check_scored(answer, names)
    for path in scoring_inputs.FILTERS:
        answer = held.ask(path, encoded({"Pod": new_pod, "NodeNames": names}))
        response_checks.check_filtered(answer, names)


def test_missing_statistics_of_a_cluster_are_reported(held: RawConnection) -> None:
    held.ask("/scheduler/prioritize", encoded({"Pod": pod("told"), "NodeNames": ["n0", "nobody"]}))
    held.ask(
        "/scheduler/prioritize",
        encoded({"Pod": pod("all"), "NodeNames": [f"n{n}" for n in range(len(TEXTS))]}),
    )
    expected = {"cpu": "no statistics", "memory": "no statistics"}
    assert missing_statistics(held, "told", "nobody")["safe"] == expected
    for number, text in enumerate(TEXTS.values()):
        numbers = missing_statistics(held, "all", f"n{number}")
        assert (numbers["safe"]["cpu"] is None) is text.is_number, text.text[:20]
        assert bool(numbers["congestion"]) is not text.is_whole, text.text[:20]
        assert (numbers["pigeon"] == []) is text.is_number, text.text[:20]


def test_settings_at_their_ends(tmp_path: Path) -> None:
    """The settings of the scoring agents at 0 % and at 100 %."""
    texts = [
        node(f"n{number}", dict.fromkeys(STATISTICS, text.text)) for number, text in enumerate(TEXTS.values())
    ]
    steady = [node("idle", {**GOOD, "std-free-cpu": "0", "mean-free-cpu": "4000"}), *texts]
    for number, percent in enumerate(("0", "100")):
        folder = tmp_path / str(number)
        folder.mkdir()
        flags = [
            word
            for name in ("percentile", "utilization", "forecast-weight")
            for word in (f"--safe-{name}", percent)
        ]
        options = (*CLUSTERLESS, *flags, "--congestion-factor-max", "1", "--score-missing", "0")
        with scoring_extender.running(folder, *options) as target, target.line() as line:
            ask_everything(line, pod("ends", cpu="100m"), steady)


def start_and_fail(*options: str) -> "subprocess.CompletedProcess[str]":
    return forked_commands.run(
        [
            forked_commands.NODEWISE,
            "extender",
            "--unsafe",
            "--port",
            "0",
            "--health-port",
            "0",
            *CLUSTERLESS,
            *options,
        ]
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--weights", "safe=0,congestion=0,pigeon=0"), "--weights"),
        (("--weights", "safe-overload=-1"), "--weights"),
        (("--weights", "safe=nan"), "--weights"),
        (("--weights", "safe=inf"), "--weights"),
        (("--weights", "nobody=1"), "--weights"),
        (("--safe-percentile", "-1"), "--safe-percentile"),
        (("--safe-percentile", "0.5"), "--safe-percentile"),
        (("--safe-utilization", "101"), "--safe-utilization"),
        (("--congestion-factor-max", "0"), "--congestion-factor-max"),
        (("--score-missing", "11"), "--score-missing"),
        (("--num-resources", "6"), "--num-resources"),
        (("--policy-resource-index", "5"), "--policy-resource-index"),
        (("--statistics-window", "0s"), "--statistics-window"),
        (("--policy-objective", "junk"), "--policy-objective"),
    ],
)
def test_settings_that_make_no_sense_end_the_process_at_the_start(
    options: tuple[str, ...], named: str
) -> None:
    done = start_and_fail(*options)
    assert done.returncode == 2, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr


FILES = {
    "an objective that does not exist": b"policyObjective=NOPE\n",
    "no objective": b"policyObjective=\n",
    "an objective in small letters": b"policyObjective=a_binpack\n",
    "an index beyond all": b"policyResourceIndex=99999999999999999999\n",
    "an index that does not count": b"policyResourceIndex=2\n",
    "a negative index": b"policyResourceIndex=-1\n",
    "an index that is no number": b"policyResourceIndex=cpu\n",
    "no text": b"\xff\xfe\x00\x00",
    "too long": b"#" * 2**17,
}


@pytest.mark.parametrize("content", FILES.values(), ids=list(FILES))
def test_a_file_of_pigeon_that_makes_no_sense_ends_the_process_at_the_start(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "pigeon.cfg"
    file.write_bytes(content)
    done = start_and_fail("--pigeon-config", str(file), "--num-resources", "2")
    assert done.returncode == 2, done.stderr
    assert "pigeon.cfg" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_of_pigeon_and_the_environment_must_not_contradict_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLICY_OBJECTIVE", "A_BINPACK")
    file = tmp_path / "pigeon.cfg"
    file.write_text("policyObjective=LOAD_BALANCE")
    done = start_and_fail("--pigeon-config", str(file))
    assert done.returncode == 2, done.stderr
    assert "LOAD_BALANCE" in done.stderr
    assert "A_BINPACK" in done.stderr


@pytest.mark.parametrize("annotations", [GOOD, None], ids=["with statistics", "without"])
def test_5000_equal_nodes(line: RawConnection, annotations: dict[str, str] | None) -> None:
    """Only by the paths of kube-scheduler, because those of single agents call the same functions.

    This must be the last test, as the extender keeps the nodes and evaluates them in later requests by name.
    """
    nodes = [node(f"n{number}", annotations) for number in range(5000)]
    new_pod = pod("equal", cpu="100m", memory="64Mi")
    paths = [path for path in VERBS if path.startswith("/scheduler/")]
    ask_everything(line, new_pod, nodes, paths=[path for path in paths if path not in SCORES])
    sent = encoded(body(new_pod, nodes))
    for path in SCORES:
        if path in paths:
            answer = line.ask(path, sent)
            response_checks.check_scored(answer, [node["metadata"]["name"] for node in nodes])
            assert len({priority["Score"] for priority in json.loads(answer.body)}) == 1, path
