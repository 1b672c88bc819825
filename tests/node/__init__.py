"""Tests on a real node: a kubelet with containerd, registered at a control plane of the test.

What one room of this folder is for:

    cgroups     a corner of the machine's cgroups, and taking it away again
    image       a container image, made of one static program
    runtime     containerd in namespaces of its own
    kubelet     the kubelet beside it, and the Node that it speaks for

Namespaces of processes, mounts and networks are made for one runtime and end with its first process, and all that it
writes is in memory in there: containers, their mounts, sockets and addresses cannot outlive it.
"""
