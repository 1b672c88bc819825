"""Digests of the admission policies that nodewise ships for pods.

Made by `make chart`; do not edit.
"""

from collections.abc import Mapping
from typing import Final

SHIPPED_POLICIES: Final[Mapping[str, str]] = {
    "MutatingAdmissionPolicy/nodewise-native": "eaf0787d505a0029",
    "MutatingAdmissionPolicy/nodewise-native-cluster": "dbf66d3628b1a9c0",
    "MutatingAdmissionPolicy/nodewise-native-named": "76d684d06e9811d9",
    "ValidatingAdmissionPolicy/nodewise-native-named": "1ddd8273968e5b24",
    "MutatingAdmissionPolicy/nodewise-extender-pods": "d0480ee0a7396672",
    "MutatingAdmissionPolicy/nodewise-extender-pods-cluster": "c56b79f545a4176c",
}
