// Prints the requests of pods as Kubernetes counts them: one pod in JSON per line of the input, and for each a line with
// the requests of the pod, and those with amounts for containers without requests.
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"
)

type answer struct {
	Requests v1.ResourceList `json:"requests"`
	Scored   v1.ResourceList `json:"scored"`
	Spec     v1.ResourceList `json:"spec"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		pod := &v1.Pod{}
		if err := json.Unmarshal(lines.Bytes(), pod); err != nil {
			log.Fatal(err)
		}
		// the feature gates that are on by default in 1.37
		options := helpers.PodResourcesOptions{
			UseStatusResources: true,
			InPlacePodLevelResourcesVerticalScalingEnabled: true,
		}
		defaults := options
		defaults.NonMissingContainerRequests = v1.ResourceList{
			v1.ResourceCPU:    resource.MustParse("100m"),
			v1.ResourceMemory: resource.MustParse("200Mi"),
		}
		result := answer{
			Requests: helpers.PodRequests(pod, options),
			Scored:   helpers.PodRequests(pod, defaults),
			Spec:     helpers.PodRequests(pod, helpers.PodResourcesOptions{}),
		}
		if err := out.Encode(result); err != nil {
			log.Fatal(err)
		}
	}
}
