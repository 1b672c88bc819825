"""Tests on a real node: a kubelet with containerd, registered at a control plane of the test.

Modules with helpers:

    cgroups               part of the machine's cgroups for a test, and its removal
    image                 a container image with one static program
    installed_program     the program that is installed on nodes
    runtime               containerd in namespaces of its own
    kubelet               the kubelet beside it, and its Node
    loopback_forwarding   the network of a runtime, with addresses that forward connections, such as those of Services
    port_forwarding       a port of this machine that leads into that network
    host_kubelet          a control plane and a kubelet in that network, as on a real machine
    static_scheduler      kube-scheduler as a static pod
    preferred_nodes       pods that prefer one of two nodes, and a policy that leaves them the other
    cpu_workloads         pods that run commands, and their state
    cpu_manager           the CPU manager on such a node: program, agent, pods that request cores
    virtual_cpu_machine   a virtual machine with many cores
    migration             how-to pages of migrations, followed on a host
    learn_environment     the programs that the learn pages call

Each runtime has namespaces of its own for processes, mounts and networks, which end with its first process, and
everything in them is written to memory: containers, mounts, sockets and addresses cannot outlive the runtime.
"""
