"""What the bench's own server processes have in common: their arguments, and the first line that they print."""

import argparse
import json


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with the certificate files; more is added by who wants more."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("--cert", "--key", "--client-ca"):
        parser.add_argument(name, required=True)
    return parser


def announce(port: int) -> None:
    """Tell whoever started us where we are."""
    print(json.dumps({"url": f"https://127.0.0.1:{port}"}), flush=True)
