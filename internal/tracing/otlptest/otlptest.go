// Package otlptest is a collector of OpenTelemetry for tests: it takes spans by
// OTLP over HTTP and keeps them.
package otlptest

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Collector takes spans.
type Collector struct {
	URL string // for OTEL_EXPORTER_OTLP_ENDPOINT

	mu     sync.Mutex
	status int
	spans  []Span
	bodies [][]byte
	header http.Header
	asked  int
}

// Span is a span as it came.
type Span struct {
	Service    string // name of the resource
	Name, Kind string
	Trace, ID  string
	Parent     string
	Links      []string       // traces
	Attributes map[string]any // strings, integers and truth values
	Events     []string
	Failed     bool
}

// Start starts a collector, until the test ends.
func Start(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{status: http.StatusOK}
	server := httptest.NewServer(http.HandlerFunc(c.takeRequest))
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

// Answer makes the collector answer with a status from now on; with other than 200
// it takes nothing.
func (c *Collector) Answer(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = status
}

// Spans returns what has come.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Raw returns what has come, as it was sent.
func (c *Collector) Raw() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Concat(c.bodies...)
}

// Header returns the header of the last request.
func (c *Collector) Header() http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.header
}

// Requests returns how many there were.
func (c *Collector) Requests() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

func (c *Collector) takeRequest(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	var data tracepb.TracesData // in bytes the same as a request
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &data) != nil {
		http.Error(w, "not OTLP", http.StatusBadRequest)
		return
	}
	c.header = r.Header
	c.asked++
	w.WriteHeader(c.status)
	if c.status != http.StatusOK {
		return
	}
	c.bodies = append(c.bodies, body)
	for _, of := range data.GetResourceSpans() {
		service := ""
		for _, a := range of.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, toSpan(service, s))
			}
		}
	}
}

func toSpan(service string, s *tracepb.Span) Span {
	out := Span{
		Service: service, Name: s.GetName(), Kind: s.GetKind().String()[len("SPAN_KIND_"):],
		Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
		Attributes: map[string]any{}, Failed: s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR,
	}
	for _, l := range s.GetLinks() {
		out.Links = append(out.Links, hex.EncodeToString(l.GetTraceId()))
	}
	for _, e := range s.GetEvents() {
		out.Events = append(out.Events, e.GetName())
	}
	for _, a := range s.GetAttributes() {
		switch v := a.GetValue(); {
		case v.GetStringValue() != "":
			out.Attributes[a.GetKey()] = v.GetStringValue()
		case v.GetBoolValue():
			out.Attributes[a.GetKey()] = true
		default:
			out.Attributes[a.GetKey()] = v.GetIntValue()
		}
	}
	return out
}
