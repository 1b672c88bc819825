"""How fast nodewise is, on this machine: `python -m bench`, or `make bench`. Never part of the tests.

Real processes, mutual TLS 1.3, loopback. No control plane: the API server is a double in a process of its own.

    __main__     the steps, one after another
    results      results.json: its keys, their targets, the machine, the versions
    report       results.json in words: the table on stdout, README.md
    rounds       alternating rounds and what they come to
    stage        everything that runs, started and stopped
    fleet        the data: nodes, policies, pods, metric answers
    apiserver    a process: the API server's double
    nothing      a process: the same stack as the extender's, answering fixed bytes
    child        what these two processes have in common
    clients      asks a server, one request in flight, by one of:
    client/      a process: Go's net/http, which kube-scheduler uses
    caller       a process: Python's sockets, where there is no Go
"""
