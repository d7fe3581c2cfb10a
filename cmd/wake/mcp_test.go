package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/logtest"
	"code.wake.dev/wake/internal/mcp"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// bearing sends a token.
type bearing struct {
	token string
	base  *http.Transport
}

func (b bearing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.base.RoundTrip(r)
}

// Over HTTP tools are for those who send the token.
func TestListenMCP(t *testing.T) {
	out, said := io.Pipe()
	a := &app{errOut: said}
	server := mcp.NewServer("v1", mcp.Pipeline{Runs: func(context.Context, wire.RunsRequest) (wire.RunsResponse, error) {
		return wire.RunsResponse{Runs: []wire.RunInfo{{RunID: "run1"}}}, nil
	}})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- (hostVerbs{a}).listenMCP(ctx, server, "127.0.0.1:0", "secret") }()
	line := make([]byte, 200)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	url := regexp.MustCompile(`http://\S+`).FindString(string(line[:n]))
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	for token, want := range map[string]bool{"secret": true, "": false, "secre": false} {
		session, err := sdk.NewClient(&sdk.Implementation{Name: "t", Version: "1"}, nil).Connect(t.Context(), &sdk.StreamableClientTransport{
			Endpoint: url, HTTPClient: &http.Client{Transport: bearing{token, base}}, DisableStandaloneSSE: true,
		}, nil)
		if (err == nil) != want {
			t.Errorf("token %q: %v", token, err)
		}
		if err != nil {
			continue
		}
		r, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "runs", Arguments: map[string]any{}})
		if err != nil || r.IsError {
			t.Errorf("runs: %+v, %v", r, err)
		}
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A server that others can reach needs a token.
func TestMCPToken(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"token": " secret\n", "empty": "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		listen, file string
		want         string
		ok           bool
	}{
		{"", "", "", true},
		{"127.0.0.1:0", "", "", true},
		{"[::1]:0", "", "", true},
		{"localhost:0", "", "", true},
		{":0", "", "", false},
		{"0.0.0.0:0", "", "", false},
		{"example.org:80", "", "", false},
		{"127.0.0.1", "", "", false},
		{"0.0.0.0:0", "token", "secret", true},
		{"0.0.0.0:0", "empty", "", false},
	} {
		o := mcpOptions{listen: test.listen}
		if test.file != "" {
			o.tokenFile = filepath.Join(dir, test.file)
		}
		token, err := o.readToken()
		if token != test.want || (err == nil) != test.ok {
			t.Errorf("%+v: %q, %v", test, token, err)
		}
	}
}

// A supervising agent that asks for alerts gets the last ones, or those behind a
// position, and waits for one if there is none.
func TestMCPAlerts(t *testing.T) {
	nc := natstest.Start(t)
	if _, err := initTopology(t.Context(), nc, topology.Config{Names: subjects.Default}); err != nil {
		t.Fatal(err)
	}
	log, err := eventlog.Open(t.Context(), nc, eventlog.Options{Names: subjects.Default, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	raise := func(n int) {
		data, err := wire.Marshal(wire.Alert{V: wire.Version, RunID: "run1", ParentRun: fmt.Sprint("parent", n%2), Text: fmt.Sprint(n)})
		if err != nil {
			t.Error(err)
		}
		if _, err := log.JetStream().Publish(t.Context(), subjects.Default.Alert("run1", "n", "k", fmt.Sprint(n)), data); err != nil {
			t.Error(err)
		}
	}
	const many = 100
	for n := range many {
		raise(n)
	}
	logtest.Serve(t, log)
	reader, err := feed.Open(t.Context(), nc, feed.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &verbSession{app: &app{names: subjects.Default}, conn: nc}
	for _, test := range []struct {
		q    mcp.AlertsQuery
		want []string
		last uint64
	}{
		{mcp.AlertsQuery{Limit: 2}, []string{"98", "99"}, many},
		{mcp.AlertsQuery{Limit: 2, Run: "run1", Parent: "parent0"}, []string{"96", "98"}, many},
		{mcp.AlertsQuery{Limit: 2, Run: "other"}, nil, 0},
		{mcp.AlertsQuery{Limit: 2, After: new(uint64)}, []string{"0", "1"}, 2},
		{mcp.AlertsQuery{Limit: 2, After: new(uint64(50))}, []string{"50", "51"}, 52},
		{mcp.AlertsQuery{Limit: 2, After: new(uint64(50)), Parent: "parent1"}, []string{"51", "53"}, 54},
		{mcp.AlertsQuery{Limit: 2, After: new(uint64(many))}, nil, many},
		{mcp.AlertsQuery{Limit: 2, After: new(uint64(many)), Wait: 1}, nil, many},
	} {
		found, last, err := s.readAlerts(t.Context(), reader, test.q)
		var texts []string
		for _, a := range found {
			texts = append(texts, a.Text)
		}
		if err != nil || last != test.last || !slices.Equal(texts, test.want) {
			t.Errorf("%+v: %q up to %d, %v", test.q, texts, last, err)
		}
	}
	come := make(chan error, 1)
	go func() {
		found, last, err := s.readAlerts(t.Context(), reader, mcp.AlertsQuery{Limit: 2, After: new(uint64(many)), Wait: 60})
		if err == nil && (len(found) != 1 || last != many+1) {
			err = fmt.Errorf("%d alerts up to %d", len(found), last)
		}
		come <- err
	}()
	raise(many)
	if err := <-come; err != nil {
		t.Error(err)
	}
}
