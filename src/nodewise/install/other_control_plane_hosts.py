"""Repeats a run on the other control-plane hosts: a script that checks the required files and the results."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.install.file_transaction import digest

_SCRIPT_START: Final = """\
#!/bin/sh
# Repeats a run on another control-plane host, as root. One host after another: wait until kube-scheduler is back.
# Stops at the first difference to the host of the first run; before the run, nothing has been changed.
set -eu
"""
_SCRIPT_END: Final = """\
# The kubelet restarts kube-scheduler now. Wait until it is back before the next host:
#   kubectl --namespace kube-system get pods --selector component=kube-scheduler --output wide
# `kubeadm upgrade` rewrites the manifest: run this script again afterwards.
"""


class OtherHostRun(NamedTuple):
    """A run to repeat on other hosts."""

    version: str
    """The version of nodewise; another version may write another configuration."""
    words: Sequence[str]
    """The arguments of `nodewise`."""
    needed: Mapping[str, bytes]
    """Source files by path."""
    written: Mapping[str, bytes]
    """Written files by path, without the manifest, which may differ between hosts."""
    manifest: str
    config_hash: str
    """The digest of the files that kube-scheduler reads, as in the annotation of the manifest."""


def render_repeat_script(run: OtherHostRun) -> str:
    """The run as a shell script."""
    fail = f"{{ echo 'another version of nodewise: expected {run.version}' >&2; exit 1; }}"
    pattern = shlex.quote(f" {run.version}$")
    lines = [
        f"nodewise --version | grep -q {pattern} || {fail}",
        "",
        "# These files must be the same as on the first host. They may include a private key.",
        *_checksum_lines(run.needed),
        "",
        shlex.join(["nodewise", *run.words]),
        "",
        "# The written files must be the same as on the first host.",
        *_checksum_lines(run.written),
        shlex.join(["grep", "-q", run.config_hash, run.manifest]),
        "",
    ]
    return _SCRIPT_START + "\n".join(lines) + _SCRIPT_END


def encode_repeat_document(run: OtherHostRun) -> dict[str, Any]:
    """The run as a JSON document."""
    return {
        "version": run.version,
        "command": ["nodewise", *run.words],
        "needed": {path: digest(data) for path, data in run.needed.items()},
        "written": {path: digest(data) for path, data in run.written.items()},
        "manifest": {"path": run.manifest, "configHash": run.config_hash},
    }


def _checksum_lines(files: Mapping[str, bytes]) -> list[str]:
    if not files:
        return []
    lines = [f"{digest(data)}  {path}" for path, data in files.items()]
    return ["sha256sum --check --quiet <<'FILES'", *lines, "FILES"]
