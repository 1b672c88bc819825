"""Common parts of the benchmark's server processes: their arguments, and the first line of output."""

import argparse
import json


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments for the files of the serving certificate."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("--cert", "--key"):
        parser.add_argument(name, required=True)
    return parser


def announce(*ports: int) -> None:
    """Print the URL for the parent process; several are separated by spaces."""
    print(json.dumps({"url": " ".join(f"https://127.0.0.1:{port}" for port in ports)}), flush=True)
