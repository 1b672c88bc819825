#!/usr/bin/env bash
# The event FailedScheduling of a pod can keep the text of an earlier attempt although kube-scheduler reports another
# reason: the time and the count of the event are those of the newest attempt, its text is not.
#
# Expected by most readers: an event with another text is another event, so the newest line of `kubectl describe pod`
# has the reason of the newest attempt. Seen with k8s.io/client-go v0.37.2, whose recorder kube-scheduler uses: three
# attempts for a pod, the third with another reason, and its text is never sent. Cause: two events within 6 minutes are
# one series if type, reason, action, reporter and object agree, and the text (`note`) is not compared (`getKey`,
# tools/events/event_broadcaster.go). The object includes its resourceVersion, and kube-scheduler changes the pod after
# the event, by the condition PodScheduled, if the reason is new. So after an attempt that repeats a reason, the next
# one counts as its repetition whatever its reason is, until a further attempt, which may be minutes away.
# Use: the message of the condition PodScheduled. A controller with this recorder needs another `action` or `reason`
# for each text. Fails if the behavior changes.
set -euo pipefail
version=v0.37.2
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
export GOPATH="$folder/go" GOFLAGS="-modcacherw -trimpath"
mkdir "$folder/program"
cd "$folder/program"
cat > main.go << 'END'
package main

import (
	"context"
	"encoding/json"
	"fmt"

	core "k8s.io/api/core/v1"
	v1 "k8s.io/api/events/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
)

// sink gets the calls that go to kube-apiserver.
type sink chan string

func (s sink) Create(_ context.Context, event *v1.Event) (*v1.Event, error) {
	s <- fmt.Sprintf("creates an event: %s", event.Note)
	return event, nil
}

func (s sink) Patch(_ context.Context, event *v1.Event, patch []byte) (*v1.Event, error) {
	var fields map[string]map[string]any
	if err := json.Unmarshal(patch, &fields); err != nil {
		panic(err)
	}
	s <- fmt.Sprintf("patches an event: %d field, series.count %v", len(fields), fields["series"]["count"])
	return event, nil
}

func (s sink) Update(context.Context, *v1.Event) (*v1.Event, error) { panic("not called") }

func main() {
	calls := make(sink)
	broadcaster := events.NewBroadcaster(calls)
	if err := broadcaster.StartRecordingToSinkWithContext(context.Background()); err != nil {
		panic(err)
	}
	recorder := broadcaster.NewRecorder(scheme.Scheme, "default-scheduler")
	pod := &core.Pod{ObjectMeta: meta.ObjectMeta{Name: "pod", Namespace: "default", UID: "1", ResourceVersion: "10"}}
	condition := ""
	// attempt records a failure and writes the condition, in the order of kube-scheduler (handleSchedulingFailure).
	attempt := func(message, nextVersion string) {
		recorder.Eventf(pod, nil, core.EventTypeWarning, "FailedScheduling", "Scheduling", message)
		fmt.Printf("version %s, %s: the recorder %s\n", pod.ResourceVersion, message, <-calls)
		if condition != message {
			condition, pod.ResourceVersion = message, nextVersion
		}
	}
	attempt("Insufficient cpu", "11")
	attempt("Insufficient cpu", "12")
	attempt("untolerated taint", "13")
	attempt("untolerated taint", "14")
}
END
go mod init example.org/events > /dev/null 2>&1
for module in api apimachinery client-go; do go mod edit -require "k8s.io/$module@$version"; done
echo "installing k8s.io/client-go $version"
go mod tidy > install.log 2>&1 || { cat install.log; exit 1; }
go run . | tee seen.txt
[ "$(cat seen.txt)" = "version 10, Insufficient cpu: the recorder creates an event: Insufficient cpu
version 11, Insufficient cpu: the recorder creates an event: Insufficient cpu
version 11, untolerated taint: the recorder patches an event: 1 field, series.count 2
version 13, untolerated taint: the recorder creates an event: untolerated taint" ] ||
  { echo "the behavior has changed"; exit 1; }
