"""Certificate rotation with a real kube-scheduler and API server, and the files that each program reads again."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

import msgspec
import pytest

from nodewise.base.errors import Unavailable
from nodewise.kube.api_client_creation import connect
from nodewise.kube.http_client import HttpApi
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.kube.resource_kinds import NODES
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.cluster import api_user_kubeconfigs, child_processes, extender_process, kubernetes_objects
from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import RBAC, User
from tests.cluster.certificates import CertificateAuthority
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import ExtenderProcess, policy, small_pod
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, node_of, scheduled, wait
from tests.cluster.test_certificate_rotation import HOSTS, clients_end_after, metric, reloads

HOT = {"metricname": "heat", "operator": "GreaterThan", "target": 80}


class RotatingCertificates:
    """The certificate files of nodewise and of its scheduler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificates = extender_process.CertificateFiles(folder)
        self.old = self.certificates.authority
        self.new = CertificateAuthority(folder, "new-ca")
        self.bundle = folder / "client-ca.crt"
        self.bundle.write_bytes(self.old.ca_pem)
        self.trusted = folder / "trusted-by-the-scheduler.crt"
        self.trusted.write_bytes(self.old.ca_pem)

    def entry(self, nodewise: ExtenderProcess) -> Object:
        pair = self.certificates.client
        tls = {"caFile": str(self.trusted), "certFile": str(pair.cert), "keyFile": str(pair.key)}
        return nodewise.entry(tlsConfig=tls)

    def renew_server(self, ca: CertificateAuthority) -> str:
        """Replaces the serving certificate by one of this CA. Returns the serial number."""
        fresh = ca.issued("nodewise", *HOSTS)
        self.certificates.server.replace(fresh)
        return fresh.serial


@pytest.fixture
def rotating(tmp_path: Path) -> RotatingCertificates:
    return RotatingCertificates(tmp_path)


@pytest.fixture
def nodewise(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, rotating: RotatingCertificates
) -> Iterator[ExtenderProcess]:
    """nodewise with a policy that rejects one of two nodes."""
    sandbox.nodes(*(kubernetes_objects.node(name, cpu="400") for name in "ab"))
    metrics.set("heat", {"a": 90, "b": 10})
    policy(sandbox, dontschedule=[HOT])
    flags = (f"--client-ca={rotating.bundle}", "--reload-period=100ms", "--connection-age=1s")
    with extender_process.extender(
        plane, rotating.folder, *flags, certificates=rotating.certificates
    ) as running:
        wait("the metric is known", lambda: running.fetched("heat") or None)
        yield running


class ContinuousPods:
    """Creates pods one after another until `stop`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.made: list[str] = []
        self.over = threading.Event()
        self._sandbox = sandbox
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self.over.is_set():
            name = f"web-{len(self.made)}"
            self._sandbox.pods(small_pod(name))
            self.made.append(name)
            self.over.wait(0.1)

    def stop(self) -> None:
        self.over.set()
        self._thread.join(30)

    def goes_on(self) -> None:
        """Waits until more pods are created, and until they are bound."""
        last = len(self.made) + 3
        wait("more pods are made", lambda: len(self.made) > last or None)
        assert self._sandbox.expect_bound(f"web-{last}") == "b"


@contextmanager
def stream(sandbox: Sandbox) -> Iterator[ContinuousPods]:
    """Creates pods while the context is open, and checks that all are bound and no attempt failed."""
    made = ContinuousPods(sandbox)
    try:
        made.goes_on()
        yield made
    finally:
        made.stop()
    for name in made.made:
        assert sandbox.expect_bound(name) == "b"
    path = f"/api/v1/namespaces/{sandbox.namespace}/events"
    failed = sandbox.api.get(path, fieldSelector="reason=FailedScheduling")["items"]
    assert [event["message"] for event in failed] == []


def test_a_scheduler_binds_on_while_everything_but_its_ca_file_is_replaced(
    plane: ControlPlane, sandbox: Sandbox, nodewise: ExtenderProcess, rotating: RotatingCertificates
) -> None:
    """This includes the CA of the client certificate, which kube-scheduler reads for each new connection."""
    with plane.start_scheduler({"extenders": [rotating.entry(nodewise)]}), stream(sandbox) as pods:
        rotating.renew_server(rotating.old)
        wait("the certificate is loaded", lambda: reloads(nodewise, "serving") == 1 or None)
        pods.goes_on()

        rotating.certificates.client.swap(rotating.old.issued("system:kube-scheduler", days=200))
        wait("the scheduler shows its new one", lambda: clients_end_after(nodewise, 150) or None)
        pods.goes_on()

        rotating.bundle.write_bytes(rotating.old.ca_pem + rotating.new.ca_pem)
        wait("both CAs are trusted", lambda: reloads(nodewise, "client_ca") == 1 or None)
        pods.goes_on()
        rotating.certificates.client.swap(rotating.new.issued("system:kube-scheduler", days=400))
        wait("the scheduler shows the new CA's", lambda: clients_end_after(nodewise, 350) or None)
        pods.goes_on()
        rotating.bundle.write_bytes(rotating.new.ca_pem)
        wait("the old CA is not trusted", lambda: reloads(nodewise, "client_ca") == 2 or None)
        pods.goes_on()
    assert nodewise.events("connection_ended") == []


def test_a_scheduler_reads_its_ca_file_once(
    plane: ControlPlane, sandbox: Sandbox, nodewise: ExtenderProcess, rotating: RotatingCertificates
) -> None:
    """Add a new CA to this file and restart the scheduler before nodewise gets a certificate from this CA."""
    with plane.start_scheduler({"extenders": [rotating.entry(nodewise)]}):
        sandbox.pods(small_pod("before"))
        sandbox.expect_bound("before")
        rotating.trusted.write_bytes(rotating.old.ca_pem + rotating.new.ca_pem)
        rotating.renew_server(rotating.new)
        wait("the certificate is loaded", lambda: reloads(nodewise, "serving") == 1 or None)
        sandbox.pods(small_pod("early"))  # a call on the open connection may still succeed
        wait("the attempt ends", lambda: node_of(sandbox.pod("early")) or scheduled(sandbox.pod("early")))
        sandbox.pods(small_pod("late"))
        assert "certificate signed by unknown authority" in sandbox.expect_rejected("late")
        sandbox.expect_stays_unbound("late", 1)
    with plane.start_scheduler({"extenders": [rotating.entry(nodewise)]}):
        assert sandbox.expect_bound("late") == "b"
    assert nodewise.wait_events("connection_ended")[0]["reason"] in {"distrusted", "abandoned"}


# nodewise as a client of the API server


@pytest.fixture
def robot(plane: ControlPlane) -> User:
    """A user with a client certificate in files."""
    return plane.user(
        f"first-{child_processes.number()}", [api_user_kubeconfigs.rule("list watch create delete", "nodes")]
    )


class ReplacementUser:
    """A second user with the same rights, whose certificate replaces that of the first user."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.name = f"second-{child_processes.number()}"
        role = f"test-{name}"
        api_user_kubeconfigs.bind(plane.api, self.name, role)
        self._plane = plane
        self._first = f"/apis/{RBAC}/v1/clusterrolebindings/{role}-{name}"

    def take_over(self, first: User) -> None:
        assert first.pair
        first.pair.replace(self._plane.authority.issued(self.name))

    def revoke_first(self) -> None:
        """Revokes the rights of the first user."""
        self._plane.api.delete(self._first)


async def who_we_are(api: HttpApi) -> str:
    """The user name that the API server reads from the client's credentials."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    response = msgspec.json.decode(
        await api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    )
    return str(response["status"]["userInfo"]["username"])


async def until_known_as(api: HttpApi, name: str) -> None:
    async with asyncio.timeout(60):
        while await who_we_are(api) != name:
            await asyncio.sleep(0.1)


def test_calls_and_watches_come_with_the_certificate_that_is_in_the_file_now(
    plane: ControlPlane, sandbox: Sandbox, robot: User
) -> None:
    second = ReplacementUser(plane, robot.name)

    async def walk() -> None:
        api = connect(KubeOptions(kubeconfig=str(robot.kubeconfig)), MetricsRegistry())
        assert await who_we_are(api) == robot.name
        version = msgspec.json.decode(await api.get(NODES.path()))["metadata"]["resourceVersion"]
        async with aclosing(api.watch(NODES.path(), {"resourceVersion": version})) as lines:
            sandbox.nodes(kubernetes_objects.node("one"))
            assert b'"one"' in await anext(lines)
            second.take_over(robot)
            await until_known_as(api, second.name)
            second.revoke_first()
            sandbox.nodes(kubernetes_objects.node("two"))
            async for _ in lines:
                pass  # the watch ends by itself, as the API server ends watches
        async with aclosing(api.watch(NODES.path(), {"resourceVersion": version})) as lines:
            async for line in lines:
                if b'"two"' in line:
                    break
        await api.close()

    asyncio.run(walk())


def test_a_plugin_that_gives_another_certificate_makes_us_somebody_else(
    plane: ControlPlane, robot: User, tmp_path: Path
) -> None:
    second = ReplacementUser(plane, robot.name)
    assert robot.pair
    kubeconfig = plugin_user(robot, tmp_path)

    async def walk() -> None:
        api = connect(KubeOptions(kubeconfig=str(kubeconfig)), MetricsRegistry())
        assert await who_we_are(api) == robot.name
        second.take_over(robot)
        await until_known_as(api, second.name)
        await api.close()

    asyncio.run(walk())


def plugin_user(user: User, folder: Path) -> Path:
    """A kubeconfig with a credential plugin that prints the current certificate of this user's files.

    The plugin reports that the certificate has expired, so that it is called again for each use.
    """
    assert user.pair
    plugin = folder / "plugin"
    plugin.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib\n"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        f"pair = [pathlib.Path(path).read_text() for path in ({str(user.pair.cert)!r}, {str(user.pair.key)!r})]\n"
        "names = 'clientCertificateData', 'clientKeyData'\n"
        "status = dict(zip(names, pair)) | {'expirationTimestamp': '2020-01-01T00:00:00Z'}\n"
        "print(json.dumps(info | {'status': status}))\n"
    )
    plugin.chmod(0o755)
    config = json.loads(user.kubeconfig.read_text())
    exec_ = {
        "command": "./plugin",
        "apiVersion": "client.authentication.k8s.io/v1",
        "interactiveMode": "Never",
    }
    config["users"][0]["user"] = {"exec": exec_}
    path = folder / "with-plugin.kubeconfig"
    path.write_text(json.dumps(config))
    return path


def test_the_api_server_is_verified_against_the_authority_that_is_in_the_file_now(
    plane: ControlPlane, robot: User, tmp_path: Path
) -> None:
    bundle = tmp_path / "ca.crt"
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(robot.kubeconfig.read_text().replace(str(plane.ca_file), str(bundle)))
    bundle.write_bytes(plane.authority.ca_pem)
    other = CertificateAuthority(tmp_path, "other-ca")

    async def walk() -> None:
        api = connect(KubeOptions(kubeconfig=str(kubeconfig)), MetricsRegistry())
        await api.get(NODES.path())
        bundle.write_bytes(other.ca_pem)
        with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await until_known_as(api, "nobody")
        bundle.write_bytes(other.ca_pem + plane.authority.ca_pem)
        async with asyncio.timeout(60):
            while not await answers(api):
                await asyncio.sleep(0.1)
        await api.close()

    asyncio.run(walk())


async def answers(api: HttpApi) -> bool:
    try:
        await api.get(NODES.path())
    except Unavailable:
        return False
    return True


def test_a_running_nodewise_goes_on_as_whom_its_new_certificate_names(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    """The rights of the old name are revoked; nodewise still receives policies and writes their status."""
    first = extender_process.user(plane)
    second = ReplacementUser(plane, first.name)
    api_user_kubeconfigs.bind(plane.api, second.name, f"test-{first.name}", extender_process.OWN_NAMESPACE)
    with extender_process.extender(plane, tmp_path, by=first) as running:
        ends_s = metric(running, "tls_certificate_expires_seconds", "kube_client")
        assert first.pair
        first.pair.replace(plane.authority.issued(second.name, days=200))
        wait("the certificate is loaded", lambda: reloads(running, "kube_client") or None)
        second.revoke_first()
        assert metric(running, "tls_certificate_expires_seconds", "kube_client") != ends_s
        sandbox.nodes(*kubernetes_objects.nodes("a b"))
        metrics.set("heat", {"a": 90, "b": 10})
        policy(sandbox, dontschedule=[HOT])
        wait("the policy takes effect", lambda: running.rejects(sandbox.namespace, "a") or None)
        path = f"/apis/telemetry.intel.com/v1alpha1/namespaces/{sandbox.namespace}/taspolicies/pol"
        wait("its status is written", lambda: sandbox.api.get(path).get("status") or None)
        assert running.events("kube_lost") == []
