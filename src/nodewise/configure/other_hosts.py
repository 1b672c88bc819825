"""The same run on the other hosts of the control plane: a script that says what it needs and what must come out."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.configure.host_files import digest

_SCRIPT_START: Final = """\
#!/bin/sh
# The same run on another host of the control plane, as root. One host after another: wait until kube-scheduler is back.
# It stops at the first thing that is not as here; before the run, nothing has been changed.
set -eu
"""
_SCRIPT_END: Final = """\
# The kubelet restarts kube-scheduler now. Wait until it is back before the next host:
#   kubectl --namespace kube-system get pods --selector component=kube-scheduler --output wide
# `kubeadm upgrade` writes the manifest anew: run this again afterwards.
"""


class OtherHostRun(NamedTuple):
    """What a run elsewhere is made of."""

    version: str
    """Of nodewise: another one may write another configuration."""
    words: Sequence[str]
    """Of the command, after `nodewise`."""
    needed: Mapping[str, bytes]
    """Files by their paths, before the run."""
    written: Mapping[str, bytes]
    """Files by their paths, after it; the manifest is none of them, which may differ from host to host."""
    manifest: str
    config_hash: str
    """Of what kube-scheduler reads, as the manifest's annotation has it."""


def render_script(run: OtherHostRun) -> str:
    """For a shell."""
    is_ours = f"{{ echo 'another version of nodewise: wanted {run.version}' >&2; exit 1; }}"
    pattern = shlex.quote(f" {run.version}$")
    lines = [
        f"nodewise --version | grep -q {pattern} || {is_ours}",
        "",
        "# These files have to be here as they are there; one of them is a private key.",
        *_checksum_lines(run.needed),
        "",
        shlex.join(["nodewise", *run.words]),
        "",
        "# What must have come out.",
        *_checksum_lines(run.written),
        shlex.join(["grep", "-q", run.config_hash, run.manifest]),
        "",
    ]
    return _SCRIPT_START + "\n".join(lines) + _SCRIPT_END


def run_document(run: OtherHostRun) -> dict[str, Any]:
    """The same for programs."""
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
