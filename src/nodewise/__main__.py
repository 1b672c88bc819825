"""`python -m nodewise` is the same program as `nodewise`."""

from nodewise.cli.main import run

run()
