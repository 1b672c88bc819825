//go:build tools

// Package bin names the DRA example driver, so that go.mod and go.sum pin it and all it needs.
package bin

import _ "sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin"
