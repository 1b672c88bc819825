"""Tests with real programs on loopback: a control plane, and programs that measure nodes and evict pods.

Modules with helpers:

    programs, building             finds the programs, or builds them once; bin/ pins the versions
    packages, toolchain            Prometheus from Debian packages; a Go toolchain
    availability                   reports what could not be set up
    processes                      a child process: port, log, readiness, end
    certificates                   a CA of a test's own
    controlplane                   etcd and an API server, and schedulers on demand
    shared_control_plane, cleanup  one control plane for all files, and what a file leaves behind
    access, api                    users with rights, and requests to the API server
    audit, rights                  the API server's record of requests; rights granted and rights needed
    admission                      waits until admission policies and webhooks are enforced, or no longer are
    objects, sandboxes             nodes and pods; a namespace for a test, and waits for what happens in it
    loopback                       serves from a thread of the test
    custom_metrics                 a metrics server behind the real aggregation layer
    resource_metrics               the same in place of metrics-server
    monitoring, prometheus         node exporters with text files, and the Prometheus that scrapes them
    virtual_machine                starts a virtual machine from a few files
    measured_machine               one with a node exporter and a load that can be switched on
    pipeline, aggregation          from there through prometheus-adapter to the API server's custom metrics
    metric_history, faults         expected answers while programs are killed
    descheduling                   one pass of the descheduler
    health_example                 the files of the health example, as objects
    installation                   a cluster with the manifests that ship, and nodewise as the account they bind
    healthy_cluster                an installation in which doctor finds nothing
    defects, doctor_cases          misconfigurations of it, and the finding that doctor has to report for each
    hostile_objects                objects of other users that try to stop doctor
    read_only_commands             commands that only read a cluster, as a user with the rights for that
    extender_double                a scheduler extender that does nothing, or fails on demand
    balancer, replicas             a Service in front of replicas, and their readiness
    load, steady_load              endless calls and pods, and what became of each
    schedulers                     what a test expects of a scheduler: kube-scheduler, or
    simulated_scheduler            the one of `nodewise simulate`
"""
