//go:build tools

// Package bin names the descheduler, so that go.mod and go.sum pin it and all it needs.
package bin

import _ "sigs.k8s.io/descheduler/cmd/descheduler"
