"""Digests of the admission policies that nodewise ships for pods.

Made by `make chart`; do not edit.
"""

from collections.abc import Mapping
from typing import Final

SHIPPED_POLICIES: Final[Mapping[str, str]] = {
    "MutatingAdmissionPolicy/nodewise-native": "2015e86db1becbe4",
    "MutatingAdmissionPolicy/nodewise-native-cluster": "bb7f118fe5f838b4",
    "MutatingAdmissionPolicy/nodewise-native-named": "2e59cd1f2a0bf29d",
    "MutatingAdmissionPolicy/nodewise-native-reset": "a1501198c9093d7f",
    "ValidatingAdmissionPolicy/nodewise-native-named-exists": "933579a1933d57ef",
    "ValidatingAdmissionPolicy/nodewise-native-named": "08a95d685c7d096f",
    "ValidatingAdmissionPolicy/nodewise-native-size": "4b129f91c383376e",
    "ValidatingAdmissionPolicy/nodewise-native-gate": "55c8fa4b80041393",
    "MutatingAdmissionPolicy/nodewise-extender-pods": "7de7e1fd71711133",
    "MutatingAdmissionPolicy/nodewise-extender-pods-cluster": "95ecd6cc338f48d2",
}
