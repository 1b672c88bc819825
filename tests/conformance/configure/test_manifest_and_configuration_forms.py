"""The forms of manifests and configurations that installers and users write: each is configured, or refused with the
next step.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance.configure.control_plane_hosts import ControlPlaneHost
from tests.conformance.configure.scheduler_configuration_forms import (
    CONFIGURATION_FORMS,
    contains,
    host_with_configuration,
)

MANIFEST_FORMS: list[dict[str, Any]] = yaml.load(
    Path(__file__).with_name("manifest_forms.yaml").read_text(), yaml.CSafeLoader
)


def run_form(host: ControlPlaneHost, form: dict[str, Any], *flags: str) -> bool:
    """Whether the host is configured; otherwise the run was refused as the form says, and changed nothing."""
    before = host.snapshot()
    ran = host.run(*flags, *form.get("flags", []))
    assert ran.code == (1 if "refused" in form else 0), ran.err
    if "refused" in form:
        assert host.snapshot() == before
        assert [text for text in form["refused"] if text not in ran.err] == []
    return ran.code == 0


@pytest.mark.parametrize("form", MANIFEST_FORMS, ids=[form["name"] for form in MANIFEST_FORMS])
def test_manifest_is_configured_or_refused_with_the_next_step(tmp_path: Path, form: dict[str, Any]) -> None:
    host = ControlPlaneHost(tmp_path / "host")
    host.template.unlink()
    host.write(form["manifest"].replace("IMAGE", form.get("image", "")))
    if not run_form(host, form):
        return
    container = next(
        container
        for container in host.pod["spec"]["containers"]
        if f"--config={host.config}" in [*container.get("command", []), *container.get("args", [])]
    )
    assert {*form.get("kept", [])} <= {*container.get("command", []), *container.get("args", [])}
    assert contains(host.configuration, form.get("fields", {}))
    second = host.snapshot()
    assert host.run(*form.get("flags", [])).code == 0
    assert host.snapshot() == second


@pytest.mark.parametrize("form", CONFIGURATION_FORMS, ids=[form["name"] for form in CONFIGURATION_FORMS])
def test_configuration_is_merged_or_refused_with_the_next_step(tmp_path: Path, form: dict[str, Any]) -> None:
    host = host_with_configuration(tmp_path, form)
    if not run_form(host, form, "--merge"):
        return
    own = yaml.load(form["text"], yaml.CSafeLoader)
    written = host.configuration
    assert {**written, "extenders": None} == {**own, "extenders": None}
    urls = [entry["urlPrefix"] for entry in own.get("extenders") or []]
    assert [entry["urlPrefix"] for entry in written["extenders"]] == list(
        dict.fromkeys([*urls, "https://nodewise.nodewise.svc:9001/scheduler"])
    )


def test_configuration_without_a_kubeconfig_is_merged_with_a_warning(tmp_path: Path) -> None:
    """kube-scheduler ignores `--kubeconfig` beside `--config`."""
    warned = host_with_configuration(tmp_path / "a", {"text": CONFIGURATION_FORMS[1]["text"]}).run("--merge")
    assert "--kubeconfig=/etc/kubernetes/scheduler.conf has no effect beside --config" in warned.err
    silent = host_with_configuration(tmp_path / "b", {"text": CONFIGURATION_FORMS[0]["text"]}).run("--merge")
    assert "--kubeconfig" not in silent.err
