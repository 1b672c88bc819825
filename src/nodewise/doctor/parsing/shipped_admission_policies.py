"""Digests of the admission policies that nodewise ships for pods.

Made by `make chart`; do not edit.
"""

from collections.abc import Mapping
from typing import Final

SHIPPED_POLICIES: Final[Mapping[str, str]] = {
    "MutatingAdmissionPolicy/nodewise-native": "a3c8feb912bdc553",
    "MutatingAdmissionPolicy/nodewise-native-cluster": "ce792e3ca26b786b",
    "MutatingAdmissionPolicy/nodewise-native-named": "2ef9827083c78b1e",
    "ValidatingAdmissionPolicy/nodewise-native-named": "5c9bc9f99d5803e6",
    "MutatingAdmissionPolicy/nodewise-extender-pods": "d0480ee0a7396672",
    "MutatingAdmissionPolicy/nodewise-extender-pods-cluster": "c56b79f545a4176c",
}
