#!/usr/bin/env bash
# A ResourceClaim with `allocationMode: All` takes 32 devices of a ResourceQuota, even when it is allocated and has one.
#
# Expected by most readers: a quota such as `gpu.deviceclass.resource.k8s.io/devices: 16` counts the devices that claims
# have, or at least corrects its estimate when the claim is allocated. Seen with Kubernetes v1.37.2: with this quota no
# claim for all GPUs of a node can be created, however few it has. A claim with `adminAccess`, which takes no device
# from others, counts the same, so each pod of a DaemonSet for monitoring takes 32. A request with
# `firstAvailable` gets one of its alternatives and takes all of them if their classes differ. Cause: a claim is charged
# at its worst case, from its spec alone (`Usage`, pkg/quota/v1/evaluator/core/resource_claims.go); no claim can have
# more than 32 devices. Use: a class of its own without a quota for such claims, or `count`. Fails if the behavior
# changes.
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

	resource "k8s.io/api/resource/v1"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
)

const (
	exact = resource.DeviceAllocationModeExactCount
	all   = resource.DeviceAllocationModeAll
)

// charge prints what an allocated claim with one device takes of the quotas for the classes gpu and partition.
func charge(name string, request resource.DeviceRequest) {
	request.Name = "request"
	claim := &resource.ResourceClaim{}
	claim.Spec.Devices.Requests = []resource.DeviceRequest{request}
	devices := []resource.DeviceRequestAllocationResult{
		{Request: "request", Driver: "example.org", Pool: "node", Device: "gpu-0"}}
	claim.Status.Allocation = &resource.AllocationResult{Devices: resource.DeviceAllocationResult{Results: devices}}
	usage, err := core.NewResourceClaimEvaluator(nil, nil, nil, nil).Usage(claim)
	if err != nil {
		panic(err)
	}
	gpus, partitions := usage[core.V1ResourceByDeviceClass("gpu")], usage[core.V1ResourceByDeviceClass("partition")]
	fmt.Printf("%s: gpu %d, partition %d\n", name, gpus.Value(), partitions.Value())
}

func main() {
	yes := true
	charge("count", resource.DeviceRequest{Exactly: &resource.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: exact, Count: 1}})
	charge("all", resource.DeviceRequest{Exactly: &resource.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: all}})
	charge("admin", resource.DeviceRequest{Exactly: &resource.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: all, AdminAccess: &yes}})
	charge("list", resource.DeviceRequest{FirstAvailable: []resource.DeviceSubRequest{
		{Name: "whole", DeviceClassName: "gpu", AllocationMode: exact, Count: 1},
		{Name: "parts", DeviceClassName: "partition", AllocationMode: exact, Count: 4},
	}})
}
END
go mod init example.org/quota > /dev/null 2>&1
echo "installing k8s.io/kubernetes v1.$version"
# The module names its libraries by folder; they are published as modules of the same release.
module=$(go mod download -json "k8s.io/kubernetes@v1.$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
go mod edit -require "k8s.io/kubernetes@v1.$version"
for library in $(sed -n 's|^\s*\(k8s.io/.*\) => ./staging/.*|\1|p' "$module"); do
  go mod edit -replace "$library=$library@v0.$version"
done
go mod tidy > install.log 2>&1 || { cat install.log; exit 1; }
go run . | tee seen.txt
[ "$(cat seen.txt)" = "count: gpu 1, partition 0
all: gpu 32, partition 0
admin: gpu 32, partition 0
list: gpu 1, partition 4" ] || { echo "the behavior has changed"; exit 1; }
