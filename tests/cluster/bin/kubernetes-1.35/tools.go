//go:build tools

// Package bin names the programs that the cluster tests run, so that go.mod and go.sum pin them and all they need.
// tests/cluster/program_cache.py builds each of them by its import path.
package bin

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
