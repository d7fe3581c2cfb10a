package native

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/pkg/wire"
)

// mcpConnect bounds how long a server may take until its tools are known.
const mcpConnect = 30 * time.Second

// connectServers connects to the servers of the options and returns their tools, by name. The
// session disconnects when it ends.
func (s *session) connectServers(ctx context.Context, env []string) ([]*tool, error) {
	ctx, cancel := context.WithTimeout(ctx, mcpConnect)
	defer cancel()
	var tools []*tool
	taken := map[string]bool{}
	servers := s.request.Options.MCPServers
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		found, err := s.serverTools(ctx, name, servers[name], env)
		if err != nil {
			return nil, fmt.Errorf("MCP server %s: %w", name, err)
		}
		for _, t := range found {
			if taken[t.name] {
				s.log.Warn("tool left out: its name is taken", "tool", t.name)
				continue
			}
			tools, taken[t.name] = append(tools, t), true
		}
	}
	return tools, nil
}

func (s *session) serverTools(ctx context.Context, name string, c agent.MCPServer, env []string) ([]*tool, error) {
	transport, err := s.openTransport(c, env)
	if err != nil {
		return nil, err
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "wake", Version: "1"}, nil)
	conn, err := client.Connect(ctx, transport, nil)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	s.closers = append(s.closers, conn.Close)
	var tools []*tool
	for t, err := range conn.Tools(ctx, nil) {
		if err != nil {
			return nil, fmt.Errorf("list its tools: %w", err)
		}
		tools = append(tools, mcpTool(name, t, conn))
	}
	slices.SortFunc(tools, func(a, b *tool) int { return cmp.Compare(a.name, b.name) })
	return tools, nil
}

// openTransport starts a server that is a command.
func (s *session) openTransport(c agent.MCPServer, env []string) (sdk.Transport, error) {
	switch {
	case c.URL != "":
		client := *s.provider.Client
		if len(c.Headers) > 0 {
			own, err := url.Parse(c.URL)
			if err != nil {
				return nil, err
			}
			client.Transport = headers{cmp.Or(client.Transport, http.DefaultTransport), own.Host, c.Headers}
		}
		return &sdk.StreamableClientTransport{Endpoint: c.URL, HTTPClient: &client, DisableStandaloneSSE: true}, nil
	case len(c.Command) == 0:
		return nil, errors.New("it has no command and no url")
	}
	host := s.request.Host
	if host == nil {
		host = process.Direct{}
	}
	p, err := host.Start(process.Config{
		Argv: c.Command, Dir: s.request.Options.Cwd, Env: agent.CommandEnvironment(env, c.Env), KeepStderr: true,
	})
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, func() error { return errors.Join(p.End(time.Second), p.Close()) })
	return &sdk.IOTransport{Reader: &boundedLines{ReadCloser: p.Stdout, max: maxAnswer}, Writer: p.Stdin}, nil
}

// headers adds headers to requests to a host. They may hold secrets, which are not for
// hosts it redirects to.
type headers struct {
	next http.RoundTripper
	host string
	add  map[string]string
}

// RoundTrip implements [http.RoundTripper].
func (h headers) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != h.host {
		return h.next.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	for key, value := range h.add {
		r.Header.Set(key, value)
	}
	return h.next.RoundTrip(r)
}

// notInName are the characters that the model's API doesn't take in a tool's name.
var notInName = regexp.MustCompile(`[^a-zA-Z0-9_-]`)

// maxName is how long such a name may be.
const maxName = 128

// mcpTool makes a tool of one of a server. Whether it only reads is what its server says.
func mcpTool(server string, t *sdk.Tool, conn *sdk.ClientSession) *tool {
	name := notInName.ReplaceAllString("mcp__"+server+"__"+t.Name, "_")
	schema, err := wire.Marshal(t.InputSchema)
	if err != nil || schema.TextAt("type") != "object" {
		schema = wire.RawOf(map[string]any{"type": "object"})
	}
	return &tool{
		name: name[:min(len(name), maxName)], description: toValidUTF8(t.Description), schema: schema,
		reads: t.Annotations != nil && t.Annotations.ReadOnlyHint, timeout: toolTimeout,
		run: func(ctx context.Context, _ string, input wire.Raw) (result, error) {
			r, err := conn.CallTool(ctx, &sdk.CallToolParams{Name: t.Name, Arguments: jsonOf(input)})
			if err != nil {
				return result{}, err
			}
			return mcpResult(r), nil
		},
	}
}

// mcpResult is what a server answers: a text, or blocks if there is a picture.
func mcpResult(r *sdk.CallToolResult) result {
	var texts []string
	var blocks []wire.Raw
	pictures := false
	for _, c := range r.Content {
		switch c := c.(type) {
		case *sdk.TextContent:
			texts = append(texts, toValidUTF8(c.Text))
			blocks = append(blocks, textBlock(toValidUTF8(c.Text)))
		case *sdk.ImageContent:
			pictures = true
			blocks = append(blocks, wire.RawOf(map[string]any{"type": "image", "source": map[string]any{
				"type": "base64", "media_type": c.MIMEType, "data": base64.StdEncoding.EncodeToString(c.Data),
			}}))
		default:
			other, err := json.Marshal(c)
			if err != nil {
				other = []byte("[content that can't be shown]")
			}
			texts = append(texts, toValidUTF8(string(other)))
			blocks = append(blocks, textBlock(toValidUTF8(string(other))))
		}
	}
	out := textResult(strings.Join(texts, "\n"))
	if pictures {
		out.output = wire.RawOf(blocks)
	}
	out.failed = r.IsError
	if r.StructuredContent != nil {
		out.structured = wire.RawOf(r.StructuredContent)
	}
	return out
}

// disconnectAll ends what the session is connected to, the latest first.
func (s *session) disconnectAll() {
	for _, end := range slices.Backward(s.closers) {
		if err := end(); err != nil {
			s.log.Debug("MCP server not ended properly", "error", err)
		}
	}
}
