"""Whether kubelets may write the labels of native mode, which the admission plugin NodeRestriction prevents.

The API server does not report its admission plugins, so the write is tried as a kubelet would make it, as a dry run.
Without the right to impersonate a node, the flags of kube-apiserver's static pods tell it.
"""

import re
from typing import Any, Final

from nodewise.base.errors import NodewiseError, Refused, short
from nodewise.doctor.collectors.cluster_reader import parse_json, unavailable
from nodewise.doctor.collectors.collection_session import SYSTEM_NAMESPACE, Session
from nodewise.doctor.collectors.nodes import collect_nodes
from nodewise.doctor.collectors.nodewise_workloads import collect_controllers, collect_extenders
from nodewise.doctor.facts import NodeRestriction, UnavailableFact, native_mode_workloads
from nodewise.doctor.parsing import workloads
from nodewise.doctor.parsing.workloads import Container
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.resource_kinds import NODES, PODS
from nodewise.policies.node_labels import VERDICT_LABEL_PREFIX

_PLUGIN: Final = "NodeRestriction"
_API_SERVERS: Final = {"labelSelector": "component=kube-apiserver"}
"""The label of the static pods of kubeadm and the distributions that follow it."""
_LABEL: Final = f"{VERDICT_LABEL_PREFIX}doctor"
_NOT_AUTHORIZED: Final = re.compile(r"cannot impersonate|cannot patch resource")
"""RBAC or the node authorizer refuses, before any admission plugin examines the labels."""


async def collect_node_restriction(session: Session) -> NodeRestriction | UnavailableFact:
    """Tried only if nodewise runs in native mode, or nodes have its labels."""
    nodes = (await session.require(collect_nodes)).nodes
    extenders, controllers = await session.get(collect_extenders), await session.get(collect_controllers)
    listed = [part for part in (extenders, controllers) if not isinstance(part, UnavailableFact)]
    labelled = [node.metadata.name for node in nodes if node.has_verdicts]
    if not nodes or not (labelled or native_mode_workloads(*listed)):
        return NodeRestriction(True, "native mode is not used")
    tried = await _try_write_as_node(session, (labelled or [nodes[0].metadata.name])[0])
    if not isinstance(tried, UnavailableFact):
        return tried
    return await _restriction_by_flags(session) or tried


async def _try_write_as_node(session: Session, node: str) -> NodeRestriction | UnavailableFact:
    """The result of a dry run, which the API server does not store."""
    what, user = f"the rights of the kubelet of Node/{node}", f"system:node:{node}"
    right = f"impersonate users {user} and groups system:nodes"
    connect_as_node = session.target.connect_as_node
    if connect_as_node is None:
        return UnavailableFact(what, "the kubeconfig impersonates a user", is_minor=True)
    api = connect_as_node(user)
    body = {"metadata": {"labels": {_LABEL: "ok"}}}
    try:
        await api.patch(NODES.path(name=node), body, "merge", {"dryRun": "All"})
    except NotFound:
        return UnavailableFact(what, "the node no longer exists", is_minor=True)
    except Refused as error:
        if _NOT_AUTHORIZED.search(str(error)):
            return UnavailableFact(what, "forbidden", right, is_minor=True)
        return NodeRestriction(True, short(str(error)))
    except NodewiseError as error:
        return unavailable(what, right, error)._replace(is_minor=True)
    finally:
        await api.close()
    return NodeRestriction(False, f"a dry run as {user} may write the label {VERDICT_LABEL_PREFIX}…")


async def _restriction_by_flags(session: Session) -> NodeRestriction | None:
    """What the flags of kube-apiserver's static pods say; None without any that are visible."""
    pods = await session.reader.get_list(PODS, parse_json, namespace=SYSTEM_NAMESPACE, selectors=_API_SERVERS)
    servers = [] if isinstance(pods, UnavailableFact) else [*filter(None, map(_api_server, pods))]
    if not servers:
        return None
    missing = [where for where, container in servers if not _enables_plugin(container)]
    if missing:
        return NodeRestriction(False, f"{missing[0]} does not enable the admission plugin {_PLUGIN}")
    return NodeRestriction(True, f"{servers[0][0]} enables the admission plugin {_PLUGIN}")


def _api_server(pod: Any) -> tuple[str, Container] | None:
    workload = workloads.parse("Pod", pod)
    container = next((item for item in workload.containers if workloads.runs(item, "kube-apiserver")), None)
    return None if container is None else (workload.where, container)


def _enables_plugin(container: Container) -> bool:
    """The lists of a repeated flag are joined, and one that enables wins over one that disables."""
    flags = workloads.flags(container)
    lists = [*flags.get("enable_admission_plugins", ()), *flags.get("admission_control", ())]
    return any(_PLUGIN in plugins.split(",") for plugins in lists)
