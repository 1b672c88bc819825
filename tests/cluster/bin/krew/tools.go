//go:build tools

// Package bin names krew and its check of manifests, so that go.mod and go.sum pin them and all they need.
package bin

import (
	_ "sigs.k8s.io/krew/cmd/krew"
	_ "sigs.k8s.io/krew/cmd/validate-krew-manifest"
)
