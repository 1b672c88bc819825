"""The processes that a command leaves behind."""

import subprocess
import sys

PROGRAM = """
import os, signal, time
from nodewise_cpu.workload import isolate

children = []
for seconds in (0, 600):
    children.append(os.fork())
    if not children[-1]:
        time.sleep(seconds)
        os._exit(0)
os.waitid(os.P_PID, children[0], os.WEXITED | os.WNOWAIT)
print(isolate.has_running_children())
os.kill(children[1], signal.SIGKILL)
os.waitid(os.P_PID, children[1], os.WEXITED | os.WNOWAIT)
print(isolate.has_running_children())
"""


def test_a_child_that_ends_hides_no_running_one() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
