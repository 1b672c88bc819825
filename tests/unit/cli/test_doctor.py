"""What `nodewise doctor` reads of a cluster, from an API server that is a table; and how it tells what it found."""

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from nodewise.cli.doctor import command, extenders, gathering, schedulers, showing
from nodewise.cli.doctor.asking import Asker, anything
from nodewise.cli.doctor.gathering import Wish
from nodewise.cli.doctor.pods import Running
from nodewise.cli.doctor.schedulers import Asked
from nodewise.cli.progress import Progress
from nodewise.configure.doctor import examination
from nodewise.configure.doctor.facts import Configuration, Facts, Unread
from nodewise.configure.doctor.findings import Report
from nodewise.errors import BadSettings, Problem, Refused, Unavailable
from nodewise.kube.api import DEADLINE_S, NONE, NotFound, Params
from nodewise.kube.resources import NODES
from tests.unit.configure.doctor.setups import AUTHORITY, CONFIGURATION, ENTRY, OWN, SOUND, entry

ALL = {"metadata": {"name": "p", "namespace": "web"}}
POLICIES = "/apis/telemetry.intel.com/v1alpha1/taspolicies"
PLAIN = {name: value for name, value in ENTRY.items() if name not in ("enableHTTPS", "tlsConfig")}
LOOPBACK = {**CONFIGURATION, "extenders": [{**PLAIN, "urlPrefix": "http://127.0.0.1:9001/scheduler"}]}


class Table:
    """An API server: lists by path, objects by path; what is `forbidden` is, and of lists each page has one item."""

    def __init__(self, objects: Mapping[str, Any], forbidden: tuple[str, ...] = ()) -> None:
        self._objects = objects
        self._forbidden = forbidden
        self.asked: list[str] = []

    async def get(self, path: str, params: Params = NONE, *, timeout_s: float = DEADLINE_S) -> bytes:
        path = unquote(path)
        self.asked.append(path)
        if any(word in path for word in self._forbidden):
            raise Refused(f"get {path}", [Problem("", 'nodes is forbidden: User "x" cannot', "")])
        found = self._objects.get(path)
        if path == "/version":
            return b"{}"
        if isinstance(found, list):
            return _page(found, params)
        if found is None and path.count("/") < 6 and "configmaps" not in path:
            return _page([], params)
        if found is None:
            raise NotFound(path)
        return msgspec.json.encode(found)

    async def create(self, path: str, body: object, params: Params = NONE, *, timeout_s: float = 0) -> bytes:
        self.asked.append(path)
        return b'{"status": {"allowed": true}}'


def _page(items: list[Any], params: Params) -> bytes:
    wanted = params.get("fieldSelector", "")
    items = [one for one in items if not (wanted and one["spec"].get("nodeName"))]
    at = int(params.get("continue", "0"))
    left = len(items) - at - 1
    token = {"continue": str(at + 1), "remainingItemCount": left} if left > 0 else {}
    return msgspec.json.encode({"items": items[at : at + 1], "metadata": token})


def facts(objects: Mapping[str, Any], forbidden: tuple[str, ...] = (), *files: str) -> Facts:
    """What is read of a cluster of these objects."""
    table: Any = Table(objects, forbidden)
    asked = Asked(files, "")
    with Progress() as progress:
        ask = Asker(table, 5.0, progress)
        return asyncio.run(gathering.gather(ask, table, Wish(asked, ("nodewise",))))


def deployment(name: str, namespace: str, *containers: Any, volumes: Any = ()) -> dict[str, Any]:
    spec = {"containers": list(containers), "volumes": list(volumes)}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": 1, "template": {"metadata": {"labels": {"app": name}}, "spec": spec}},
        "status": {"readyReplicas": 1},
    }


def second(namespace: str = "nodewise") -> dict[str, Any]:
    """A scheduler and nodewise in one pod."""
    mounts = [{"name": "config", "mountPath": "/etc/nodewise"}]
    scheduler = {
        "name": "scheduler",
        "image": "registry.k8s.io/kube-scheduler:v1.36.3",
        "command": ["kube-scheduler", "--config=/etc/nodewise/scheduler.yaml"],
        "volumeMounts": mounts,
    }
    nodewise = {
        "name": "nodewise",
        "command": ["nodewise", "extender", "--agents=safe", "--no-cluster", "--unsafe"],
    }
    volumes = [{"name": "config", "configMap": {"name": "second"}}]
    return deployment("second", namespace, scheduler, nodewise, volumes=volumes)


def static(config: str = "/etc/kubernetes/s.yaml") -> dict[str, Any]:
    """The mirror of a control plane's kube-scheduler."""
    words = ["kube-scheduler", *([f"--config={config}"] if config else [])]
    mounts = [{"name": "s", "mountPath": "/etc/kubernetes/s.yaml"}]
    container = {"name": "kube-scheduler", "command": words, "volumeMounts": mounts}
    volumes = [{"name": "s", "hostPath": {"path": "/etc/kubernetes/s.yaml"}}]
    return {
        "metadata": {
            "name": "kube-scheduler-cp",
            "namespace": "kube-system",
            "annotations": {"kubernetes.io/config.mirror": "x"},
            "ownerReferences": [{"kind": "Node"}],
        },
        "spec": {
            "containers": [container],
            "volumes": volumes,
            "hostNetwork": True,
            "nodeName": "not-this-host",
        },
    }


DEPLOYMENTS = "/apis/apps/v1/deployments"
MAP = {"data": {"scheduler.yaml": yaml.safe_dump(LOOPBACK)}}
SECOND = {DEPLOYMENTS: [second()], "/api/v1/namespaces/nodewise/configmaps/second": MAP}


def test_a_second_scheduler_by_its_config_map() -> None:
    found = facts(SECOND)
    assert not isinstance(found.schedulers, Unread)
    (one,) = found.schedulers
    assert one.where == "ConfigMap/nodewise/second"
    assert isinstance(one.configuration, Configuration)
    assert one.configuration.entries[0].is_ours
    assert not isinstance(found.extenders, Unread)
    (nodewise,) = found.extenders
    assert (nodewise.agents, nodewise.pod.where) == (("safe",), "Deployment/nodewise/second")


def test_a_config_map_that_may_not_be_read_is_said_with_its_right() -> None:
    report = examination.examine(facts(SECOND, ("configmaps",)))
    rights = [one.wanted for one in report.findings if one.id == "not-looked-at"]
    assert "the right to get configmaps second in namespace nodewise" in rights


@pytest.mark.parametrize("data", ["{", "kind: Pod", "a: &a [*a]", "", "- 1\n- 2", "\x00"])
def test_a_config_map_that_holds_no_configuration_is_not_sound(data: str) -> None:
    held = {"/api/v1/namespaces/nodewise/configmaps/second": {"data": {"scheduler.yaml": data}}}
    report = examination.examine(facts({**SECOND, **held}))
    assert not report.is_sound
    assert "extender-not-registered" in dict(report.not_checked)


@pytest.mark.parametrize("name", ["..", "../../../nodes/n", "a/b"])
def test_a_volume_whose_name_is_a_path_is_not_looked_up(name: str) -> None:
    scheduler = second()
    scheduler["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = name
    report = examination.examine(facts({DEPLOYMENTS: [scheduler]}))
    assert not report.is_sound
    assert any("segment: " in f.seen for f in report.findings if f.id == "not-looked-at")


def test_a_port_that_is_a_path_is_not_asked_by_the_proxy() -> None:
    table: Any = Table({})
    told = {"health_address": "0.0.0.0", "health_port": "9002/../../../../nodes"}
    with Progress() as progress:
        pod, replica = SimpleNamespace(namespace="nodewise"), Running("p", "10.0.0.1", ())
        numbers = asyncio.run(extenders._counted(Asker(table, 5.0, progress), pod, told, replica))
    assert isinstance(numbers, Unread)
    assert "expected a port number" in numbers.why
    assert table.asked == []


def test_a_tenants_scheduler_is_named_and_not_looked_into() -> None:
    table = Table({DEPLOYMENTS: [second("web")]})
    found = facts(table._objects)
    assert found.schedulers == ()
    assert found.elsewhere == ("Deployment/web/second",)


def test_a_static_pod_without_config_has_no_extender() -> None:
    report = examination.examine(facts({"/api/v1/pods": [static("")]}))
    assert "extender-not-registered" in {one.id for one in report.findings}


def test_a_static_pods_file_on_another_host_has_to_be_named(tmp_path: Path) -> None:
    cluster = {"/api/v1/pods": [static()]}
    hidden = examination.examine(facts(cluster))
    assert "--scheduler-config" in " ".join(one.remedy for one in hidden.findings)
    file = tmp_path / "copy.yaml"
    file.write_text(yaml.safe_dump({**CONFIGURATION, "extenders": []}))
    named = facts(cluster, (), str(file))
    assert not isinstance(named.schedulers, Unread)
    (one,) = named.schedulers
    assert (one.where, one.pod.where if one.pod else "") == (str(file), "Pod/kube-system/kube-scheduler-cp")
    assert "extender-not-registered" in {one.id for one in examination.examine(named).findings}


@pytest.mark.parametrize(
    ("namespace", "node", "wanted"),
    [("kube-system", "cp", True), ("kube-system", "other", False), ("nodewise", "cp", False)],
)
def test_files_of_this_host_are_read_for_its_own_static_pods_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str, node: str, wanted: bool
) -> None:
    """Whoever may make pods could name any file."""
    monkeypatch.setattr("socket.gethostname", lambda: "cp.example.com")
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump({**CONFIGURATION, "extenders": []}))
    pod = static()
    pod["metadata"]["namespace"] = namespace
    pod["spec"] |= {"nodeName": node, "volumes": [{"name": "s", "hostPath": {"path": str(file)}}]}
    found = facts({"/api/v1/pods": [pod]})
    assert not isinstance(found.schedulers, Unread)
    (one,) = found.schedulers
    assert isinstance(one.configuration, Configuration) == wanted


def test_certificates_of_a_second_scheduler_come_from_its_secret_and_its_key_goes_nowhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = second()
    spec = one["spec"]["template"]["spec"]
    spec["containers"][0]["volumeMounts"].append({"name": "tls", "mountPath": "/tls"})
    spec["volumes"].append({"name": "tls", "secret": {"secretName": "client"}})
    tls = {"caFile": "/tls/ca.crt", "certFile": "/tls/tls.crt", "keyFile": "/tls/tls.key"}
    config = {
        **CONFIGURATION,
        "extenders": [{**ENTRY, "urlPrefix": "https://127.0.0.1:9001/scheduler", "tlsConfig": tls}],
    }
    data = {"tls.crt": OWN.cert, "tls.key": OWN.key, "ca.crt": AUTHORITY.cert}
    secret = {"data": {name: base64.b64encode(text).decode() for name, text in data.items()}}
    found = facts(
        {
            DEPLOYMENTS: [one],
            "/api/v1/namespaces/nodewise/configmaps/second": {
                "data": {"scheduler.yaml": yaml.safe_dump(config)}
            },
            "/api/v1/namespaces/nodewise/secrets/client": secret,
        }
    )
    assert not isinstance(found.schedulers, Unread)
    papers = found.schedulers[0].papers[0]
    assert not isinstance(papers.client, Unread)
    assert papers.client
    assert papers.client[0].key == papers.key
    for form in showing.FORMS:
        assert "PRIVATE" not in printed(examination.examine(found), capsys, form)
    assert b"PRIVATE" not in repr(found).encode()


def test_policies_metrics_and_pods() -> None:
    rules = {"dontschedule": {"rules": [{"metricname": "heat", "operator": "GreaterThan", "target": 80}]}}
    values = [
        {"describedObject": {"name": name}, "metricName": "heat", "value": value}
        for name, value in (("a", "90"), ("b", "10"), ("10.0.0.9:9100", "1"))
    ]
    group = {"preferredVersion": {"version": "v1beta1"}, "versions": []}
    found = facts(
        {
            "/api/v1/nodes": [{"metadata": {"name": name}} for name in "abc"],
            POLICIES: [{"metadata": {"name": "pol", "namespace": "web"}, "spec": {"strategies": rules}}],
            "/apis/custom.metrics.k8s.io": group,
            "/apis/custom.metrics.k8s.io/v1beta1/nodes/*/heat": {"items": values},
            "/api/v1/pods": [{**ALL, "spec": {"schedulerName": "mine", "schedulingGates": [{"name": "x"}]}}],
        }
    )
    assert not isinstance(found.policies, Unread)
    assert [(one.where, one.rejects, one.source) for one in found.policies] == [
        ("TASPolicy/web/pol", 1, "by its metrics")
    ]
    heat = found.measured["heat"]
    assert not isinstance(heat, Unread)
    assert (heat.nodes, heat.others, found.nodes) == (2, ("10.0.0.9:9100",), 3)
    assert not isinstance(found.pods, Unread)
    assert [(one.name, one.scheduler, one.is_gated) for one in found.pods] == [("p", "mine", True)]


def test_who_may_read_nothing_is_told_each_right() -> None:
    report = examination.examine(facts({}, ("/api", "/apis")))
    assert not report.is_sound
    rights = " ".join(one.wanted for one in report.findings)
    for right in ("list nodes", "list pods", "list taspolicies.telemetry.intel.com", "list deployments.apps"):
        assert right in rights
    assert {one.id for one in report.findings} == {"not-looked-at"}


def test_an_api_server_that_is_away_ends_it() -> None:
    class Away(Table):
        async def get(self, path: str, params: Params = NONE, *, timeout_s: float = DEADLINE_S) -> bytes:
            raise Unavailable(path)

    away: Any = Away({})
    with Progress() as progress, pytest.raises(Unavailable):
        asyncio.run(gathering.gather(Asker(away, 5.0, progress), away, Wish(Asked((), ""))))


def test_a_list_that_never_ends_is_left() -> None:
    class Endless(Table):
        async def get(self, path: str, params: Params = NONE, *, timeout_s: float = DEADLINE_S) -> bytes:
            assert len(self.asked) < 3
            self.asked.append(path)
            return b'{"items": [{}], "metadata": {"continue": "here"}}'

    endless: Any = Endless({})
    with Progress() as progress:
        found = asyncio.run(Asker(endless, 5.0, progress).listed(NODES, anything))
    assert isinstance(found, Unread)
    assert "begins again" in found.why


@pytest.mark.parametrize("text", ["kind: Pod", "[", ""])
def test_a_named_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text)
    with pytest.raises(BadSettings, match="--scheduler-config"):
        schedulers._of_file(str(file))


def test_an_id_that_there_is_not_is_refused() -> None:
    done = CliRunner().invoke(command, ["--skip", "everything"])
    assert isinstance(done.exception, BadSettings)
    assert "'everything'" in str(done.exception)


# how it is told


def printed(report: Report, capsys: pytest.CaptureFixture[str], form: str = "table") -> str:
    showing.FORMS[form](report, color=False)
    return capsys.readouterr().out


def test_a_sound_cluster_is_one_paragraph(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(examination.examine(SOUND), capsys).splitlines()
    assert lines[0].startswith("Nothing is wrong. Looked at: 1 configuration of kube-scheduler")
    assert len(lines) <= 3


def test_findings_stand_by_severity_and_fit_into_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = entry(ignorable=True, httpTimeout=None)._replace(elsewhere=("Pod/web/x",))
    lines = printed(examination.examine(found), capsys).splitlines()
    heads = [line for line in lines if line and not line.startswith(" ")]
    assert heads[:3] == ["Wrong", "Doubtful", "Good to know"]
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    assert "1 error, 1 warning, 1 note." in " ".join(lines)


def test_json_has_the_fields_that_programs_read(capsys: pytest.CaptureFixture[str]) -> None:
    told = msgspec.json.decode(printed(examination.examine(entry(ignorable=True)), capsys, "json"))
    assert told["sound"] is False
    (one,) = told["findings"]
    assert set(one) == {"id", "severity", "object", "seen", "wanted", "remedy", "doc"}
    assert (one["id"], one["doc"]) == ("wrong-ignorable", "docs/how-to/doctor.md#wrong-ignorable")
    assert "wrong-ignorable" in told["checked"]
    assert told["not_checked"] == []
