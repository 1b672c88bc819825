//go:build tools

// Package bin names helm, so that go.mod and go.sum pin it and all it needs.
package bin

import _ "helm.sh/helm/v3/cmd/helm"
