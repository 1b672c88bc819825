"""Tests against real programs on loopback: a control plane, and what measures nodes and evicts pods around it.

What one room of this folder is for:

    programs, building       finding the programs, or building them once; bin/ pins what is built
    packages, toolchain      Prometheus out of Debian's packages; a Go to build with
    availability             saying what could not be set up
    processes                one child process: its port, its log, its readiness, its end
    certificates             a CA of a test's own
    controlplane             etcd and an API server, and schedulers on demand
    access, api              who may ask the API server, and asking it
    audit, rights            who asked it for what, by its own record; rights granted and rights needed
    objects, sandbox         nodes and pods, and a test's own corner with the words for what it waits for
    loopback                 serving from a thread of the test
    custom_metrics           a metrics server behind the real aggregation layer
    resource_metrics         the same in metrics-server's place
    monitoring, prometheus   node exporters fed by text files, and the Prometheus that scrapes them
    machine                  a virtual machine with a node exporter and a load of its own
    pipeline, aggregation    from there through prometheus-adapter to the API server's custom metrics
    descheduling             one pass of the descheduler
    example                  the health example's files, as objects
    shipping                 a cluster with the manifests as they ship, and nodewise as the account they bind
    extender_double          a scheduler extender that does nothing, or fails as told
    balancer                 a Service in front of replicas, and their readiness
    load                     calls and pods that do not end, and what became of each
    schedulers               what a scheduler is to a test, so that a stand-in can pass the same tests
"""
