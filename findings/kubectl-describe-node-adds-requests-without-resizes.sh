#!/usr/bin/env bash
# In `kubectl describe node`, "Allocated resources" is not the sum of the pods that it lists while a pod is resized, and
# kube-scheduler counts the sum of the list.
#
# Expected by most readers: the total is what kube-scheduler counts, so a pod of 10Gi fits a node of 16Gi with 1Gi
# allocated. Seen with Kubernetes and kubectl v1.37.2: a pod whose request shrinks from 8Gi to 1Gi is listed with 8Gi
# and added as 1Gi until the kubelet has applied the change. The other way round, a request of 64Gi that the kubelet has
# refused as infeasible is listed with 8Gi, and the total is 400 %. Cause: the list reads the resources in the status of
# pods, as kube-scheduler does, and the total only those in the spec (`getPodsTotalRequestsAndLimits`,
# pkg/describe/describe.go). Use: add the list. Fails if the behavior changes.
set -euo pipefail
version=37.2
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
export GOPATH="$folder/go" GOFLAGS="-modcacherw -trimpath"
mkdir "$folder/program"
cd "$folder/program"
cat > main.go << 'END'
package main

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubectl/pkg/describe"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

func memory(quantity string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceMemory: resource.MustParse(quantity)}
}

// describeNode prints what kubectl and kube-scheduler count on a node of 16Gi, for a pod that is resized from 8Gi.
func describeNode(name, request string, conditions ...v1.PodCondition) {
	node := &v1.Node{ObjectMeta: meta.ObjectMeta{Name: "node"}, Status: v1.NodeStatus{Allocatable: memory("16Gi")}}
	pod := &v1.Pod{ObjectMeta: meta.ObjectMeta{Name: "database", Namespace: "default"}}
	pod.Spec = v1.PodSpec{NodeName: "node", Containers: []v1.Container{
		{Name: "main", Resources: v1.ResourceRequirements{Requests: memory(request)}}}}
	pod.Status = v1.PodStatus{Phase: v1.PodRunning, Conditions: conditions, ContainerStatuses: []v1.ContainerStatus{
		{Name: "main", AllocatedResources: memory("8Gi"), Resources: &v1.ResourceRequirements{Requests: memory("8Gi")}}}}
	describer := describe.NodeDescriber{Interface: fake.NewClientset(node, pod)}
	text, err := describer.Describe("", "node", describe.DescriberSettings{ChunkSize: 500})
	if err != nil {
		panic(err)
	}
	for _, line := range strings.Split(text, "\n") {
		switch fields := strings.Fields(line); {
		case len(fields) > 7 && fields[1] == "database":
			fmt.Println(name, "list:", strings.Join(fields[6:8], " "))
		case len(fields) > 2 && fields[0] == "memory" && strings.HasSuffix(fields[2], "%)"):
			fmt.Println(name, "total:", strings.Join(fields[1:3], " "))
		}
	}
	counted := resource.NewQuantity(framework.NewNodeInfo(pod).GetRequested().GetMemory(), resource.BinarySI)
	fmt.Println(name, "kube-scheduler:", counted)
}

func main() {
	describeNode("shrinking", "1Gi")
	describeNode("infeasible", "64Gi",
		v1.PodCondition{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: v1.PodReasonInfeasible})
}
END
go mod init example.org/describe > /dev/null 2>&1
echo "installing k8s.io/kubernetes v1.$version"
# The module names its libraries by folder; they are published as modules of the same release.
module=$(go mod download -json "k8s.io/kubernetes@v1.$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
go mod edit -require "k8s.io/kubernetes@v1.$version"
for library in $(sed -n 's|^\s*\(k8s.io/.*\) => ./staging/.*|\1|p' "$module"); do
  go mod edit -replace "$library=$library@v0.$version"
done
go mod tidy > install.log 2>&1 || { cat install.log; exit 1; }
go run . | tee seen.txt
[ "$(cat seen.txt)" = "shrinking list: 8Gi (50%)
shrinking total: 1Gi (6%)
shrinking kube-scheduler: 8Gi
infeasible list: 8Gi (50%)
infeasible total: 64Gi (400%)
infeasible kube-scheduler: 8Gi" ] || { echo "the behavior has changed"; exit 1; }
