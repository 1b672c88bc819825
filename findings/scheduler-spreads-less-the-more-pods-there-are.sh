#!/usr/bin/env bash
# A topology spread constraint with `whenUnsatisfiable: ScheduleAnyway` loses its effect as a workload grows: with the
# same difference of one pod, a node gets 0 of 200 points beside an empty one, and 198 if there are 100 pods.
#
# Expected by most readers: the preference depends on the skew, which is compared with `maxSkew`. Seen with Kubernetes
# v1.37.2: PodTopologySpread adds 200 points to the node with fewer pods in each case. The other node gets 200 points
# times about the ratio of the two numbers, so beside 100 pods it takes 200 pods to lose half of the points. Long before
# that, other plugins decide, such as those for images and free resources. `maxSkew` only adds to both numbers.
# Cause: `NormalizeScore` divides by the largest score (plugins/podtopologyspread/scoring.go). Use: `DoNotSchedule` with
# a maxSkew that you accept. Fails if the behavior changes.
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
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// The plugin for spreading with its default weight, and the plugins without which kube-scheduler does not start.
const configuration = `{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
	"profiles": [{"plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": [
		{"name": "PrioritySort"}, {"name": "DefaultBinder"}, {"name": "PodTopologySpread", "weight": 2}]}}}]}`

var labels = map[string]string{"app": "web"}

// score prints what PodTopologySpread adds to the scores of two nodes with these numbers of pods.
func score(numbers ...int) {
	var nodes []*v1.Node
	var pods []*v1.Pod
	for index, number := range numbers {
		name := fmt.Sprintf("node-%d", index)
		nodeLabels := map[string]string{v1.LabelHostname: name}
		nodes = append(nodes, &v1.Node{ObjectMeta: meta.ObjectMeta{Name: name, Labels: nodeLabels}})
		for replica := range number {
			metadata := meta.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, replica), Namespace: "default", Labels: labels}
			pods = append(pods, &v1.Pod{ObjectMeta: metadata, Spec: v1.PodSpec{NodeName: name}})
		}
	}
	object, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(configuration), nil, nil)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: "localhost"})
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	recorder := func(name string) events.EventRecorderLogger { return broadcaster.NewRecorder(nil, name) }
	snapshot := cache.NewSnapshot(pods, nodes)
	instance, err := scheduler.New(ctx, client, informers.NewSharedInformerFactory(client, 0), nil, recorder,
		scheduler.WithProfiles(object.(*config.KubeSchedulerConfiguration).Profiles...),
		scheduler.WithNodeInfoSnapshot(snapshot))
	if err != nil {
		panic(err)
	}
	profile := instance.Profiles["default-scheduler"]

	pod := &v1.Pod{ObjectMeta: meta.ObjectMeta{Name: "pod", Namespace: "default", Labels: labels}}
	pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: v1.LabelHostname,
		WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: &meta.LabelSelector{MatchLabels: labels}}}
	feasible, err := snapshot.NodeInfos().List()
	if err != nil {
		panic(err)
	}
	state := framework.NewCycleState()
	if status := profile.RunPreScorePlugins(ctx, state, pod, feasible); !status.IsSuccess() {
		panic(status.AsError())
	}
	scores, status := profile.RunScorePlugins(ctx, state, pod, feasible)
	if !status.IsSuccess() {
		panic(status.AsError())
	}
	points := map[string]int64{}
	for _, node := range scores {
		points[node.Name] = node.TotalScore
	}
	fmt.Printf("%d and %d pods: %d and %d points\n", numbers[0], numbers[1], points["node-0"], points["node-1"])
}

func main() {
	klog.LogToStderr(false)
	score(0, 1)
	score(1, 2)
	score(10, 11)
	score(100, 101)
	score(100, 200)
}
END
go mod init example.org/scheduler > /dev/null 2>&1
echo "installing k8s.io/kubernetes v1.$version"
# The module names its libraries by folder; they are published as modules of the same release.
module=$(go mod download -json "k8s.io/kubernetes@v1.$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
go mod edit -require "k8s.io/kubernetes@v1.$version"
for library in $(sed -n 's|^\s*\(k8s.io/.*\) => ./staging/.*|\1|p' "$module"); do
  go mod edit -replace "$library=$library@v0.$version"
done
go mod tidy > install.log 2>&1 || { cat install.log; exit 1; }
go run . | tee seen.txt
[ "$(cat seen.txt)" = "0 and 1 pods: 200 and 0 points
1 and 2 pods: 200 and 66 points
10 and 11 pods: 200 and 186 points
100 and 101 pods: 200 and 198 points
100 and 200 pods: 200 and 100 points" ] || { echo "the behavior has changed"; exit 1; }
