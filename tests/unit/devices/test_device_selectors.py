"""CEL selectors of devices, with the functions of Kubernetes."""

import sys

import pytest

from nodewise.base import quantity
from nodewise.devices import device_selectors
from nodewise.devices.device_selectors import device_matches
from nodewise.devices.resource_slices import Device, DeviceCapacity, SemanticVersion

DEVICE = Device(
    driver="gpu.example.com",
    pool="p",
    name="gpu-0",
    attributes={
        "gpu.example.com/model": "A100",
        "gpu.example.com/index": 3,
        "gpu.example.com/driverVersion": SemanticVersion("1.2.3"),
        "gpu.example.com/tags": ("a", "b"),
        "other.example.com/healthy": True,
    },
    capacity={"gpu.example.com/memory": DeviceCapacity(quantity.parse("80Gi"))},
)
OURS = 'device.attributes["gpu.example.com"]'
MEMORY = 'device.capacity["gpu.example.com"].memory'


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('device.driver == "gpu.example.com"', True),
        ("device.allowMultipleAllocations", False),
        (f'{OURS}.model == "A100" && {MEMORY}.compareTo(quantity("10Gi")) >= 0', True),
        (f'{MEMORY}.isGreaterThan(quantity("100Gi")) || {MEMORY}.isLessThan(quantity("1"))', False),
        (f'{MEMORY} == quantity("80Gi")', True),
        (f'{MEMORY}.sub(quantity("79Gi")).asInteger() == 1073741824', True),
        ('quantity("2").add(1).sub(quantity("500m")) == quantity("2500m")', True),
        ('quantity("1500m").isInteger() || quantity("-1").sign() != -1', False),
        ('quantity("1500m").asApproximateFloat() == 1.5', True),
        ('isQuantity("3Qi") || isSemver("1.2")', False),
        (f'{OURS}.driverVersion.isGreaterThan(semver("1.2.0"))', True),
        (f'{OURS}.driverVersion == semver("1.2.3+build")', True),
        (f"{OURS}.driverVersion.minor() == 2", True),
        ('semver("1.2.3-alpha.2").isLessThan(semver("1.2.3-alpha.10"))', True),
        ('semver("1.2.3-rc.1").isLessThan(semver("1.2.3"))', True),
        ('"unknown.example.com" in device.attributes', False),
        ('"other.example.com" in device.attributes', True),
        ('has(device.attributes["unknown.example.com"].x)', False),
        (f'{OURS}.?unknown.orValue("none") == "none"', True),
        ("device.attributes[device.driver].index > 2", True),
        ('device.attributes["other.example.com"].healthy', True),
        (f'{OURS}.tags.exists(tag, tag == "b")', True),
        (f'{OURS}.model.lowerAscii() == "a100"', True),
        (f'{OURS}.model.matches("^A[0-9]+$")', True),
        ('cel.bind(x, device.driver, x.startsWith("gpu"))', True),
        (f'{OURS}.index == "3"', False),
    ],
)
def test_expression_of_kubernetes_is_evaluated(expression: str, expected: bool) -> None:
    assert device_matches(expression, DEVICE) is expected


NESTED = f"[{','.join('1' for _ in range(60))}]"


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1 +",
        "device.driver",
        f"{OURS}.unknown == 1",
        f'{OURS}.model.compareTo(quantity("1")) == 0',
        'semver("1.2").major() == 1',
        'quantity("many") == quantity("1")',
        "[1, 2].unknownFunction() == 3",
        f'{" " * 11_000}device.driver == "gpu.example.com"',
        f"{NESTED}.all(a, {NESTED}.all(b, a + b == 2))",
        f'{NESTED}.all(a, device.driver != "") //{" " * 1_000}',
        f"[1].all//\n(a, [1].exists//\n(b, [1].exists_one//\n(c, a + b + c == 3))) //{' ' * 200}",
        'cel.bind(a, "aaaa", cel.bind(b, a + a + a, cel.bind(c, b + b + b, c != "")))',
        'optional.of("a").optMap(a, optional.of(a + a).optMap(b, [b, b].map(c, c + c)))',
        '"a".replace("a", "aa").replace("a", "aa").replace("a", "aa") != ""',
        'strings.quote(strings.quote(strings.quote("x"))) != ""',
        '"aa".split("").join("aa").split("").join("aa").split("").join("aa") != ""',
    ],
    ids=lambda expression: expression.strip()[:40] or "empty",
)
def test_expression_that_cannot_be_evaluated_is_unknown(expression: str) -> None:
    assert device_matches(expression, DEVICE) is None


def test_attribute_of_a_newer_type_makes_only_expressions_that_read_it_unknown() -> None:
    device = Device(driver="d", pool="p", name="n", attributes={"d/future": None, "d/model": "A"})
    assert device_matches('device.attributes["d"].model == "A"', device) is True
    assert device_matches('device.attributes["d"].future == 1', device) is None


@pytest.mark.parametrize(
    "expression",
    [
        'device.attributes["d"]["mod" + "el"] == "A"',
        '("mod" + "el") in device.attributes["d"]',
        'device.attributes["d"] == {"x": 1}.transformMap(k, v, "A")',
        'cel.bind(d, device, d.attributes["d"]["mod" + "el"] == "A")',
        'device . attributes [ "d" ] [ "mod" + "el" ] == "A"',
        "device.attributes['d']['mod' + 'el'] == 'A'",
    ],
)
def test_attribute_that_is_read_without_its_name_counts(expression: str) -> None:
    results = {
        device_matches(expression, Device(driver="d", pool="p", name="n", attributes=attributes))
        for attributes in ({"d/model": "A"}, {"d/other": "B"})
    }
    assert len(results) == 2 or results == {None}


def test_selectors_are_unknown_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    device_selectors._environment.cache_clear()
    assert device_matches('device.driver == "without-the-library"', DEVICE) is None


def test_devices_that_differ_in_an_attribute_of_the_expression_have_their_own_results() -> None:
    results = [
        device_matches(
            'device.attributes["d"].on == true',
            Device(driver="d", pool="p", name="n", attributes={"d/on": value, "d/uuid": str(value)}),
        )
        for value in (True, 1, False)
    ]
    assert results == [True, False, False]
