"""Tests on a real node: a kubelet with containerd, registered at a control plane of the test.

What one room of this folder is for:

    cgroups     a corner of the machine's cgroups, and taking it away again
    image       a container image, made of one static program
    runtime     containerd in namespaces of its own
    kubelet     the kubelet beside it, and the Node that it speaks for
    network     what calls of a runtime's own network get to, Services among it
    host        a control plane and a kubelet in that network, as on a real machine
    control     kube-scheduler as its static pod
    placing     pods that prefer one of two nodes, and a policy that leaves them the other
    workloads   pods that run commands, and what becomes of them
    managed     the CPU manager on such a node: program, agent, pods that ask for cores

Namespaces of processes, mounts and networks are made for one runtime and end with its first process, and all that it
writes is in memory in there: containers, their mounts, sockets and addresses cannot outlive it.
"""
