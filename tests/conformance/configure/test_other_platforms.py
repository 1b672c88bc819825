"""Output for clusters whose static pods are not edited: the numbered cases 119 to 122."""

import itertools
import json
from pathlib import Path

import pytest
import yaml

from tests.conformance.configure.case_numbers import case

DEPLOY = Path(__file__).parents[3] / "deploy"
ADDRESS = "https://10.96.0.9:9001"
FIELDS = {
    "urlPrefix", "filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb", "weight", "enableHTTPS", "httpTimeout",
    "tlsConfig", "nodeCacheCapable", "managedResources", "ignorable",
}  # fmt: skip
"""Fields of an extender in kube-scheduler's v1 types."""


def second_scheduler_objects(host, *flags: str) -> dict[tuple[str, str], dict]:
    ran = host.configure("--mode", "second-scheduler", "--kubernetes-version", "1.36.3", *flags)
    assert ran.code == 0, ran.err
    return {
        (manifest["kind"], manifest["metadata"]["name"]): manifest
        for manifest in yaml.load_all(ran.out, yaml.CSafeLoader)
    }


def mode_files(host, mode: str, *flags: str) -> dict[str, str]:
    ran = host.configure("--mode", mode, "-o", "json", *flags)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


@case(
    119, "what is needed for a sound call is there too: preemptVerb, httpTimeout, caFile; no ignorable filter"
)
@pytest.mark.parametrize("agents", ["telemetry", "gpu", "telemetry,gpu"])
def test_the_configuration_for_each_agent(host, agents):
    flags = ["--agents", agents, "--one-entry-per-agent", "--namespace", "mine"]
    value = yaml.load(mode_files(host, "kubeadm", *flags)["scheduler-config.yaml"], yaml.CSafeLoader)
    assert [entry["urlPrefix"] for entry in value["extenders"]] == [
        f"https://nodewise.mine.svc:9001/agents/{agent}" for agent in agents.split(",")
    ]
    for entry in value["extenders"]:
        assert set(entry) <= FIELDS
        assert (entry["ignorable"], entry["nodeCacheCapable"]) == (False, True)
        assert {"httpTimeout", "preemptVerb", "filterVerb"} <= set(entry)
        assert entry["tlsConfig"]["caFile"] == "/host/certs/ca.crt"
    resources = [resource["name"] for entry in value["extenders"] for resource in entry["managedResources"]]
    assert ("gpu.intel.com/xe" in resources) == ("gpu" in agents)


@case(120, "kube-scheduler and nodewise in one pod, on loopback")
def test_a_second_scheduler(host):
    manifests = second_scheduler_objects(host)
    name = "nodewise-scheduler"
    bound = {
        (manifest["roleRef"]["name"], manifest["metadata"].get("namespace"))
        for (kind, _), manifest in manifests.items()
        if kind.endswith("Binding")
    }
    assert bound >= {
        ("system:kube-scheduler", None),
        ("system:volume-scheduler", None),
        ("extension-apiserver-authentication-reader", "kube-system"),
        (name, None),
        (name, "nodewise"),
    }
    value = yaml.load(manifests["ConfigMap", name]["data"]["scheduler.yaml"], yaml.CSafeLoader)
    assert "clientConnection" not in value
    assert [profile["schedulerName"] for profile in value["profiles"]] == [name]
    expected = {"leaderElect": True, "resourceName": name, "resourceNamespace": "nodewise"}
    assert value["leaderElection"] == expected
    assert [entry["urlPrefix"] for entry in value["extenders"]] == ["http://127.0.0.1:9001/scheduler"]
    assert "tlsConfig" not in value["extenders"][0]
    pod = manifests["Deployment", name]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.k8s.io/kube-scheduler:v1.36.3"
    assert not {"hostNetwork", "hostPID"} & set(pod)
    assert pod["enableServiceLinks"] is False
    assert all("hostPath" not in volume for volume in pod["volumes"])
    assert "--unsafe" in pod["containers"][1]["command"]


def test_the_second_schedulers_name(host):
    assert ("Deployment", "other") in second_scheduler_objects(
        host, "--scheduler-name", "other", "--namespace", "n"
    )
    ran = host.configure(
        "--mode", "second-scheduler", "--kubernetes-version", "1.36", "--scheduler-name", "default-scheduler"
    )
    assert ran.code == 2


@pytest.mark.parametrize("mode", ["second-scheduler", "kubeadm"])
@pytest.mark.parametrize(
    ("flag", "seen"),
    [
        ("--namespace", "a.b"),
        ("--scheduler-name", "No Name"),
        ("--scheduler-name", "n\n"),
        ("--image", "a\nb: c"),
    ],
)
def test_names_that_no_object_can_have(host, mode, flag, seen):
    ran = host.configure("--mode", mode, "--kubernetes-version", "1.36", flag, seen)
    assert (ran.code, ran.out) == (2, "")
    assert f"{flag}: {seen!r}; expected" in ran.err


def test_the_version_has_to_be_known(host):
    ran = host.configure(
        "--mode", "second-scheduler", env={"PATH": "/usr/bin:/bin", "KUBECONFIG": "/nowhere"}
    )
    assert ran.code == 2
    assert "--kubernetes-version" in ran.err


def expand_rules(rules) -> set[str]:
    """The permissions one by one: group, resource, verb, name."""
    return {
        "/".join(parts)
        for rule in rules
        for parts in itertools.product(
            rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames", [""])
        )
    }


@pytest.mark.parametrize(
    ("agents", "files"),
    [
        ("telemetry", ["rbac.yaml"]),
        ("telemetry,gpu", ["rbac.yaml", "gpu.yaml"]),
        ("learned", ["rbac.yaml", "memory.yaml"]),
    ],
)
def test_a_second_scheduler_has_the_rights_that_ship(host, agents, files):
    flags = ["--kubernetes-version", "1.36", "--agents", agents, "-o", "json"]
    items = json.loads(host.configure("--mode", "second-scheduler", *flags).out)["items"]
    shipped = [
        item for file in files for item in yaml.load_all((DEPLOY / file).read_text(), yaml.CSafeLoader)
    ]
    own_lease = {f"coordination.k8s.io/leases/{verb}/nodewise-scheduler" for verb in ("get", "update")}
    for kind, more in (("ClusterRole", set()), ("Role", own_lease)):
        rules = [rule for item in shipped if item["kind"] == kind for rule in item["rules"]]
        [own] = [item["rules"] for item in items if item["kind"] == kind]
        assert expand_rules(own) == expand_rules(rules) | more


@case(121, "a requirement on the new program")
@pytest.mark.parametrize(
    ("mode", "kubeconfig"),
    [
        ("k3s", "/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig"),
        ("rke2", "/var/lib/rancher/rke2/server/cred/scheduler.kubeconfig"),
        ("microk8s", "/var/snap/microk8s/current/credentials/scheduler.config"),
    ],
)
def test_distributions(host, mode, kubeconfig):
    texts = mode_files(host, mode, "--extender-url", ADDRESS)
    value = yaml.load(texts["scheduler-config.yaml"], yaml.CSafeLoader)
    assert value["clientConnection"] == {"kubeconfig": kubeconfig}
    [entry] = value["extenders"]
    assert entry["urlPrefix"] == f"{ADDRESS}/scheduler"
    assert entry["tlsConfig"]["serverName"] == "nodewise.nodewise.svc"
    [snippet] = [text for name, text in texts.items() if name != "scheduler-config.yaml"]
    assert "config=/" in snippet
    assert snippet.partition("config=")[2].split()[0].endswith("/nodewise/scheduler-config.yaml")
    assert host.configure("--mode", mode).code == 2
    assert "not run by us" in host.configure("--mode", mode, "--extender-url", ADDRESS).err


def test_talos_takes_the_whole_configuration(host):
    patch = yaml.load(
        mode_files(host, "talos", "--extender-url", ADDRESS)["machine-config-patch.yaml"], yaml.CSafeLoader
    )
    assert patch["cluster"]["scheduler"]["config"]["kind"] == "KubeSchedulerConfiguration"
    assert "clientConnection" not in patch["cluster"]["scheduler"]["config"]


@case(122, "a requirement on the new program")
def test_kubeadm(host):
    texts = mode_files(host, "kubeadm")
    assert yaml.load(texts["patches/kube-scheduler+strategic.yaml"], yaml.CSafeLoader) == {
        "spec": {"dnsPolicy": "ClusterFirstWithHostNet"}
    }
    path = "/etc/kubernetes/nodewise/scheduler-config.yaml"
    args = {"v1beta3": {"config": path}, "v1beta4": [{"name": "config", "value": path}]}
    for version, wanted in args.items():
        cluster, init = yaml.load_all(texts[f"kubeadm-{version}.yaml"], yaml.CSafeLoader)
        assert cluster["scheduler"]["extraArgs"] == wanted
        assert cluster["apiVersion"] == init["apiVersion"] == f"kubeadm.k8s.io/{version}"
        expected = ["File", "Directory"]
        assert [volume["pathType"] for volume in cluster["scheduler"]["extraVolumes"]] == expected


def test_kind(host):
    """The patches have both versions of kubeadm's configuration: kind merges those of the version that it writes."""
    cluster = yaml.load(mode_files(host, "kind")["kind.yaml"], yaml.CSafeLoader)
    patches = [yaml.load(text, yaml.CSafeLoader) for text in cluster["kubeadmConfigPatches"]]
    path = "/nodewise/scheduler-config.yaml"
    configurations = {(patch["apiVersion"], patch["kind"]): patch for patch in patches}
    for version, args in {
        "v1beta3": {"config": path},
        "v1beta4": [{"name": "config", "value": path}],
    }.items():
        actual = configurations[f"kubeadm.k8s.io/{version}", "ClusterConfiguration"]["scheduler"]["extraArgs"]
        assert actual == args
        init = configurations[f"kubeadm.k8s.io/{version}", "InitConfiguration"]
        assert init["patches"] == {"directory": "/nodewise/patches"}
    control_plane, worker = cluster["nodes"]
    assert control_plane["extraMounts"] == [{"hostPath": ".", "containerPath": "/nodewise"}]
    assert [yaml.load(text, yaml.CSafeLoader) for text in control_plane["kubeadmConfigPatches"]] == [
        {
            "apiVersion": f"kubeadm.k8s.io/{version}",
            "kind": "JoinConfiguration",
            "patches": {"directory": "/nodewise/patches"},
        }
        for version in ("v1beta3", "v1beta4")
    ], "for copies of the entry: further control planes join"
    assert worker == {"role": "worker"}, "it does not mount the folder"


def test_cluster_api(host):
    manifests = {name: yaml.load(text, yaml.CSafeLoader) for name, text in mode_files(host, "capi").items()}
    path = "/etc/kubernetes/nodewise/scheduler-config.yaml"
    for version, args in {
        "v1beta1": {"config": path},
        "v1beta2": [{"name": "config", "value": path}],
    }.items():
        plane = manifests[f"kubeadmcontrolplane-{version}.yaml"]
        expected = (f"controlplane.cluster.x-k8s.io/{version}", "KubeadmControlPlane")
        assert (plane["apiVersion"], plane["kind"]) == expected
        spec = plane["spec"]["kubeadmConfigSpec"]
        assert spec["clusterConfiguration"]["scheduler"]["extraArgs"] == args
        written = {file["path"]: file for file in spec["files"]}
        value = yaml.load(written[path]["content"], yaml.CSafeLoader)
        named = value["extenders"][0]["tlsConfig"].values()
        folder = {volume["mountPath"]: volume["hostPath"] for volume in volumes(spec)}["/host/certs"]
        assert {f"{folder}/{Path(name).name}" for name in named} <= set(written)
        assert written[f"{folder}/client.key"]["permissions"] == "0600"
        for phase in ("initConfiguration", "joinConfiguration"):
            patch = written[f"{spec[phase]['patches']['directory']}/kube-scheduler+strategic.yaml"]
            assert yaml.load(patch["content"], yaml.CSafeLoader) == {
                "spec": {"dnsPolicy": "ClusterFirstWithHostNet"}
            }
    assert manifests["clusterresourceset.yaml"]["kind"] == "ClusterResourceSet"
    assert "not run by us" in host.configure("--mode", "capi").err


def volumes(spec):
    return spec["clusterConfiguration"]["scheduler"]["extraVolumes"]


def test_texts_of_several_lines_can_be_read(host):
    assert "content: |" in host.configure("--mode", "capi").out
    assert "\\n" not in host.configure("--mode", "second-scheduler", "--kubernetes-version", "1.36").out


def test_files_are_written_into_a_folder_and_nothing_is_overwritten(host, tmp_path):
    into = tmp_path / "new"
    assert host.configure("--mode", "kubeadm", "--into", str(into)).code == 0
    assert (into / "patches" / "kube-scheduler+strategic.yaml").exists()
    assert host.configure("--mode", "kubeadm", "--into", str(into)).code == 0
    (into / "scheduler-config.yaml").write_text("mine")
    assert host.configure("--mode", "kubeadm", "--into", str(into)).code == 1
    assert (into / "scheduler-config.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    "flags",
    [
        ["--mode", "kubeadm", "--uninstall"],
        ["--mode", "kubeadm", "-f", "x"],
        ["--mode", "nowhere"],
        ["--into", "x"],
        ["--scheduler-name", "x"],
    ],
)
def test_flags_of_other_modes(host, flags):
    assert host.configure(*flags).code == 2
