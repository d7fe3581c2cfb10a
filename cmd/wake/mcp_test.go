package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"wake/internal/mcp"
	"wake/pkg/wire"
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
	go func() { ended <- a.listenMCP(ctx, server, "127.0.0.1:0", "secret") }()
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

// Who can be reached by others needs a token.
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
		token, err := o.token()
		if token != test.want || (err == nil) != test.ok {
			t.Errorf("%+v: %q, %v", test, token, err)
		}
	}
}
