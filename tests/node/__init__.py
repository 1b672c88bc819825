"""Tests on a real node: a kubelet with containerd, registered at a control plane of the test.

Modules with helpers:

    temporary_cgroups                part of the machine's cgroups, version 1 or 2, for a test
    busybox_image                    a container image with one static program
    host_program_installation        the program that is installed on nodes
    containerd_runtime               containerd in namespaces of its own
    kubelet                          the kubelet beside it, and its Node
    loopback_forwarding              a network whose addresses forward connections, such as those of Services
    network_port_forwarding          a port of this machine that leads into that network
    host_with_kubelet                a control plane and a kubelet in that network, as on a real machine
    static_pod_scheduler             kube-scheduler as a static pod
    preferred_nodes                  pods that prefer one of two nodes, and a policy that leaves them the other
    script_pods                      pods that run commands, and their state
    cpu_manager_on_real_node         the CPU manager on such a node: program, agent, pods that request cores
    virtual_cpu_machine              an emulated machine with many cores and cgroups of version 2
    migration_page_reader            how-to pages of migrations, followed on a host
    learn_page_program_replacements  the programs that the learn pages call

Each runtime has namespaces of its own for processes, mounts and networks, which end with its first process, and
everything in them is written to memory: containers, mounts, sockets and addresses cannot outlive the runtime.
"""
