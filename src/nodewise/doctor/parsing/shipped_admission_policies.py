"""Digests of the admission policies that nodewise ships for pods.

Made by `make chart`; do not edit.
"""

from collections.abc import Mapping
from typing import Final

SHIPPED_POLICIES: Final[Mapping[str, str]] = {
    "MutatingAdmissionPolicy/nodewise-native": "693779e13eb18677",
    "MutatingAdmissionPolicy/nodewise-native-cluster": "6c440e20bcca9461",
    "MutatingAdmissionPolicy/nodewise-native-named": "7577ef40a0cd5cf5",
    "MutatingAdmissionPolicy/nodewise-native-reset": "a1501198c9093d7f",
    "ValidatingAdmissionPolicy/nodewise-native-named-exists": "933579a1933d57ef",
    "ValidatingAdmissionPolicy/nodewise-native-named": "1ce240789972f458",
    "ValidatingAdmissionPolicy/nodewise-native-size": "4b129f91c383376e",
    "ValidatingAdmissionPolicy/nodewise-native-gate": "55c8fa4b80041393",
    "MutatingAdmissionPolicy/nodewise-extender-pods": "7de7e1fd71711133",
    "MutatingAdmissionPolicy/nodewise-extender-pods-cluster": "95ecd6cc338f48d2",
    "MutatingAdmissionPolicy/nodewise-extender-pods-claims": "a7c51aa8c0ca5455",
}
