"""Tests against real programs: etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback.

What one room of this folder is for:

    programs, toolchain      finding the programs, or building them once; bin/ pins what is built
    availability             saying what could not be set up
    processes                one child process: its port, its log, its readiness, its end
    certificates             a CA of a test's own
    controlplane             etcd and an API server, and schedulers on demand
    access, api              who may ask the API server, and asking it
    objects, sandbox         nodes and pods, and a test's own corner with the words for what it waits for
    loopback                 serving from a thread of the test
    custom_metrics           a metrics server behind the real aggregation layer
    extender_double          a scheduler extender that does nothing, or fails as told
    schedulers               what a scheduler is to a test, so that a stand-in can pass the same tests
"""
