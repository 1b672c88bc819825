"""Runs nodewise's commands without the time that their imports take.

`run` is `subprocess.run` for a command line of nodewise. The process is a fork of one that has imported everything, and
has an environment, a working directory and standard streams of its own. At least one test of each command starts it
as its users do.
"""

import importlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

COMMANDS: Final = (
    "main",
    "annotate",
    "certs",
    "cpu.cluster_init",
    "cpu.init",
    "decide",
    "doctor",
    "extender",
)
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pytest", *(f"nodewise.cli.{name}" for name in COMMANDS)])


def run(
    arguments: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    constants: Mapping[str, object] | None = None,
    stdin: str = "",
    timeout_s: float = 120,
) -> "subprocess.CompletedProcess[str]":
    """Runs `nodewise` with these arguments. Raises TimeoutExpired, as subprocess does.

    `environment` is all of it. `constants` are other values of constants, by `module.NAME`, for waits of many seconds.
    """
    words = list(map(str, arguments))
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(stdin)
        environment = dict(os.environ if environment is None else environment)
        process = _FORKS.Process(target=_run, args=(words, environment, dict(constants or {}), streams))
        process.start()
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, timeout_s)
        code = process.exitcode
        process.close()
        out, err = (stream.read_text() for stream in streams[1:])
    return subprocess.CompletedProcess(["nodewise", *words], code, out, err)


def _run(
    words: Sequence[str],
    environment: Mapping[str, str],
    constants: Mapping[str, object],
    streams: Sequence[Path],
) -> None:
    """The forked process. It starts in the working directory of its parent."""
    from nodewise.cli import main

    os.environ.clear()
    os.environ.update(environment)
    for name, value in constants.items():
        module, _, attribute = name.rpartition(".")
        setattr(importlib.import_module(module), attribute, value)
    for number, stream in enumerate(streams):
        opened = os.open(stream, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.argv[:] = ["nodewise", *words]
    main.run()
