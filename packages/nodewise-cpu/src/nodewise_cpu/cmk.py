"""The script `cmk`: the CPU manager's commands under CMK's name and with its flags.

`isolate` starts in workloads' containers, so it imports nothing but the standard library.
"""

import sys
from collections.abc import Sequence
from typing import NoReturn

from nodewise.base.errors import BadSettings


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line of `cmk`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["isolate"]:
        from nodewise_cpu.workload import isolate

        sys.exit(isolate.main(words[1:]))
    from nodewise.cli import main, terminal_output
    from nodewise_cpu import cli
    from nodewise_cpu.cli import cmk_flags

    try:
        translated = cmk_flags.translate_command_line(words)
    except BadSettings as error:
        sys.exit(main.print_error(error, terminal_output.USAGE))
    main.run(translated, cli.command, "cmk")


if __name__ == "__main__":
    run()
