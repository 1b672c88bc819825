"""The request bodies of cases. Nodes have unusual JSON, so that a test sees whether a response repeats their bytes."""

import json

from msgspec import UNSET

from tests.conformance.tas.case_table_rows import ExtenderRequestRow
from tests.conformance.tas.request_cases import TasCase

_NODE = """{ "metadata" : {"name": %s,  "labels": {"zone":"\\u0061", "a":"<&>"}, "uid": "u" },
  "spec": {"unknownField": 1.50e0}, "status":{"capacity":{"pods":"110","memory":"1048576Ki"}} }"""


def node(ask: ExtenderRequestRow, name: str) -> str:
    """The JSON of a node object in the request."""
    return ask.as_sent.get(name) or _NODE % json.dumps(name)


def body(case: TasCase) -> bytes:
    """The whole request body."""
    ask = case.row.ask
    if ask is None:
        return (case.row.call.body if case.row.call else "").encode()
    if ask.body is not None:
        return ask.body.encode()
    nodes, names = "null", "null"
    if ask.node_list:
        nodes = ask.node_list
    elif case.form == "whole":
        items = ",".join(node(ask, name) for name in ask.nodes)
        nodes = f'{{"metadata":{{"resourceVersion":"7"}},"items":[{items}]}}'
    else:
        names = json.dumps(ask.nodes)
    values = {"Pod": _pod(ask, case.tag), "Nodes": nodes, "NodeNames": names}
    written = {key.lower() if key in ask.lower_case else key: value for key, value in values.items()}
    parts = ",".join(f'"{key}":{value}' for key, value in written.items())
    return f"{{{parts}}}{ask.after}".encode()


def _pod(ask: ExtenderRequestRow, tag: str) -> str:
    if ask.pod is None:
        return "null"
    metadata: dict[str, object] = {"name": "p", "labels": {"telemetry-policy": ask.policy}}
    if ask.labels is not UNSET:
        metadata["labels"] = ask.labels
    if ask.namespace:
        metadata["namespace"] = tag if ask.namespace == "d" else ask.namespace
    return json.dumps({"metadata": metadata, "spec": {"containers": [{"name": "c"}]}})
