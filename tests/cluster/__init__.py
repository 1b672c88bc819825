"""Tests with real programs on loopback: a control plane, metrics programs, and a descheduler.

Helper modules:

    programs, go_builds, go_toolchain  finds the Go programs, or builds them once; bin/ pins the versions
    debian_packages                    metric back ends, containerd and qemu from Debian packages
    image_archive                      the container image of nodewise
    skip_conditions                    skips tests that this machine cannot run
    processes                          child processes: ports, logs, readiness, end
    certificates                       a certificate authority for tests
    single_purpose_certificates        certificates as `nodewise certs` creates them
    controlplane                       etcd and an API server, and schedulers on demand
    shared_control_plane               one control plane for all test files
    api_server_cleanup                 the removal of remaining objects after a test file
    api_user_kubeconfigs, api_client   users with rights, and requests to the API server
    audit_log_reader, rbac_rights      the audit log of the API server; granted rights and used rights
    admission_policy_waits             waits until admission policies and webhooks are enforced, or no longer are
    kubernetes_objects                 nodes and pods as plain objects
    namespace_sandboxes                a namespace for a test, and waits for changes in it
    device_objects                     classes, claims, slices and taint rules of DRA, and pods that claim devices
    example_driver                     DRA example drivers, one process for each node
    device_clusters                    generated clusters with devices of DRA drivers and of device plugins
    recording_extender                 records what nodewise answers, with no effect on kube-scheduler
    label_watch                        all changes of node labels
    asgi_server_thread                 serves an ASGI application from a thread of the test
    aggregated_api                     registers a server as an aggregated API
    fake_custom_metrics_server         a fake custom metrics API
    fake_metrics_server                a fake resource metrics API
    prometheus_process                 a Prometheus with its own data
    victoria_metrics_process           a VictoriaMetrics with its own data
    metric_back_ends                   the versions of Prometheus and VictoriaMetrics that tests run
    changing_exporter                  an exporter whose series a test changes between scrapes
    prometheus_and_exporters           node exporters with text files, and the Prometheus that scrapes them
    metrics_pipeline                   exporters, Prometheus and prometheus-adapter behind the API server
    virtual_machine                    starts a virtual machine from a few files
    monitored_machine                  a virtual machine with a node exporter and a load that can be switched on
    metric_history, process_kills      expected responses while programs are killed
    descheduler_run                    one pass of the descheduler
    health_example                     the files of the health example as objects
    extender_process                   nodewise with the shipped rights and mutual TLS
    gpu_cluster                        nodes and pods for the gpu agent
    gpu_agent_replicas                 replicas with the gpu agent behind a Service, and the history of pods
    cpu_node_commands                  a Node object and the CPU manager's commands for it
    kubelet_double                     sets the status of pods as kubelets do
    installation                       a cluster with the shipped manifests, and nodewise with their service account
    healthy_cluster                    an installation in which doctor finds no problem
    misconfigurations, doctor_cases    defects of that installation, and the finding that doctor must report for each
    hostile_objects                    objects of other users that attack doctor
    read_only_commands                 commands that only read a cluster, with read-only rights
    extender_double                    a fake extender that accepts everything, or fails on demand
    load_balancer                      a Service in front of replicas
    scheduler_calls, steady_load       continuous calls and pods, and their results
    list_memory                        a process that measures the memory for a list of nodes
    tls_resumption                     clients that resume TLS sessions
    schedulers, simulated_scheduler    kube-scheduler and the simulated scheduler behind a common interface
    demo                               `make demo CLUSTER=1`
"""
