"""The API client on a real API server: the suite that the fake passes, and behavior that only the real server has."""

import asyncio
import base64
import datetime as dt
import json
import os
import random
import stat
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nodewise.base.clock import SystemClock
from nodewise.base.errors import NodewiseError, Refused, Unavailable
from nodewise.kube import reflector as reflector_module
from nodewise.kube.api_client_creation import connect
from nodewise.kube.api_server_interface import Api, Expired
from nodewise.kube.http_client import HttpApi
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.kube.reflector import Reflector, ReflectorTarget
from nodewise.kube.resource_kinds import EVENTS, NODES, Resource
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import CONFIGMAPS
from tests import short_and_long_case_counts
from tests.cluster import api_user_kubeconfigs, child_processes
from tests.cluster.api_client import path_of
from tests.cluster.api_user_kubeconfigs import ApiServerAccess, rule
from tests.cluster.certificates import CertificatePair
from tests.cluster.controlplane import ControlPlane
from tests.cluster.list_memory import ListMeasurement
from tests.cluster.namespace_sandboxes import Sandbox
from tests.unit.kube.api_suite import (
    CONFIGMAP,
    ApiSuite,
    ElectionSuite,
    EventSuite,
    ReflectorSuite,
    decode,
    eventually,
    item,
    run_in_background,
)

FAST = {"kube_qps": 1000.0, "kube_burst": 1000}


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def space(sandbox: Sandbox) -> str:
    return sandbox.namespace


@pytest.fixture
async def api(plane: ControlPlane) -> AsyncIterator[HttpApi]:
    opened = opened_with(plane.admin.kubeconfig)
    yield opened
    await opened.close()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The log events."""
    names: list[str] = []
    monkeypatch.setattr("nodewise.observe.logs.emit", lambda event, **_: names.append(event))
    return names


def opened_with(kubeconfig: Path) -> HttpApi:
    return connect(KubeOptions(kubeconfig=str(kubeconfig), **FAST), MetricsRegistry())


async def answer_of(kubeconfig: Path, path: str = "/api/v1/nodes") -> bytes:
    """The response to a GET request on a new connection."""
    api = opened_with(kubeconfig)
    try:
        return await api.get(path)
    finally:
        await api.close()


class TestRealApi(ApiSuite):
    async def old_page(self, api: Api, space: str) -> tuple[str, str]:
        version = decode(await api.create(CONFIGMAPS.path(space), item("a")))["metadata"]["resourceVersion"]
        compact_etcd(self.plane, int(version) - 1)
        token = {"v": "meta.k8s.io/v1", "rv": 5, "start": "/a"}
        encoded = base64.urlsafe_b64encode(json.dumps(token).encode()).decode().rstrip("=")
        # the API server does not cache events, so the page comes from etcd
        return EVENTS.path(space), encoded

    @pytest.fixture(autouse=True)
    def with_plane(self, plane: ControlPlane) -> None:
        self.plane = plane


def compact_etcd(plane: ControlPlane, revision: int) -> None:
    """Removes older revisions from etcd, with a JSON request to its gateway."""
    command = Path(f"/proc/{plane.processes[0].pid}/cmdline").read_bytes().decode().split("\0")
    url = next(part.partition("=")[2] for part in command if part.startswith("--listen-client-urls="))
    body = json.dumps({"revision": revision, "physical": True}).encode()
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/v3/kv/compaction", body), timeout=60
    ) as response:
        assert response.status == 200


class TestReflectorOnReal(ReflectorSuite):
    pass


class TestElectionOnReal(ElectionSuite):
    pass


class TestEventsOnReal(EventSuite):
    async def test_kubectl_describe_shows_them(self, api: Api, space: str, plane: ControlPlane) -> None:
        await api.create(CONFIGMAPS.path(space), item("a"))
        await self.test_repeats_become_one_event_with_a_count(api, space)
        assert "80 degrees" in plane.kubectl("get", "events", "-n", space)


# Watches


async def test_a_watch_that_is_quiet_gets_bookmarks(api: HttpApi, space: str) -> None:
    params = {"allowWatchBookmarks": "true", "timeoutSeconds": "5", "resourceVersion": "0"}
    async with aclosing(api.watch(CONFIGMAPS.path(space), params)) as lines:
        events = [decode(line) async for line in lines]
    assert {event["type"] for event in events} == {"BOOKMARK"}
    assert events[0]["object"]["metadata"]["resourceVersion"].isdigit()


async def test_a_watch_from_before_a_kind_was_known_is_expired(api: HttpApi, sandbox: Sandbox) -> None:
    things = Resource(f"{sandbox.namespace}.example.com", "v1", "things", "Thing")
    sandbox.create(definition_of(things))
    await until_served(api, things)
    before = reflector_module.WatchState("1")
    async with aclosing(api.watch(things.path(), {"resourceVersion": before.version})) as lines:
        with pytest.raises(Expired, match="too old resource version: 1"):
            reflector_module.parse_watch_line(before, await anext(lines))


async def test_a_version_that_is_no_longer_kept_is_listed_anew(api: HttpApi, sandbox: Sandbox) -> None:
    things = Resource(f"{sandbox.namespace}.example.com", "v1", "things", "Thing")
    sandbox.create(definition_of(things))
    await until_served(api, things)
    await api.create(things.path("default"), item("a") | {"apiVersion": things.api_version, "kind": "Thing"})
    reflector = Reflector(
        api, ReflectorTarget(things, CONFIGMAP), SystemClock(), MetricsRegistry(), random.random
    )
    reflector._state = reflector_module.WatchState("1")
    async with run_in_background(reflector.run()):
        await reflector.wait_until_synced()
    assert list(reflector.store.snapshot()) == [("default", "a")]


def definition_of(resource: Resource) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": resource.version, "served": True, "storage": True, "schema": schema}
    names = {"plural": resource.plural, "kind": resource.kind}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {"group": resource.group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


async def until_served(api: HttpApi, resource: Resource) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await api.get(resource.path())
            except NodewiseError:
                await asyncio.sleep(0.1)
            else:
                return


async def test_lists_and_watches_of_metadata_contain_nothing_else(api: HttpApi, space: str) -> None:
    made = decode(await api.create(CONFIGMAPS.path(space), item("a", k="v")))
    metadata_api = api.with_metadata_only()
    listed = decode(await metadata_api.get(CONFIGMAPS.path(space)))
    items = {entry["metadata"]["name"]: entry for entry in listed["items"]}
    assert (listed["kind"], "data" in items["a"]) == ("PartialObjectMetadataList", False)
    version = str(int(made["metadata"]["resourceVersion"]) - 1)
    async with aclosing(metadata_api.watch(CONFIGMAPS.path(space), {"resourceVersion": version})) as lines:
        event = decode(await anext(lines))
    assert (event["object"]["kind"], event["object"]["metadata"]["name"]) == ("PartialObjectMetadata", "a")
    assert "data" not in event["object"]


class FastClock(SystemClock):
    """A clock on which a minute takes two seconds, so that a kind that is not served is soon listed again."""

    def monotonic(self) -> float:
        return super().monotonic() * 30

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / 30)


async def test_a_kind_without_its_definition_has_no_objects(
    api: HttpApi, sandbox: Sandbox, events: list[str]
) -> None:
    things = Resource(f"later.{sandbox.namespace}.example.com", "v1", "things", "Thing")
    target = ReflectorTarget(things, CONFIGMAP)
    reflector = Reflector(api, target, FastClock(), MetricsRegistry(), random.random)
    definition, thing = definition_of(things), item("a") | {"apiVersion": things.api_version, "kind": "Thing"}
    async with run_in_background(reflector.run()):
        await reflector.wait_until_synced()
        assert len(reflector.store) == 0
        path = path_of(sandbox.create(definition))
        await until_served(api, things)
        await api.create(things.path("default"), thing)
        await eventually(lambda: len(reflector.store) == 1)
        events.clear()
        await api.delete(path)
        await eventually(lambda: len(reflector.store) == 0)
        assert "kube_kind_not_served" not in events, "the deletions of the objects take effect at once"
        await eventually(lambda: events[-1:] == ["kube_kind_not_served"])
        assert reflector.synced


class NetworkGate:
    """A TCP proxy in front of the API server that can be closed to simulate a network outage."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = child_processes.free_port()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._through, "127.0.0.1", self.port)

    async def shut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._open |= {writer, far_writer}
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def gated(plane: ControlPlane, folder: Path) -> AsyncIterator[tuple[NetworkGate, Path]]:
    """Opens a gate; yields it with an administrator's kubeconfig that uses it."""
    gate = NetworkGate(int(plane.url.rpartition(":")[2]))
    config = json.loads(plane.admin.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{gate.port}"
    path = folder / "gated.kubeconfig"
    path.write_text(json.dumps(config))
    await gate.open()
    yield gate, path
    await gate.shut()


async def test_changes_during_an_outage_are_received_afterwards(
    api: HttpApi, space: str, plane: ControlPlane, tmp_path: Path, events: list[str]
) -> None:
    await api.create(CONFIGMAPS.path(space), item("goes"))
    async with gated(plane, tmp_path) as (gate, kubeconfig):
        through = opened_with(kubeconfig)
        target = ReflectorTarget(CONFIGMAPS, CONFIGMAP, space)
        reflector = Reflector(through, target, SystemClock(), MetricsRegistry(), random.random)
        async with run_in_background(reflector.run()):
            await reflector.wait_until_synced()
            await gate.shut()
            await api.delete(CONFIGMAPS.path(space, "goes"))
            await api.create(CONFIGMAPS.path(space), item("comes"))
            await eventually(lambda: "kube_lost" in events)
            assert reflector.store.get(space, "goes") is not None, "what was known is kept"
            await gate.open()
            await eventually(lambda: list(reflector.store.snapshot()) == [(space, "comes")])
            await eventually(lambda: events[-1] == "kube_back")
        await through.close()


# Users and credentials


async def test_a_service_account_comes_in_by_its_token_file(
    plane: ControlPlane, space: str, tmp_path: Path
) -> None:
    robot = plane.service_account("reads-nodes", space, [rule("list", "nodes")])
    token = tmp_path / "token"
    token.write_text(robot.token)
    kubeconfig = changed_user(robot.kubeconfig, tmp_path, {"tokenFile": "token"})
    assert decode(await answer_of(kubeconfig))["kind"] == "NodeList"


async def test_a_token_that_was_renewed_is_read_again(
    plane: ControlPlane, space: str, tmp_path: Path
) -> None:
    robot = plane.service_account("renewed", space, [rule("list", "nodes")])
    token = tmp_path / "token"
    token.write_text("an old one")
    api = opened_with(changed_user(robot.kubeconfig, tmp_path, {"tokenFile": str(token)}))
    with pytest.raises(Refused):
        await api.get(NODES.path())
    token.write_text(robot.token)
    assert decode(await api.get(NODES.path()))["kind"] == "NodeList"
    await api.close()


async def test_a_plugin_gives_the_token(plane: ControlPlane, space: str, tmp_path: Path) -> None:
    robot = plane.service_account("by-plugin", space, [rule("list", "nodes")])
    plugin = tmp_path / "plugin"
    program = (
        "import json, os; info = json.loads(os.environ['KUBERNETES_EXEC_INFO']);"
        f"print(json.dumps({{**info, 'status': {{'token': {robot.token!r}}}}}))"
    )
    plugin.write_text(f"#!{sys.executable}\n{program}\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    version = "client.authentication.k8s.io/v1"
    exec_ = {"command": "./plugin", "apiVersion": version, "interactiveMode": "Never"}
    kubeconfig = changed_user(robot.kubeconfig, tmp_path, {"exec": exec_})
    assert decode(await answer_of(kubeconfig))["kind"] == "NodeList"


def changed_user(kubeconfig: Path, folder: Path, user: dict[str, Any]) -> Path:
    """A copy of a kubeconfig with another user."""
    config = json.loads(kubeconfig.read_text())
    config["users"][0]["user"] = user
    path = folder / "changed.kubeconfig"
    path.write_text(json.dumps(config))
    return path


async def test_a_stranger_is_refused(plane: ControlPlane, tmp_path: Path) -> None:
    stranger = ApiServerAccess(plane.url, plane.authority, tmp_path).bearer("stranger", "no token of ours")
    with pytest.raises(Refused, match=r"Unauthorized.*renew them"):
        await answer_of(stranger.kubeconfig)


async def test_a_right_that_is_missing_is_named(plane: ControlPlane) -> None:
    reader = plane.user("kube-reader", [rule("get", "nodes")])
    with pytest.raises(Refused, match=r'cannot list resource "nodes".*by a Role or ClusterRole'):
        await answer_of(reader.kubeconfig)


async def test_an_expired_certificate_is_named_with_its_end(plane: ControlPlane, tmp_path: Path) -> None:
    user = api_user_kubeconfigs.User(
        ApiServerAccess(plane.url, plane.authority, tmp_path), "late", pair=expired_pair(plane, tmp_path)
    )
    with pytest.raises(Refused, match=r"expired at 2020-01-02T00:00:00Z: renew the credentials"):
        await answer_of(user.kubeconfig)


def expired_pair(plane: ControlPlane, folder: Path) -> CertificatePair:
    begin, end = (dt.datetime(2020, 1, day, tzinfo=dt.UTC) for day in (1, 2))
    leaf = plane.authority._ca.issue_cert("late", common_name="late", not_before=begin, not_after=end)
    pair = CertificatePair(folder / "late.crt", folder / "late.key")
    leaf.cert_chain_pems[0].write_to_path(str(pair.cert))
    leaf.private_key_pem.write_to_path(str(pair.key))
    return pair


async def test_a_server_of_another_authority_is_not_trusted(plane: ControlPlane, tmp_path: Path) -> None:
    config = json.loads(plane.admin.kubeconfig.read_text())
    del config["clusters"][0]["cluster"]["certificate-authority"]
    path = tmp_path / "untrusting.kubeconfig"
    path.write_text(json.dumps(config))
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await answer_of(path)
    config["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True
    path.write_text(json.dumps(config))
    assert decode(await answer_of(path))["kind"] == "NodeList"


@pytest.mark.parametrize(("name", "trusted"), [("localhost", True), ("elsewhere.example.com", False)])
async def test_the_certificate_must_carry_the_tls_server_name(
    plane: ControlPlane, tmp_path: Path, name: str, trusted: bool
) -> None:
    config = json.loads(plane.admin.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["tls-server-name"] = name
    path = tmp_path / "named.kubeconfig"
    path.write_text(json.dumps(config))
    if trusted:
        assert decode(await answer_of(path))["kind"] == "NodeList"
    else:
        with pytest.raises(Unavailable, match="Hostname mismatch"):
            await answer_of(path)


async def test_an_address_without_a_server_is_unavailable(plane: ControlPlane, tmp_path: Path) -> None:
    config = json.loads(plane.admin.kubeconfig.read_text())
    url = config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{child_processes.free_port()}"
    path = tmp_path / "nowhere.kubeconfig"
    path.write_text(json.dumps(config))
    with pytest.raises(Unavailable, match=f"is the API server at {url} up"):
        await answer_of(path)


# Large lists


BIG = "example.com/big"


@pytest.fixture(scope="module")
def many_nodes(plane: ControlPlane) -> Iterator[int]:
    """Creates many nodes of 10 kB each; yields their number."""
    count = int(os.environ.get("TESTS_NODES", short_and_long_case_counts.of("1000", "5000")))
    asyncio.run(with_nodes(plane, count))
    yield count
    plane.api.request("DELETE", NODES.path(), params={"labelSelector": BIG}, timeout=120)


async def with_nodes(plane: ControlPlane, count: int) -> None:
    kubeconfig = str(plane.admin.kubeconfig)
    api = connect(KubeOptions(kubeconfig=kubeconfig, kube_qps=1e6, kube_burst=count), MetricsRegistry())
    lanes = asyncio.Semaphore(16)

    async def make(number: int) -> None:
        async with lanes:
            await api.create(NODES.path(), big_node(number), timeout_s=60)

    await asyncio.gather(*(make(number) for number in range(count)))
    await api.close()


def big_node(number: int) -> dict[str, Any]:
    name = f"big-{number:05}"
    images = [
        {"names": [f"registry.example.com/team/image-{i}@sha256:{i:064x}"], "sizeBytes": 10**8 + i}
        for i in range(48)
    ]
    resources = {"cpu": "64", "memory": "256Gi", "pods": "110", "gpu.intel.com/i915": "8"}
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, BIG: "yes"}
            | {f"example.com/l{i}": f"value-{i}" for i in range(40)},
            "annotations": {f"example.com/a{i}": "x" * 40 for i in range(10)},
        },
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [{"type": "Hostname", "address": name}],
            "images": images,
        },
    }


async def test_many_nodes_are_listed_in_pages_with_little_memory_and_without_blocking(
    plane: ControlPlane, many_nodes: int
) -> None:
    """The list runs in a separate process. `bench/startup_and_memory.py` measures its duration."""
    assert len(await answer_of(plane.admin.kubeconfig, NODES.path(name="big-00000"))) > 10_000
    command = [sys.executable, "-m", "tests.cluster.list_memory", str(plane.admin.kubeconfig)]
    done = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await done.communicate()
    listed = ListMeasurement(**json.loads(output))
    pages = listed.pages_bytes
    assert listed.nodes >= many_nodes
    assert len(pages) >= many_nodes / reflector_module.MOST_LIMIT
    assert max(pages) < 2 * reflector_module.PAGE_BYTES
    assert listed.held_bytes < sum(pages)
    assert listed.most_in_a_step == 1  # with this clock each node is one slice
    assert listed.turns > listed.nodes
