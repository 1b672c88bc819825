"""Starts a command in a root file system repeatedly and measures the time from exec to its first output.

It runs as root in its own mount namespace (`unshare --mount`). Prints the durations in microseconds as JSON.
"""

import argparse
import json
import os
import struct
import subprocess
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("count", type=int)
    parser.add_argument("words", nargs="+")
    options = parser.parse_args()
    subprocess.run(["mount", "--rbind", "/proc", f"{options.root}/proc"], check=True)
    os.chroot(options.root)
    os.chdir("/")
    print(json.dumps([measure_start(options.words) for _ in range(options.count)]))


def measure_start(words: list[str]) -> float:
    """Start the command; return the microseconds until its first byte. RuntimeError if it fails."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(theirs, 1)
        os.write(1, struct.pack("q", time.monotonic_ns()))
        os.execve(words[0], words, {"PATH": "/bin"})
    os.close(theirs)
    (began,) = struct.unpack("q", os.read(ours, 8))
    first = os.read(ours, 1)
    took = time.monotonic_ns() - began
    while os.read(ours, 4096):
        pass
    os.close(ours)
    _, status = os.waitpid(child, 0)
    if status or not first:
        raise RuntimeError(f"{words} ended with {os.waitstatus_to_exitcode(status)}")
    return took / 1000


if __name__ == "__main__":
    main()
