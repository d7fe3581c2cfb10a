package native_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/native"
	"code.wake.dev/wake/internal/agent/native/apitest"
	"code.wake.dev/wake/pkg/wire"
)

type addInput struct {
	A int `json:"a"`
	B int `json:"b"`
}

// serveTools is a server with an adder, a failure and a picture.
func serveTools() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	sdk.AddTool(s, &sdk.Tool{Name: "add", Description: "Adds.", Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true}},
		func(_ context.Context, _ *sdk.CallToolRequest, in addInput) (*sdk.CallToolResult, map[string]int, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprint(in.A + in.B)}}}, map[string]int{"sum": in.A + in.B}, nil
		})
	sdk.AddTool(s, &sdk.Tool{Name: "fail.now"}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, any, error) {
		return nil, nil, errors.New("it fails")
	})
	sdk.AddTool(s, &sdk.Tool{Name: "draw"}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.ImageContent{MIMEType: "image/png", Data: []byte("png")}}}, nil, nil
	})
	return s
}

// TestMCP has the model call tools of a server over both transports.
func TestMCP(t *testing.T) {
	handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return serveTools() }, nil)
	var mu sync.Mutex
	var keys []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		keys = append(keys, r.Header.Get("X-Key"))
		mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	defer server.Close()
	for _, test := range []struct {
		name   string
		server agent.MCPServer
	}{
		{"pipes", agent.MCPServer{Command: []string{os.Args[0]}, Env: map[string]string{"BE_AN_MCP_SERVER": "1"}}},
		{"http", agent.MCPServer{URL: server.URL, Headers: map[string]string{"X-Key": "secret"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t,
				apitest.Message(apitest.Call("t0", "mcp__math__add", `{"a":1,"b":2}`), apitest.Call("t1", "mcp__math__fail_now", `{}`), apitest.Call("t2", "mcp__math__draw", `{}`)),
				apitest.Message(apitest.Text("ok")))
			b.request.Options.MCPServers = map[string]agent.MCPServer{"math": test.server}
			p := &native.Provider{Environ: b.provider().Environ, Client: &http.Client{Transport: split{b.script, server.Client().Transport}}}
			b.play(p)
			if got := outcome(b.log); got != "ok" {
				t.Fatalf("outcome %q", got)
			}
			want := `"content":[{"content":"3","tool_use_id":"t0","type":"tool_result"},{"content":"it fails","is_error":true,"tool_use_id":"t1","type":"tool_result"},` +
				`{"content":[{"source":{"data":"cG5n","media_type":"image/png","type":"base64"},"type":"image"}],"tool_use_id":"t2","type":"tool_result"}]`
			if last := string(b.script.Requests()[1]); !strings.Contains(last, want) || !strings.Contains(last, `"name":"mcp__math__add"`) {
				t.Errorf("last request %s", last)
			}
			for _, e := range b.log {
				if p, ok := e.Payload.(*wire.ToolIntent); ok && p.Idempotent != (e.CallID == "t0") {
					t.Errorf("%s may be repeated: %t", p.ToolName, p.Idempotent)
				}
			}
		})
	}
	mu.Lock()
	defer mu.Unlock()
	if len(keys) == 0 || slices.ContainsFunc(keys, func(k string) bool { return k != "secret" }) {
		t.Errorf("keys %q", keys)
	}
}

// TestMCPRedirect keeps the headers of an MCP server to itself: where it redirects to is
// not told them.
func TestMCPRedirect(t *testing.T) {
	leaked := make(chan string, 16)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leaked <- r.Header.Get("X-Key")
		http.Error(w, "no", http.StatusNotFound)
	}))
	defer other.Close()
	server := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	b := newBench(t)
	b.request.Options.MCPServers = map[string]agent.MCPServer{"x": {URL: server.URL, Headers: map[string]string{"X-Key": "secret"}}}
	p := &native.Provider{Environ: b.provider().Environ, Client: &http.Client{Transport: split{b.script, server.Client().Transport}}}
	b.play(p)
	if got := outcome(b.log); !strings.HasPrefix(got, "start_failed: ") {
		t.Errorf("outcome %q", got)
	}
	if key := <-leaked; key != "" {
		t.Errorf("told %q", key)
	}
}

// TestMCPMissing fails the start where a server can't be reached.
func TestMCPMissing(t *testing.T) {
	for _, c := range []agent.MCPServer{{Command: []string{"/bin/false"}}, {Command: []string{"/no/such"}}, {}} {
		b := newBench(t)
		b.request.Options.MCPServers = map[string]agent.MCPServer{"x": c}
		if got := outcome(b.run()); !strings.HasPrefix(got, "start_failed: the agent didn't start: MCP server x: ") {
			t.Errorf("%v: outcome %q", c, got)
		}
	}
}

// split sends requests for the model to a script and the others elsewhere.
type split struct{ script, other http.RoundTripper }

func (s split) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Host, "anthropic.com") {
		return s.script.RoundTrip(r)
	}
	return s.other.RoundTrip(r)
}
