"""Digests of the admission policies that nodewise ships for pods.

Made by `make chart`; do not edit.
"""

from collections.abc import Mapping
from typing import Final

SHIPPED_POLICIES: Final[Mapping[str, str]] = {
    "MutatingAdmissionPolicy/nodewise-native": "2580027e68eea5fa",
    "MutatingAdmissionPolicy/nodewise-native-cluster": "94191a9820b01733",
    "MutatingAdmissionPolicy/nodewise-native-named": "f8574b9390709bea",
    "ValidatingAdmissionPolicy/nodewise-native-named": "1ddd8273968e5b24",
    "MutatingAdmissionPolicy/nodewise-extender-pods": "d0480ee0a7396672",
    "MutatingAdmissionPolicy/nodewise-extender-pods-cluster": "c56b79f545a4176c",
}
