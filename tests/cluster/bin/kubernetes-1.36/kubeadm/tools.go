//go:build tools

// Package bin names kubeadm, so that go.mod and go.sum pin it and all it needs.
package bin

import _ "k8s.io/kubernetes/cmd/kubeadm"
