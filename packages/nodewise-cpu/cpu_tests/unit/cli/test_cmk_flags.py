"""Command lines of CMK."""

from collections.abc import Iterator

import pytest
import structlog

from nodewise.base.errors import BadSettings
from nodewise.observe import logs
from nodewise_cpu.cli import cmk_flags


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    """Delayed log events do not leak into other tests."""
    yield
    logs._early.clear()
    structlog.reset_defaults()


CMK = {
    "an option as it is": (["init", "--num-shared-cores=2"], ["init", "--num-shared-cores=2"]),
    "its value beside it": (["init", "--num-shared-cores", "2"], ["init", "--num-shared-cores=2"]),
    "a value with a dash": (["init", "--excl-non-isolcpus", "-1"], ["init", "--excl-non-isolcpus=-1"]),
    "a value with an equals sign": (["webhook", "--conf-file=a=b"], ["webhook", "--conf-file=a=b"]),
    "the beginning of a name": (["init", "--num-ex=2", "--sh", "spread"],
                                ["init", "--num-exclusive-cores=2", "--shared-mode=spread"]),
    "a whole name that is the beginning of another": (["cluster-init", "--cmk-img=a", "--all"],
                                                      ["cluster-init", "--cmk-img=a", "--all-hosts"]),
    "before the subcommand": (["--num-ex", "2", "init", "--namespace=n"],
                              ["init", "--num-exclusive-cores=2", "--namespace=n"]),
    "what is dropped": (["init", "--socket-id=1"], ["init"]),
    "a directory where there is none": (["install", "--conf-dir", "/etc/cmk"], ["install"]),
    "a directory": (["reconcile", "--conf-dir=/x", "--pub"], ["reconcile", "--conf-dir=/x", "--publish"]),
    "an option of our own": (["init", "--sysfs", "/x"], ["init", "--sysfs", "/x"]),
    "help": (["reconcile", "--he"], ["reconcile", "--help"]),
    "help by one letter": (["-h"], ["-h"]),
    "the version": (["--version"], ["--version"]),
    "the version of a subcommand": (["reconcile", "--pub", "--vers"], ["--version"]),
    "behind two dashes": (["init", "--", "--version"], ["init", "--", "--version"]),
    "isolate": (["isolate", "--poo=x", "python", "--version"], ["isolate", "--poo=x", "python", "--version"]),
    "nothing": ([], []),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "ours"), CMK.values(), ids=CMK)
def test_command_lines_of_cmk(arguments: list[str], ours: list[str]) -> None:
    assert cmk_flags.translate_command_line(arguments) == ours


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["init", "--num=2"],
            "--num: the beginning of several options; expected one of --num-exclusive-cores, --num-shared-cores",
        ),
        (["init", "--num-shared"], "--num-shared-cores: no value"),
        (["reconcile", "--publish=no"], "--publish: the value 'no'; expected none"),
    ],
)
def test_command_lines_that_docopt_rejects(arguments: list[str], message: str) -> None:
    with pytest.raises(BadSettings) as caught:
        cmk_flags.translate_command_line(arguments)
    assert message in str(caught.value)


def test_ignored_option_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    cmk_flags.translate_command_line(["install", "--conf-dir=/etc/cmk"])
    logs.configure("warning")
    assert "option=--conf-dir" in capsys.readouterr().err
