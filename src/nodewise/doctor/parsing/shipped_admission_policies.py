"""Digests of the admission policies that nodewise ships for pods.

Made by `make chart`; do not edit.
"""

from collections.abc import Mapping
from typing import Final

SHIPPED_POLICIES: Final[Mapping[str, str]] = {
    "MutatingAdmissionPolicy/nodewise-native": "43c8c0ec4b6bc5c4",
    "MutatingAdmissionPolicy/nodewise-native-cluster": "37cd09bbd7e01f9b",
    "MutatingAdmissionPolicy/nodewise-native-named": "9c11965c246c53ab",
    "MutatingAdmissionPolicy/nodewise-native-reset": "a50b62199d69d0f3",
    "ValidatingAdmissionPolicy/nodewise-native-named": "716535da226e9d06",
    "ValidatingAdmissionPolicy/nodewise-native-size": "4b129f91c383376e",
    "ValidatingAdmissionPolicy/nodewise-native-gate": "55c8fa4b80041393",
    "MutatingAdmissionPolicy/nodewise-extender-pods": "7de7e1fd71711133",
    "MutatingAdmissionPolicy/nodewise-extender-pods-cluster": "95ecd6cc338f48d2",
}
