// Asks a server, one request in flight, as kube-scheduler asks an extender: Go's net/http, mutual TLS, keep-alive.
// With --method and --interval it writes an object of an API server at a low rate.
// A request's time is from the call of Do to the last byte of the answer. Its JSON is not decoded, and the body not
// encoded, within that time.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

type result struct {
	Client      string    `json:"client"`
	TLS         string    `json:"tls"`
	Connections int       `json:"connections"`
	AnswerBytes int       `json:"answer_bytes"`
	Micros      []float64 `json:"micros"`
}

type selector struct {
	client  *http.Client
	url     string
	method  string
	bodies  [][]byte
	asked   int
	answer  bytes.Buffer
	opened  int
	version uint16
}

func main() {
	url := flag.String("url", "", "where to send requests")
	ca := flag.String("ca", "", "CA of the server")
	cert := flag.String("cert", "", "client certificate")
	key := flag.String("key", "", "client key")
	bodies := flag.String("bodies", "", "folder of the requests' bodies, which take turns")
	save := flag.String("save", "", "write the last answer's body here")
	warmup := flag.Int("warmup", 0, "requests that are not measured")
	requests := flag.Int("requests", 1, "fewest requests")
	seconds := flag.Float64("seconds", 0, "shortest time")
	method := flag.String("method", http.MethodPost, "HTTP method")
	interval := flag.Duration("interval", 0, "time from the begin of one request to that of the next")
	flag.Parse()

	a := &selector{client: client(*ca, *cert, *key), url: *url, method: *method, bodies: read(*bodies)}
	for range *warmup {
		a.ask()
	}
	micros := make([]float64, 0, 1<<16)
	shortest := time.Duration(*seconds * float64(time.Second))
	for began := time.Now(); len(micros) < *requests || time.Since(began) < shortest; {
		took := a.ask()
		micros = append(micros, float64(took.Nanoseconds())/1000)
		time.Sleep(*interval - took)
	}
	if *save != "" {
		check(os.WriteFile(*save, a.answer.Bytes(), 0o644))
	}
	check(json.NewEncoder(os.Stdout).Encode(result{
		Client:      runtime.Version() + " net/http",
		TLS:         tls.VersionName(a.version),
		Connections: a.opened,
		AnswerBytes: a.answer.Len(),
		Micros:      micros,
	}))
}

func read(folder string) [][]byte {
	files, err := os.ReadDir(folder)
	check(err)
	var bodies [][]byte
	for _, file := range files {
		body, err := os.ReadFile(filepath.Join(folder, file.Name()))
		check(err)
		bodies = append(bodies, body)
	}
	return bodies
}

// client has the transport of kube-scheduler's extender calls (pkg/scheduler/extender.go, makeTransport).
func client(ca, cert, key string) *http.Client {
	pem, err := os.ReadFile(ca)
	check(err)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		check(fmt.Errorf("no certificate in %s", ca))
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	check(err)
	settings := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:     settings,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     90 * time.Second,
		ForceAttemptHTTP2:   true,
	}}
}

func (a *selector) ask() time.Duration {
	body := a.bodies[a.asked%len(a.bodies)]
	a.asked++
	request, err := http.NewRequest(a.method, a.url, bytes.NewReader(body))
	check(err)
	request.Header.Set("Content-Type", "application/json")
	request = request.WithContext(httptrace.WithClientTrace(request.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			if !info.Reused {
				a.opened++
			}
		},
	}))
	a.answer.Reset()
	began := time.Now()
	response, err := a.client.Do(request)
	check(err)
	_, err = io.Copy(&a.answer, response.Body)
	check(err)
	took := time.Since(began)
	check(response.Body.Close())
	if response.StatusCode != http.StatusOK {
		check(fmt.Errorf("%s: status %d: %.200s", a.url, response.StatusCode, a.answer.Bytes()))
	}
	a.version = response.TLS.Version
	return took
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
