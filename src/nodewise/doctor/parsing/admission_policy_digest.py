"""Compares the admission policies of a cluster with those that nodewise ships, by their expressions."""

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from nodewise.doctor.parsing.objects import get_list, get_text

_RESOURCE: Final = "resource"
"""The name of the variable with the resource of kube-scheduler's managedResources, which users may change."""
_LENGTH: Final = 16
"""Hexadecimal digits of a digest."""


def expressions_digest(policy: Any) -> str:
    """A digest of what an admission policy does: its kind of parameter, failure policy and CEL expressions.

    Names, messages and excluded namespaces are left out, because each installation may have its own, and so is what the
    API server adds to an object.
    """
    resource = next(
        (
            get_text(variable, "expression").strip("'")
            for variable in get_list(policy, "spec", "variables")
            if get_text(variable, "name") == _RESOURCE
        ),
        "",
    )
    texts = [text.replace(resource, _RESOURCE) if resource else text for text in _texts(policy)]
    return hashlib.sha256(msgspec.json.encode(texts)).hexdigest()[:_LENGTH]


def _texts(policy: Any) -> Iterator[str]:
    yield get_text(policy, "spec", "paramKind", "kind")
    yield get_text(policy, "spec", "failurePolicy")
    for field in ("matchConditions", "variables", "validations"):
        for item in get_list(policy, "spec", field):
            yield " ".join((field, get_text(item, "name"), get_text(item, "expression")))
    for mutation in get_list(policy, "spec", "mutations"):
        yield get_text(mutation, "patchType")
        yield get_text(mutation, "jsonPatch", "expression")
