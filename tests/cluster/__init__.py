"""Tests with real programs on loopback: a control plane, and programs that measure nodes and evict pods.

Modules with helpers:

    programs, go_builds               finds the programs, or builds them once; bin/ pins the versions
    packages, toolchain               Prometheus from Debian packages; a Go toolchain
    image_archive                     the container image of nodewise
    availability                      skips tests that this machine cannot run
    processes                         a child process: port, log, readiness, end
    certificates                      a certificate authority for a test
    purpose_certificates              certificates as `nodewise certs` creates them
    controlplane                      etcd and an API server, and schedulers on demand
    shared_control_plane, cleanup     one control plane for all files, and the removal of remaining objects
    access, api                       users with rights, and requests to the API server
    audit, rights                     the audit log of the API server; granted rights and used rights
    admission                         waits until admission policies and webhooks are enforced, or no longer are
    objects, namespace_sandboxes      nodes and pods; a namespace for a test, and waits for events in it
    label_watch                       all changes of node labels
    asgi_server_thread                serves an ASGI application from a thread of the test
    aggregated_api                    registers a server as an aggregated API
    custom_metrics, resource_metrics  metrics servers behind the aggregation layer
    monitoring, prometheus            node exporters with text files, and the Prometheus that scrapes them
    metrics_pipeline                  from there through prometheus-adapter to the API server's custom metrics
    virtual_machine                   starts a virtual machine from a few files
    monitored_machine                 one with a node exporter and a load that can be switched on
    metric_history, process_kills     expected responses while programs are killed
    descheduling                      one pass of the descheduler
    health_example                    the files of the health example, as objects
    extender_process                  nodewise with the shipped rights and mutual TLS
    gpu, cpu_node                     nodes and pods of the gpu agent; a node of the CPU manager
    kubelet_double                    sets the status of pods as kubelets do
    installation                      a cluster with the shipped manifests, and nodewise with their account
    healthy_cluster                   an installation in which doctor finds no problem
    misconfigurations, doctor_cases   misconfigurations of it, and the finding that doctor must report for each
    hostile_objects                   objects of other users that try to stop doctor
    read_only_commands                commands that only read a cluster, as a user with the rights for that
    extender_double                   a scheduler extender that accepts everything, or fails on demand
    load_balancer, replicas           a Service in front of replicas, and their readiness
    scheduler_calls, steady_load      continuous calls and pods, and their results
    list_memory                       a process that measures the memory for a list of nodes
    tls_resumption                    clients that resume TLS sessions
    schedulers, simulated_scheduler   the interface of schedulers under test: kube-scheduler and the simulated one
    demo                              `make demo CLUSTER=1`
"""
