#!/usr/bin/env bash
# An extended resource that an extender has kube-scheduler ignore (`ignoredByScheduler`) keeps a pod from every node
# once the pod also requests an extended resource of a DeviceClass.
#
# Expected by most readers: an ignored resource stays ignored, whoever provides the other resources of the pod. Seen
# with Kubernetes v1.37.2: a pod with the ignored resource is placed, and so is a pod with the resource of the class; a
# pod with both stays Pending with `cannot fit resource`, although the node has a free device. So naming
# `extendedResourceName` in a DeviceClass, to migrate pods from a device plugin to DRA without changes, stops those that
# an extender marks.
# Cause: only the plugin NodeResourcesFit is told which resources are ignored; DynamicResources wants each extended
# resource of such a pod from a DeviceClass or from the node's status (`filterExtendedResources`). Use: an entry of the
# extender without managedResources, and pods without the ignored resource. Fails if the behavior changes.
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
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
)

// An extender without verbs is never called; it only says which resource to ignore.
const configuration = `{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
	"extenders": [{"urlPrefix": "http://localhost:1", "managedResources": [
		{"name": "example.org/mark", "ignoredByScheduler": true}]}]}`

const gpu = "example.org/gpu"

// cluster has a node with four devices, which a DeviceClass offers as an extended resource.
func cluster() *fake.Clientset {
	node, resourceName := "node", gpu
	large := v1.ResourceList{v1.ResourceCPU: resource.MustParse("8"), v1.ResourceMemory: resource.MustParse("8Gi"),
		v1.ResourcePods: resource.MustParse("100")}
	spec := resourceapi.ResourceSliceSpec{Driver: "example.org", NodeName: &node,
		Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}}
	for number := range 4 {
		spec.Devices = append(spec.Devices, resourceapi.Device{Name: fmt.Sprintf("gpu-%d", number)})
	}
	return fake.NewClientset(
		&v1.Namespace{ObjectMeta: meta.ObjectMeta{Name: "default"}},
		&v1.Node{ObjectMeta: meta.ObjectMeta{Name: node}, Status: v1.NodeStatus{Capacity: large, Allocatable: large}},
		&resourceapi.DeviceClass{ObjectMeta: meta.ObjectMeta{Name: "gpus"},
			Spec: resourceapi.DeviceClassSpec{ExtendedResourceName: &resourceName}},
		&resourceapi.ResourceSlice{ObjectMeta: meta.ObjectMeta{Name: node}, Spec: spec})
}

// place creates a pod with one of each resource, and returns what kube-scheduler does with it.
func place(ctx context.Context, client *fake.Clientset, name string, resources ...v1.ResourceName) string {
	requests := v1.ResourceList{}
	for _, each := range resources {
		requests[each] = resource.MustParse("1")
	}
	container := v1.Container{Name: "main", Image: "image",
		Resources: v1.ResourceRequirements{Requests: requests, Limits: requests}}
	pod := &v1.Pod{ObjectMeta: meta.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec: v1.PodSpec{SchedulerName: "default-scheduler", Containers: []v1.Container{container}}}
	if _, err := client.CoreV1().Pods("default").Create(ctx, pod, meta.CreateOptions{}); err != nil {
		panic(err)
	}
	for range 300 {
		time.Sleep(100 * time.Millisecond)
		for _, action := range client.Actions() {
			if !action.Matches("create", "pods") || action.GetSubresource() != "binding" {
				continue
			}
			if action.(clienttesting.CreateAction).GetObject().(*v1.Binding).Name == name {
				return "placed"
			}
		}
		seen, err := client.CoreV1().Pods("default").Get(ctx, name, meta.GetOptions{})
		if err != nil {
			panic(err)
		}
		for _, condition := range seen.Status.Conditions {
			if condition.Type == v1.PodScheduled && condition.Status == v1.ConditionFalse {
				return condition.Message
			}
		}
	}
	return "neither placed nor rejected"
}

func main() {
	klog.LogToStderr(false)
	object, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(configuration), nil, nil)
	if err != nil {
		panic(err)
	}
	settings := object.(*config.KubeSchedulerConfiguration)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client := cluster()
	client.PrependReactor("create", "resourceclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		claim := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceClaim)
		claim.Name, claim.ResourceVersion = claim.GenerateName+"1", "1" // as the API server does
		return false, nil, nil
	})
	informers := scheduler.NewInformerFactory(client, 0, nil)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	recorder := func(name string) events.EventRecorderLogger { return broadcaster.NewRecorder(nil, name) }
	instance, err := scheduler.New(ctx, client, informers, nil, recorder,
		scheduler.WithProfiles(settings.Profiles...), scheduler.WithExtenders(settings.Extenders...))
	if err != nil {
		panic(err)
	}
	informers.Start(ctx.Done())
	informers.WaitForCacheSync(ctx.Done())
	go instance.Run(ctx)
	fmt.Println("ignored resource:", place(ctx, client, "ignored", "example.org/mark"))
	fmt.Println("resource of the class:", place(ctx, client, "class", gpu))
	fmt.Println("both:", place(ctx, client, "both", "example.org/mark", gpu))
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
[ "$(cat seen.txt)" = "ignored resource: placed
resource of the class: placed
both: 0/1 nodes are available: 1 cannot fit resource. preemption: 0/1 nodes are available: 1 Preemption is not helpful for\
 scheduling." ] || { echo "the behavior has changed"; exit 1; }
