// Command karpenter-crds prints the definitions of Karpenter's resources, and of those of its kwok provider, as a JSON
// list.
package main

import (
	"encoding/json"
	"log"
	"os"
	"slices"

	kwok "sigs.k8s.io/karpenter/kwok/apis"
	"sigs.k8s.io/karpenter/pkg/apis"
)

func main() {
	if err := json.NewEncoder(os.Stdout).Encode(slices.Concat(apis.CRDs, kwok.CRDs)); err != nil {
		log.Fatal(err)
	}
}
