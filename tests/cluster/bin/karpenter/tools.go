//go:build tools

// Command karpenter-crds is built beside Karpenter, which go.mod and go.sum pin with all it needs.
package main

import (
	_ "sigs.k8s.io/karpenter/kwok"
)
