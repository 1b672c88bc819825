"""Manifests of many forms, command lines and versions: the numbered cases 29 to 80, and 115."""

import json

import pytest
import yaml

from tests.conformance.configure.case_numbers import case
from tests.conformance.configure.control_plane_hosts import ControlPlaneHost
from tests.conformance.configure.scheduler_manifests import REMOVED, kubeadm_pod, to_yaml, with_field

POD = kubeadm_pod(30)
C = "spec.containers.0"


def assert_refused(host: ControlPlaneHost, manifest: str | bytes | dict, *flags: str) -> str:
    """Check that a run fails and changes nothing. Returns standard error."""
    host.write(manifest)
    before = host.snapshot()
    ran = host.run(*flags)
    assert ran.code == 1
    assert host.snapshot() == before
    assert ran.err.splitlines()[-1] != "Done."
    return ran.err


def assert_accepted(host: ControlPlaneHost, manifest: str | bytes | dict, *flags: str) -> str:
    """Check that a run succeeds and a second one changes nothing. Returns standard error of the first."""
    host.write(manifest)
    ran = host.run(*flags)
    assert ran.code == 0, ran.err
    once = host.manifest.read_bytes()
    assert host.run(*flags, "--check").code == 0
    assert host.manifest.read_bytes() == once
    return ran.err


def added_lines(host: ControlPlaneHost, text: bytes) -> list[bytes]:
    """The lines that the manifest has in addition to a text, whose lines it must have in order."""
    left = text.splitlines(keepends=True)
    lines = []
    for line in host.manifest.read_bytes().splitlines(keepends=True):
        if left and left[0] == line:
            left.pop(0)
        else:
            lines.append(line)
    assert left == []
    return lines


COMMENTED = (
    to_yaml(POD)
    .replace("spec:\n", "# who owns this\nspec:\n\n  # one only\n")
    .replace("    - --leader-elect=true\n", "    - '--leader-elect=true'   # we have three\n    # the end\n")
    .replace("  hostNetwork: true\n", '  "hostNetwork": true  # needed\n')
)


@case(29, "they stay")
def test_comments_blank_lines_and_quotes_stay(host):
    assert_accepted(host, COMMENTED)
    assert len(added_lines(host, COMMENTED.encode())) == 19


@case(30, "line ends and byte order mark stay")
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_line_ends_and_byte_order_mark_stay(host, mark, end):
    text = mark + to_yaml(POD).encode().replace(b"\n", end)
    assert_accepted(host, text)
    assert all(line.endswith(end) for line in added_lines(host, text))
    assert host.manifest.read_bytes().startswith(mark + b"apiVersion")


def test_no_line_end_at_the_end(host):
    text = to_yaml(with_field(POD, "status", REMOVED)).rstrip("\n")
    assert_accepted(host, text)
    assert host.pod["spec"]["volumes"][-1]["name"] == "certdir"


@case(32, "refused")
@case(34, "refused, and it says that there are two")
@pytest.mark.parametrize("text", [f"{to_yaml(POD)}---\na: b\n", f"---\n---\n{to_yaml(POD)}"])
def test_several_documents(host, text):
    assert "2 documents" in assert_refused(host, text)


@case(33, "the marker stays")
def test_a_document_marker_stays(host):
    text = f"---\n{to_yaml(POD)}"
    assert_accepted(host, text)
    assert host.manifest.read_text().startswith("---\napiVersion")


@case(35)
@case(36)
@case(37)
@case(38)
@case(40)
@case(57)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "spec not found"),
        ("\n", "spec not found"),
        ("spec:\n\tcontainers: []\n", 'unmarshaling of "'),
        (to_yaml(POD) + "kind: Pod\n", "'kind' twice"),
        ("- a\n", 'unmarshaling of "'),
        ("a: b\n", "spec not found"),
        ("spec: 5\n", "spec not found"),
        (to_yaml(with_field(POD, "spec.containers", REMOVED)), "imageName not found"),
        (to_yaml(with_field(POD, "spec.containers", [])), "imageName not found"),
        (to_yaml(POD).replace("  hostNetwork", "  1: x\n  hostNetwork"), "spec"),
        (b"\xff\xfe\x00", "UTF-8"),
        ("[" * 5000, 'unmarshaling of "'),
        (
            "a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(f"c{i}: &c{i} [*b, *b, *b]\n" for i in range(3)),
            "spec not",
        ),
        (to_yaml(with_field(POD, "metadata", 5)), "metadata"),
        (to_yaml(with_field(POD, "metadata.annotations", [])), "metadata.annotations"),
        (b"a" * (2**20 + 1), "bytes"),
    ],
)
def test_a_text_that_is_no_pod_is_refused(host, text, says):
    assert says in assert_refused(host, text)


def test_aliases_that_would_fill_the_memory(host):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "values" in assert_refused(host, to_yaml(POD) + "\n".join(lines) + "\n")


@case(41)
def test_no_mounts(host):
    assert_accepted(host, with_field(POD, f"{C}.volumeMounts", REMOVED))
    assert [mount["name"] for mount in host.container["volumeMounts"]] == ["schedulerconfig", "certdir"]


def test_no_volumes_and_little_else(host):
    small = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "kube-scheduler"},
        "spec": {
            "containers": [{"name": "kube-scheduler", "image": "a/b:v1.30.1", "command": ["kube-scheduler"]}]
        },
    }
    assert_accepted(host, small)
    assert len(host.pod["spec"]["volumes"]) == 2
    old = to_yaml(small)
    assert host.run("--uninstall").code == 0
    assert host.manifest.read_text() == old


@case(42, "nothing is written")
@case(43, "nothing is written")
@case(45, "refused")
@case(47, "nothing is written")
@case(48, "refused")
@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        (f"{C}.volumeMounts", None, "volumeMounts type wrong, should have been array in manifest file"),
        (f"{C}.volumeMounts", {}, "volumeMounts type wrong, should have been array in manifest file"),
        (f"{C}.volumeMounts", ["x"], "volumeMount type error"),
        (f"{C}.volumeMounts", [{"mountPath": "/x"}], "a volumeMount without a name"),
        ("spec.volumes", ["x"], "volume type error in manifest file, should have been a map"),
        ("spec.volumes", [{"emptyDir": {}}], "a volume without a name"),
        ("spec.volumes", None, "volumes type wrong"),
        ("spec.volumes", {}, "volumes type wrong"),
        (
            f"{C}.volumeMounts",
            [{"name": "x", "mountPath": "/host/certs"}],
            "/host/certs is mounted already, by 'x'",
        ),
    ],
)
def test_mounts_and_volumes_of_wrong_shapes(host, where, value, says):
    assert says in assert_refused(host, with_field(POD, where, value))


FORMER_MOUNTS = [
    {"mountPath": "/old/config.yaml", "name": "schedulerconfig"},
    {"mountPath": "/host/certs", "name": "certdir"},
    {"mountPath": "/etc/kubernetes/scheduler.conf", "name": "kubeconfig", "readOnly": True},
]
FORMER_VOLUMES = [
    {"hostPath": {"path": "/old/config.yaml"}, "name": "schedulerconfig"},
    {"hostPath": {"path": "/old/certs"}, "name": "certdir"},
    *POD["spec"]["volumes"],
]


def former_pod(config: str = "/old/config.yaml"):
    """The pod as the older configurator leaves it."""
    command = [*POD["spec"]["containers"][0]["command"], f"--config={config}"]
    pod = with_field(POD, f"{C}.volumeMounts", FORMER_MOUNTS)
    pod = with_field(with_field(pod, "spec.volumes", FORMER_VOLUMES), f"{C}.command", command)
    return with_field(pod, "spec.dnsPolicy", "ClusterFirstWithHostNet")


@case(49, "replaced where they stand")
@case(115, "a requirement on the new program")
def test_entries_of_the_older_configurator_are_taken_over(host):
    text = yaml.safe_dump(former_pod(), indent=4, width=1000)
    output = assert_accepted(host, text)
    expected = ["schedulerconfig", "certdir", "kubeconfig"]
    assert [mount["name"] for mount in host.container["volumeMounts"]] == expected
    assert [v["name"] for v in host.pod["spec"]["volumes"]] == ["schedulerconfig", "certdir", "kubeconfig"]
    assert host.container["volumeMounts"][0]["mountPath"] == str(host.config)
    assert host.container["command"][-1] == f"--config={host.config}"
    assert "/old/config.yaml is not used any more" in output
    assert host.run("--uninstall").code == 0
    assert host.pod == POD


@case("71b", "replaced where it stands")
def test_entries_of_the_older_script_are_taken_over(host):
    program, *flags = POD["spec"]["containers"][0]["command"]
    assert_accepted(
        host, with_field(former_pod(), f"{C}.command", [program, "--config=/old/config.yaml", *flags])
    )
    assert host.container["command"] == [program, f"--config={host.config}", *flags]
    expected = {"mountPath": "/host/certs", "name": "certdir", "readOnly": True}
    assert host.container["volumeMounts"][1] == expected


EXTRA = with_field(
    with_field(
        POD,
        f"{C}.volumeMounts",
        [*POD["spec"]["containers"][0]["volumeMounts"], {"mountPath": "/x", "name": "x"}],
    ),
    "spec.volumes",
    [*POD["spec"]["volumes"], {"hostPath": {"path": "/x", "type": "Directory"}, "name": "x"}],
)


@case(50)
@case(113, "valid, where the older script made broken YAML")
def test_further_volumes_are_kept(host):
    assert_accepted(host, EXTRA)
    expected = ["kubeconfig", "x", "schedulerconfig", "certdir"]
    assert [volume["name"] for volume in host.pod["spec"]["volumes"]] == expected
    assert host.pod["spec"]["volumes"][:2] == EXTRA["spec"]["volumes"]


@case(51)
@case(52)
@case(53)
@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("spec.dnsPolicy", "Default"),
        ("spec.dnsPolicy", "None"),
        ("spec.hostNetwork", REMOVED),
        ("spec.dnsPolicy", "ClusterFirstWithHostNet"),
    ],
)
def test_the_dns_policy_is_set_and_set_back(host, where, value):
    old = with_field(with_field(POD, "spec.dnsConfig", {"nameservers": ["1.2.3.4"]}), where, value)
    assert_accepted(host, old)
    assert host.pod["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert host.pod["spec"]["dnsConfig"] == {"nameservers": ["1.2.3.4"]}
    assert host.run("--uninstall").code == 0
    assert host.manifest.read_text() == to_yaml(old)


SIDECAR = {"name": "sidecar", "image": "a/b:v0.3.1", "command": ["x"], "volumeMounts": []}


@case(54, "the container is known by its name")
def test_kube_scheduler_is_the_second_container(host):
    assert_accepted(host, with_field(POD, "spec.containers", [SIDECAR, *POD["spec"]["containers"]]))
    assert host.pod["spec"]["containers"][0] == SIDECAR
    assert f"--config={host.config}" in host.pod["spec"]["containers"][1]["command"]


def test_a_container_of_another_name(host):
    other = with_field(POD, f"{C}.name", "scheduler")
    assert_accepted(host, other)
    both = with_field(
        other, "spec.containers", [{**SIDECAR, "command": ["y"]}, other["spec"]["containers"][0]]
    )
    assert_accepted(host, both, "--container", "scheduler")
    assert "--container" in assert_refused(host, both, "--container", "nobody")


@case(55, "unchanged")
@case(56, "unchanged")
def test_spellings_are_kept(host):
    text = to_yaml(POD).replace("readOnly: true", "readOnly: yes")
    text = text.replace(
        "metadata:\n", "metadata:\n  annotations:\n    a: 1.10\n    e: 0644\n    g: 2024-01-02\n"
    )
    assert_accepted(host, text)
    added_lines(host, text.encode())


@case(58, "kept, or refused")
def test_anchors_and_merge_keys(host):
    kept = (
        to_yaml(POD)
        .replace("  labels:\n", "  labels: &labels\n")
        .replace("status: {}\n", "status: *labels\n")
    )
    assert_accepted(host, kept)
    added_lines(host, kept.encode())
    mounts = "volumeMounts:\n    - mountPath: /etc/kubernetes/scheduler.conf"
    shared = to_yaml(POD).replace(mounts, mounts.replace("volumeMounts:", "volumeMounts: &mounts"))
    shared = shared.replace("status: {}\n", "status: {a: *mounts}\n")
    assert "cannot be changed without changing" in assert_refused(host, shared)
    merged = to_yaml(POD).replace("spec:\n", "x-base: &base\n  dnsPolicy: Default\nspec:\n  <<: *base\n")
    assert "cannot be changed without changing" in assert_refused(host, merged)


@pytest.mark.parametrize("indent", [None, 2])
def test_json_stays_json(host, indent):
    assert_accepted(host, json.dumps(POD, indent=indent))
    pod = json.loads(host.manifest.read_text())
    assert pod["spec"]["volumes"][-1]["name"] == "certdir"
    assert host.run("--uninstall").code == 0
    assert json.loads(host.manifest.read_text()) == POD


def test_flow_style_stays(host):
    text = yaml.safe_dump(POD, default_flow_style=True, width=1000)
    assert_accepted(host, text)
    assert host.run("--uninstall").code == 0
    assert host.manifest.read_text() == text


def manifest_with_flags(*words, **other):
    return to_yaml(with_field(POD, f"{C}.command", ["kube-scheduler", *words]))


@case(59, "refused without --merge or --replace; replaced where it stands")
def test_a_configuration_of_the_users_own(host):
    text = manifest_with_flags("--config=/old.yaml", "--leader-elect=true")
    assert "the configuration /old.yaml is in use" in assert_refused(host, text)
    assert_accepted(host, text, "--replace")
    assert host.container["command"] == ["kube-scheduler", f"--config={host.config}", "--leader-elect=true"]
    assert host.run("--uninstall").code == 0
    assert host.manifest.read_text() == text


@case(60)
@case(61)
@case(63)
@case(65, "removed")
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--config", "/old.yaml", "--v=2"], ["C", "--v=2"]),
        (["-config=/old.yaml"], ["C"]),
        (["--config=/a", "--v=2", "--config=/b"], ["C", "--v=2"]),
        (["--policy-configmap=x", "--policy-configmap-namespace=y"], ["C"]),
        (["--policy-configmap", "x", "--v=2"], ["--v=2", "C"]),
        (["--policy-config-file=/p", "--use-legacy-policy-config=true"], ["C"]),
        (["--use-legacy-policy-config", "--v=2"], ["--v=2", "C"]),
        (
            ["--policy_config_file=/p", "--use_legacy_policy_config=true", "--log_dir=/l"],
            ["--log_dir=/l", "C"],
        ),
        (
            ["--config-foo=x", "--Config=y", "--write-config-to=z"],
            ["--config-foo=x", "--Config=y", "--write-config-to=z", "C"],
        ),
    ],
)
def test_the_command_line(host, words, wanted):
    assert_accepted(host, manifest_with_flags(*words), "--replace")
    expected = [f"--config={host.config}" if word == "C" else word for word in wanted]
    assert host.container["command"] == ["kube-scheduler", *expected]


@case(62, "refused: a flag without its value")
@case(67)
@case(68)
@case(69)
@case(70, "refused")
@case("71a", "refused")
@pytest.mark.parametrize(
    ("value", "says"),
    [
        (["kube-scheduler", "--config", "--leader-elect=false"], "--config without a value"),
        (["kube-scheduler", "--config"], "--config without a value"),
        (REMOVED, "'command' missing from YAML spec container in manifest file"),
        ("kube-scheduler", "command is not an array type in manifest file"),
        (None, "command is not an array type in manifest file"),
        (["kube-scheduler", 5], "command array item is not a string type in manifest file"),
        ([], "'command' missing"),
        (["/bin/sh", "-c", "exec kube-scheduler --v=2"], "'/bin/sh'; expected kube-scheduler"),
    ],
)
def test_command_lines_that_cannot_be_edited(host, value, says):
    assert says in assert_refused(host, with_field(POD, f"{C}.command", value), "--replace")


@case(71, "edited where the flags are")
@pytest.mark.parametrize(("flags", "wanted"), [(["--config=/old"], ["C"]), (["--v=2"], ["--v=2", "C"])])
def test_flags_in_args(host, flags, wanted):
    pod = with_field(with_field(POD, f"{C}.command", ["kube-scheduler"]), f"{C}.args", flags)
    assert_accepted(host, pod, "--replace")
    assert host.container["command"] == ["kube-scheduler"]
    assert host.container["args"] == [f"--config={host.config}" if word == "C" else word for word in wanted]


DIGEST = "@sha256:" + "0" * 64


@case(72)
@case(73)
@case(74)
@case(75, "1.30 is taken")
@case(80, "with a warning")
@pytest.mark.parametrize(
    ("image", "seen"),
    [
        (f"registry.k8s.io/kube-scheduler:v1.30.2{DIGEST}", "1.30"),
        ("localhost:5000/kube-scheduler:v1.28.3", "1.28"),
        ("a/b:v1.28.4-rke2r1-build20231201", "1.28"),
        ("a/b:v1.31.0-rc.1", "1.31"),
        ("a/b:v1.29.3-eks-1-29-4", "1.29"),
        ("a/b:v1.030.1", "1.30"),
        ("a/b:v1.30.*", "1.30"),
        ("a/b:v1.30", "1.30"),
        ("a/b:1.30.1", "1.30"),
        ("a/b:v1.99.0", "1.99"),
    ],
)
def test_versions(host, image, seen):
    output = assert_accepted(host, with_field(POD, f"{C}.image", image))
    assert f"kube-scheduler {seen}, configuration" in output
    assert ("is newer than what was tried" in output) == (seen == "1.99")


@case(76, "1.30.1 is taken; the others' error names --kubernetes-version")
@case(77, "nothing is written")
@case(78, "it says so")
@case(79)
@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("a/b:latest", "version not found from imageName: a/b:latest (say it with --kubernetes-version)"),
        ("a/b", "version not found"),
        (f"a/b{DIGEST}", "--kubernetes-version"),
        ("localhost:5000/b", "version not found"),
        ("a/b:v1", "version not found"),
        ("a/b:v1.x.3", "version not found"),
        ("a/b:V1.30.1", "version not found"),
        ("a/b:v1." + "9" * 30, "version not found"),
        ("a/b:v1.18.20", "k8s version older than 1.19 isn't supported"),
        ("a/b:v2.5.1", "unsupported major version 2"),
        (5, "imageName not found"),
        (REMOVED, "imageName not found"),
    ],
)
def test_versions_that_cannot_be_used(host, image, says):
    text = to_yaml(with_field(POD, f"{C}.image", image))
    assert says in assert_refused(host, text)
    if "version not found" in says or "imageName" in says:
        assert "kube-scheduler 1.30," in assert_accepted(host, text, "--kubernetes-version", "v1.30.4")


def test_a_pod_of_kubernetes_1_18(host):
    assert "older than 1.19" in assert_refused(host, kubeadm_pod(18, "20"))
