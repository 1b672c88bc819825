// Serves the verbs filter and bind as GPU Aware Scheduling does, and performs its two writes per bind: a JSON patch of
// the pod's annotations, and the Binding. It decides nothing: filter passes all nodes, bind takes the node and names the
// GPU card0. It prints its URL when it serves.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

type operation struct {
	Value any    `json:"value"`
	Op    string `json:"op"`
	Path  string `json:"path"`
}

func main() {
	kubeconfig := flag.String("kubeConfig", "", "kubeconfig")
	cert := flag.String("cert", "", "certificate of the server")
	key := flag.String("key", "", "key of the server")
	ca := flag.String("cacert", "", "CA of the clients")
	port := flag.Int("port", 0, "port on loopback; 0 for a free one")
	qps := flag.Float64("qps", 5, "rate limit of requests to the API server")
	burst := flag.Int("burst", 10, "burst of requests to the API server")
	flag.Parse()

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	check(err)
	config.QPS, config.Burst = float32(*qps), *burst
	client, err := kubernetes.NewForConfig(config)
	check(err)

	mux := http.NewServeMux()
	mux.HandleFunc("/scheduler/filter", filter)
	mux.HandleFunc("/scheduler/bind", func(w http.ResponseWriter, r *http.Request) {
		var args extenderv1.ExtenderBindingArgs
		var result extenderv1.ExtenderBindingResult
		if err := json.NewDecoder(r.Body).Decode(&args); err != nil {
			result.Error = err.Error()
		} else if err := bind(r.Context(), client, args); err != nil {
			result.Error = err.Error()
		}
		answer(w, result, result.Error != "")
	})

	pem, err := os.ReadFile(*ca)
	check(err)
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(pem)
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	check(err)
	server := &http.Server{
		Handler:   mux,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert},
		// without HTTP/2, as the original
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	fmt.Printf("{\"url\": \"https://%s\"}\n", listener.Addr())
	check(server.ServeTLS(listener, *cert, *key))
}

func filter(w http.ResponseWriter, r *http.Request) {
	var args extenderv1.ExtenderArgs
	result := extenderv1.ExtenderFilterResult{FailedNodes: map[string]string{}}
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil {
		result.Error = err.Error()
	} else {
		result.NodeNames = args.NodeNames
	}
	answer(w, result, result.Error != "")
}

func bind(ctx context.Context, client kubernetes.Interface, args extenderv1.ExtenderBindingArgs) error {
	patch, err := json.Marshal([]operation{
		{map[string]string{}, "add", "/metadata/annotations"},
		{strconv.FormatInt(time.Now().UnixNano(), 10), "add", "/metadata/annotations/gas-ts"},
		{"card0", "add", "/metadata/annotations/gas-container-cards"},
	})
	if err != nil {
		return err
	}
	pods := client.CoreV1().Pods(args.PodNamespace)
	if _, err := pods.Patch(ctx, args.PodName, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	return pods.Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: args.PodName, UID: args.PodUID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: args.Node},
	}, metav1.CreateOptions{})
}

func answer(w http.ResponseWriter, result any, failed bool) {
	if failed {
		w.WriteHeader(http.StatusNotFound)
	}
	if err := json.NewEncoder(w).Encode(result); err != nil {
		log.Print(err)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
