"""Tests on a real node: a kubelet with containerd, registered at a control plane of the test.

Modules with helpers:

    cgroups           a part of the machine's cgroups for a test, and its removal
    image             a container image, made of one static program
    runtime           containerd in namespaces of its own
    kubelet           the kubelet beside it, and its Node
    network           the network of a runtime, with addresses that forward connections, such as those of Services
    port_forwarding   a port of this machine that leads into that network
    host              a control plane and a kubelet in that network, as on a real machine
    static_scheduler  kube-scheduler as a static pod
    placement         pods that prefer one of two nodes, and a policy that leaves them the other
    workloads         pods that run commands, and their state
    cpu_manager       the CPU manager on such a node: program, agent, pods that request cores
    cores             a virtual machine with many cores
    migration         how-to pages for a migration, followed on a host
    learn_environment the programs that the learn pages call

Namespaces of processes, mounts and networks are made for one runtime and end with its first process, and all that it
writes is in memory in there: containers, their mounts, sockets and addresses cannot outlive it.
"""
