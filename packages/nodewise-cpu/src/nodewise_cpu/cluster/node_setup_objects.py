"""The pods and DaemonSets that prepare nodes, and the node agent's DaemonSet.

Names, commands and mounts are those of CMK, so that its objects are found and replaced. Commands in containers are
lines for a shell: `check` rejects values that a shell would interpret. The agent's DaemonSet equals the one of
`deploy/cpu-agent.yaml`. Its account and rights are not created here: the user who prepares nodes needs no right to
grant rights.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

import nodewise
from nodewise.base.errors import BadSettings, Problem, shown
from nodewise_cpu.cluster.api_server import ApiFeatures, Object
from nodewise_cpu.cmk_names import DEFAULT_INSTALL_DIR, DEFAULT_SOCKET, LABEL, NODE_NAME, PROC_FS
from nodewise_cpu.pool_planning import PoolOptions

INIT: Final = "init"
INSTALL: Final = "install"
DISCOVER: Final = "discover"
RECONCILE: Final = "reconcile"
NODE_REPORT: Final = "nodereport"

ONCE: Final = (INIT, INSTALL, DISCOVER)
"""Commands that end, in the order in which they run: cores are advertised after the program is installed."""
ALWAYS: Final = (RECONCILE, NODE_REPORT)
ALLOWED: Final = (INIT, DISCOVER, INSTALL, RECONCILE, NODE_REPORT)

IMAGE: Final = f"nodewise:{nodewise.__version__}"
ACCOUNT: Final = "cmk-serviceaccount"
PULL_POLICIES: Final = ("Never", "IfNotPresent", "Always")
MADE_FROM: Final = "cpu.nodewise.io/made-from"
"""The annotation with a digest of the template that an object was created from."""

_PROGRAM: Final = "/cmk/cmk.py"
_INIT_CONTAINERS: Final = "pod.beta.kubernetes.io/init-containers"
_PROC: Final = {"name": "host-proc", "hostPath": {"path": "/proc"}}
_PROC_MOUNT: Final = {"mountPath": "/host/proc", "name": "host-proc", "readOnly": True}
_AGENT: Final = str(PurePosixPath(DEFAULT_SOCKET).parent)
_SOCKET: Final = {"name": "agent", "hostPath": {"path": _AGENT, "type": "DirectoryOrCreate"}}
"""The node agent moves the tasks if there is one, because it may confine them by cpusets."""
_SOCKET_MOUNT: Final = {"mountPath": _AGENT, "name": "agent", "readOnly": True}
_CLOSED: Final = {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False}
_LONGEST_LABEL: Final = 63

_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_DOMAIN: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.ASCII)
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}", re.ASCII)
_PATH: Final = re.compile(r"/[A-Za-z0-9._/-]{0,1023}", re.ASCII)
_CORES: Final = re.compile(r"-1|[a-z0-9:,-]{0,4096}", re.ASCII)
_MODE: Final = re.compile(r"[A-Za-z]{1,32}", re.ASCII)
_KIND: Final = re.compile(r"[a-z0-9_-]{0,32}", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,6}", re.ASCII)


class SetupOptions(NamedTuple):
    """The options of all pods, from `cluster-init` or `reconfigure_setup`."""

    pools: PoolOptions = PoolOptions()
    image: str = IMAGE
    pull_policy: str = "IfNotPresent"
    pull_secret: str = ""
    service_account: str = ACCOUNT
    namespace: str = "default"
    install_dir: str = DEFAULT_INSTALL_DIR
    taint: bool = True


def parse_commands(text: str) -> tuple[str, ...]:
    """The commands of `--cmk-cmd-list`; BadSettings names unknown ones, and `init` if it is not the first."""
    commands = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    wrong = [
        Problem("--cmk-cmd-list", shown(command), ", ".join(ALLOWED))
        for command in commands
        if command not in ALLOWED
    ]
    if INIT in commands[1:]:
        wrong.append(Problem("--cmk-cmd-list", shown(text), "init must be first"))
    _raise_bad_settings(wrong)
    return commands


def parse_core_count(text: str, option: str) -> int:
    """A number of cores; BadSettings if it is not a whole number of 0 or more."""
    if not _NUMBER.fullmatch(text.strip()):
        _raise_bad_settings([Problem(option, shown(text), "a positive integer, or 0")])
    return int(text)


def check(options: SetupOptions) -> None:
    """BadSettings names every invalid value, and every value that a shell would interpret."""
    plain = "letters, digits and"
    patterns = (
        ("--cmk-img", options.image, _IMAGE, "an image's name"),
        ("--pull-secret", options.pull_secret or "none", _DOMAIN, "a Secret's name"),
        ("--saname", options.service_account, _DOMAIN, "a ServiceAccount's name"),
        ("--namespace", options.namespace, _LABEL, "a namespace's name"),
        ("--install-dir", options.install_dir, _PATH, f"an absolute path of {plain} . _ - /"),
        ("--exclusive-mode", options.pools.exclusive_mode, _MODE, "packed or spread"),
        ("--shared-mode", options.pools.shared_mode, _MODE, "packed or spread"),
        ("--excl-non-isolcpus", options.pools.non_isolcpus, _CORES, "core numbers and ranges, such as 3,5-7"),
        ("--exclusive-kind", options.pools.exclusive_kind, _KIND, "a kind of cores, such as performance"),
    )
    wrong = [
        Problem(at, shown(text), wanted) for at, text, form, wanted in patterns if not form.fullmatch(text)
    ]
    if options.pull_policy not in PULL_POLICIES:
        wrong.append(Problem("--cmk-img-pol", shown(options.pull_policy), ", ".join(PULL_POLICIES)))
    _raise_bad_settings(wrong)


def check_node_name(name: str) -> None:
    """BadSettings if the text cannot be a node's name."""
    if not _DOMAIN.fullmatch(name):
        _raise_bad_settings([Problem("--host-list", shown(name), "names of nodes, separated by commas")])


def _raise_bad_settings(problems: Sequence[Problem]) -> None:
    if problems:
        raise BadSettings("settings", problems)


def pod_name(commands: Iterable[str], node: str) -> str:
    return f"cmk-{'-'.join(commands)}-pod-{node}"


def daemon_set_name(commands: Iterable[str], node: str) -> str:
    return f"cmk-{'-'.join(commands)}-ds-{node}"


def reconfiguration_pod_name(node: str, *, checks: bool = False) -> str:
    return f"cmk-reconfigure-check-pod-{node}" if checks else f"cmk-reconfigure-pod-{node}"


def preparation_pod(
    commands: Sequence[str], node: str, options: SetupOptions, features: ApiFeatures
) -> Object:
    """The pod whose containers prepare a node, one after the other."""
    ordered = [command for command in ONCE if command in commands]
    containers = [_container(name, _command_line(name, options), options) for name in ordered]
    first, spec, annotations = containers[:-1], {"containers": containers[-1:]}, {}
    if first and features.init_containers == "annotation":
        annotations[_INIT_CONTAINERS] = json.dumps(first)
    else:
        spec |= {"initContainers": first} if first else {}
        spec |= {"tolerations": [{"operator": "Exists"}]} if features.taints == "spec" else {}
    return _pod(pod_name(commands, node), node, options, spec, annotations)


def daemon_set(commands: Sequence[str], node: str, options: SetupOptions, features: ApiFeatures) -> Object:
    """The DaemonSet of a single node, whose containers maintain it."""
    name = daemon_set_name(commands, node)
    containers = [_container(command, _command_line(command, options), options) for command in commands]
    spec = _pod_spec(node, options, {"containers": containers, "restartPolicy": "Always"})
    if features.taints == "spec":
        spec["tolerations"] = [{"operator": "Exists"}]
    labels = {"app": label(name)}
    about: dict[str, Any] = {"labels": labels}
    whole: dict[str, Any] = {"template": {"metadata": about, "spec": spec}}
    if features.daemon_sets == "apps/v1":
        whole["selector"] = {"matchLabels": labels}
    metadata = {"name": name, "namespace": options.namespace}
    made = {"apiVersion": features.daemon_sets, "kind": "DaemonSet", "metadata": metadata, "spec": whole}
    stamp = {MADE_FROM: _digest_of_object(made)}
    about["annotations"] = stamp  # identifies the template that a pod was created from
    return made | {"metadata": {**metadata, "annotations": stamp}}


def reconfiguration_pod(node: str, options: SetupOptions, *, checks: bool = False) -> Object:
    """The pod that gives a node other pools, or only checks whether that is possible."""
    pools = options.pools
    line = (
        f"{_PROGRAM} reconfigure --node-name={node} --num-exclusive-cores={pools.exclusive}"
        f" --num-shared-cores={pools.shared} --excl-non-isolcpus={pools.non_isolcpus}"
        f" --exclusive-mode={pools.exclusive_mode} --shared-mode={pools.shared_mode}{_kind_option(pools)}"
        f" --install-dir={options.install_dir} --namespace={options.namespace}"
    )
    container = _container("reconfigure", line + " --check" * checks, options)
    container["volumeMounts"] = [*container["volumeMounts"], _SOCKET_MOUNT]
    parts = {
        "containers": [container],
        "hostPID": True,
        "tolerations": [{"operator": "Exists"}],
        "volumes": [_PROC, _SOCKET],
    }
    return _pod(reconfiguration_pod_name(node, checks=checks), node, options, parts, {})


def label(name: str) -> str:
    """The name as the value of a label. A name that is too long is cut, and ends with a digest."""
    if len(name) <= _LONGEST_LABEL:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: _LONGEST_LABEL - 11]}-{digest}"


def _command_line(command: str, options: SetupOptions) -> str:
    """The command line of a container, exactly as CMK had it."""
    namespace = f"--namespace={options.namespace}"
    forever = (
        f"{_PROGRAM} isolate --pool=infra {namespace} {_PROGRAM} -- %s --interval=5 --publish {namespace}"
    )
    pools = options.pools
    lines = {
        INIT: f"{_PROGRAM} init --num-exclusive-cores={pools.exclusive} --num-shared-cores={pools.shared}"
        f" --shared-mode={pools.shared_mode} --exclusive-mode={pools.exclusive_mode}"
        f" --excl-non-isolcpus={pools.non_isolcpus}{_kind_option(pools)} {namespace}",
        INSTALL: f"{_PROGRAM} install",
        DISCOVER: f"{_PROGRAM} discover {namespace}" + ("" if options.taint else " --no-taint"),
        RECONCILE: forever % "reconcile",
        NODE_REPORT: forever % "node-report",
    }
    return lines[command]


def _kind_option(pools: PoolOptions) -> str:
    return f" --exclusive-kind={pools.exclusive_kind}" if pools.exclusive_kind else ""


def _container(name: str, line: str, options: SetupOptions) -> dict[str, Any]:
    program = {"mountPath": DEFAULT_INSTALL_DIR, "name": "cmk-install-dir"}
    mounts = {
        INIT: [_PROC_MOUNT],
        INSTALL: [program, _PROC_MOUNT],  # `install` keeps versions that are in use
        DISCOVER: [],
        RECONCILE: [_PROC_MOUNT, program | {"readOnly": True}],
        NODE_REPORT: [_PROC_MOUNT, program | {"readOnly": True}],
    }.get(name, [_PROC_MOUNT])
    return {
        "name": name,
        "image": options.image,
        "imagePullPolicy": options.pull_policy,
        "command": ["/bin/bash", "-c"],
        "args": [line],
        "env": [
            {"name": PROC_FS, "value": "/host/proc"},
            {"name": NODE_NAME, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "securityContext": _security_context(name),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **({"volumeMounts": mounts} if mounts else {}),
    }


def _security_context(name: str) -> Mapping[str, Any]:
    """The least rights that each command needs. Reading the environment of other users' processes takes SYS_PTRACE."""
    if name == INSTALL:
        # profiles of SELinux and AppArmor deny containers access to the host, and its folder belongs to root
        return {"privileged": True, "runAsUser": 0}
    if name in {RECONCILE, "reconfigure"}:
        added = ["DAC_READ_SEARCH", "SYS_PTRACE", *(["SYS_NICE"] if name == "reconfigure" else [])]
        capabilities = {"drop": ["ALL"], "add": added}
        return {**_CLOSED, "runAsUser": 0, "capabilities": capabilities}
    user = {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 3000}
    return {**_CLOSED, **user, "capabilities": {"drop": ["ALL"]}}


def _pod(
    name: str, node: str, options: SetupOptions, parts: Mapping[str, Any], annotations: Mapping[str, str]
) -> Object:
    metadata = {"name": name, "namespace": options.namespace, "annotations": dict(annotations)}
    spec = _pod_spec(node, options, {"restartPolicy": "Never", **parts})
    return with_template_digest({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def _pod_spec(node: str, options: SetupOptions, parts: Mapping[str, Any]) -> dict[str, Any]:
    program = {"name": "cmk-install-dir", "hostPath": {"path": options.install_dir}}
    return {
        "nodeName": node,
        "serviceAccountName": options.service_account,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [_PROC, program],
        **({"imagePullSecrets": [{"name": options.pull_secret}]} if options.pull_secret else {}),
        **parts,
    }


def _digest_of_object(made: Object) -> str:
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16]


def with_template_digest(made: Object) -> Object:
    metadata = made["metadata"]
    annotations = {**metadata.get("annotations", {}), MADE_FROM: _digest_of_object(made)}
    return {**made, "metadata": {**metadata, "annotations": annotations}}


def has_same_template(existing: Object, wanted: Object) -> bool:
    """Whether an object was created from the same template and not changed since."""
    stamp = wanted["metadata"]["annotations"][MADE_FROM]
    same = (existing["metadata"].get("annotations") or {}).get(MADE_FROM) == stamp
    return same and all(
        matches_common_keys(existing.get(key), wanted[key])
        for key in wanted.keys() - {"metadata", "apiVersion"}
    )


def matches_common_keys(actual: object, wanted: object) -> bool:
    """Whether the values for common keys are equal: API servers add defaults, and drop unknown fields."""
    if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
        return all(matches_common_keys(actual[key], wanted[key]) for key in wanted if key in actual)
    if isinstance(wanted, list | tuple) and isinstance(actual, list):
        return all(any(matches_common_keys(item, other) for item in actual) for other in wanted)
    return actual == wanted


AGENT: Final = "cmk-agent"
"""The name of the DaemonSet, the label `app` of its pods, and their service account."""
MANIFEST: Final = "deploy/cpu-agent.yaml"
MANIFEST_NAMESPACE: Final = "cmk-namespace"

_FEATURES: Final = "/etc/kubernetes/node-feature-discovery/features.d"
_CONTAINER: Final = "agent"
_HEALTH_PORT: Final = 9002
_MANAGED: Final = "app.kubernetes.io/managed-by"  # the label that Helm sets
_PULLING: Final = ("image", "imagePullPolicy")


def agent_daemon_set(options: SetupOptions, features: ApiFeatures) -> Object:
    """The DaemonSet for all nodes with the label `LABEL`."""
    labels = {"app": AGENT}
    app_armor = {f"container.apparmor.security.beta.kubernetes.io/{_CONTAINER}": "unconfined"}
    annotations = {} if features.app_armor == "field" else {"annotations": app_armor}
    folders = {"socket": _AGENT, "features": _FEATURES}
    pod = {
        "serviceAccountName": AGENT,
        "enableServiceLinks": False,
        # older API servers allow pods of that class in kube-system only
        **({} if features.webhooks == "v1beta1" else {"priorityClassName": "system-node-critical"}),
        "nodeSelector": {LABEL: "true"},
        "tolerations": [{"operator": "Exists"}],
        "hostPID": True,
        "containers": [_agent_container(options, features, folders)],
        "volumes": [
            {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
            for name, path in folders.items()
        ],
        **({"imagePullSecrets": [{"name": options.pull_secret}]} if options.pull_secret else {}),
    }
    return {
        "apiVersion": features.daemon_sets,
        "kind": "DaemonSet",
        "metadata": {"name": AGENT, "namespace": options.namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": {"labels": labels, **annotations}, "spec": pod},
        },
    }


def _agent_container(options: SetupOptions, features: ApiFeatures, folders: Mapping[str, str]) -> Object:
    def probe(path: str, **more: int) -> Object:
        return {"httpGet": {"path": path, "port": "health"}, "periodSeconds": 10, **more}

    return {
        "name": _CONTAINER,
        "image": options.image,
        "imagePullPolicy": options.pull_policy,
        "command": ["nodewise", "cpu", "agent"],
        "args": [f"--namespace={options.namespace}", "--health-address=0.0.0.0"],
        "env": [
            {"name": NODE_NAME, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": PROC_FS, "value": "/proc"},
        ],
        "ports": [{"name": "health", "containerPort": _HEALTH_PORT}],
        "livenessProbe": probe("/healthz", failureThreshold=6),
        "readinessProbe": probe("/readyz"),
        "resources": {"requests": {"cpu": "20m", "memory": "80Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "runAsUser": 0,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["DAC_READ_SEARCH", "SYS_PTRACE", "SYS_NICE"]},
            # profiles of AppArmor and SELinux for containers hide the identity of host processes
            **({"appArmorProfile": {"type": "Unconfined"}} if features.app_armor == "field" else {}),
            "seLinuxOptions": {"type": "spc_t"},
            # the profile allows ptrace, process_vm_readv and kcmp with SYS_PTRACE, and sched_setaffinity always
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in folders.items()],
    }


def is_changed_by_users(daemon_set: Object, wanted: Object) -> bool:
    """Whether users changed the DaemonSet, for example with `--enforce=cgroup`: then it is left unchanged.

    A difference in the image and in how it is pulled does not count as a change.
    """
    about = daemon_set["metadata"]
    if MADE_FROM in (about.get("annotations") or {}):
        return False
    current_spec, other = (_without_image(made["spec"]) for made in (daemon_set, wanted))
    is_same = matches_common_keys(current_spec, other) and matches_common_keys(other, current_spec)
    return _MANAGED in (about.get("labels") or {}) or not is_same


def _without_image(spec: Mapping[str, Any]) -> Object:
    pod = spec["template"]["spec"]
    containers = [
        {key: value for key, value in container.items() if key not in _PULLING}
        for container in pod["containers"]
    ]
    return {"selector": spec["selector"], "pod": {**pod, "containers": containers, "imagePullSecrets": []}}


def find_current_daemon_set_pods(pods: Iterable[Object], daemon_set: Object, node: str) -> list[Object]:
    """The node's pods that were created from the current template of the DaemonSet."""
    template = daemon_set["spec"]["template"]["spec"]
    return [pod for pod in pods if _node_of_pod(pod) == node and matches_common_keys(pod["spec"], template)]


def _node_of_pod(pod: Object) -> str:
    """The node of a pod. Before the pod is scheduled, the DaemonSet controller's node affinity names it."""
    spec = pod["spec"]
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get(
        "nodeSelectorTerms"
    ) or ()
    names = [expression["values"][0] for term in terms for expression in term.get("matchFields") or ()]
    return str(names[0]) if names else ""


def kubectl_apply_command(namespace: str) -> str:
    """The command that creates the agent's account and rights."""
    if namespace == MANIFEST_NAMESPACE:
        return f"kubectl apply -f {MANIFEST}"
    return f"sed s/{MANIFEST_NAMESPACE}/{namespace}/g {MANIFEST} | kubectl apply -f -"
