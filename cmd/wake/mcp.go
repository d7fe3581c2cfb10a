package main

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/agent/parent"
	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/mcp"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/wire"
)

type mcpOptions struct {
	listen    string
	tokenFile string
}

func (a hostVerbs) mcpCommand() *cobra.Command {
	var o mcpOptions
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Offer runs to a supervising agent as an MCP server",
		Long: `Offer runs to a supervising agent as a server of the Model Context Protocol: tools
to list runs and what waits for a person, look at their status, state, log and
alerts, search and compare, to start, pause, resume, abort and fork them, and to
send, steer, reply, approve and deny. Runs and their logs are resources, too.

    claude mcp add wake -- wake mcp

It speaks on stdin and stdout, or with --listen as streamable HTTP on /mcp. Other
addresses than loopback need a token, which clients send as a bearer.`,
		Annotations:       map[string]string{annotationServer: "mcp"},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return a.serveMCP(cmd.Context(), o) },
	}
	cmd.AddCommand(&cobra.Command{
		Use: "parent", Hidden: true, Short: "Serve an agent's notify_parent; runners have agents start it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.serveStdio(cmd.Context(), parent.NewServer())
		},
	})
	cmd.Flags().StringVar(&o.listen, "listen", "", "`address` for HTTP, such as 127.0.0.1:7800 (default: stdin and stdout)")
	cmd.Flags().StringVar(&o.tokenFile, "token-file", "", "`file` with the token that clients have to send")
	return cmd
}

func (a hostVerbs) serveMCP(ctx context.Context, o mcpOptions) error {
	token, err := o.readToken()
	if err != nil {
		return err
	}
	s, err := a.openSession(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	log, err := a.readerOn(ctx, s.conn)
	if err != nil {
		return err
	}
	server := mcp.NewServer(versionOfThis().Version, s.mcpPipeline(log))
	if o.listen != "" {
		return interruptError(ctx, a.listenMCP(ctx, server, o.listen, token))
	}
	return a.serveStdio(ctx, server)
}

// serveStdio serves on stdin and stdout until the input ends.
func (a hostVerbs) serveStdio(ctx context.Context, server *sdk.Server) error {
	err := mcp.Serve(ctx, server, a.in, a.out)
	if errors.Is(err, io.EOF) || errors.Is(err, sdk.ErrConnectionClosed) {
		return nil
	}
	return interruptError(ctx, err)
}

// readToken returns the token that clients have to send, "" for none. Without one only
// this machine can be listened to.
func (o mcpOptions) readToken() (string, error) {
	token := ""
	if o.tokenFile != "" {
		b, err := os.ReadFile(o.tokenFile)
		if err != nil {
			return "", usageError("name a file with nothing but the token", "--token-file: %w", err)
		}
		if token = strings.TrimSpace(string(b)); token == "" {
			return "", usageError("such as `openssl rand -hex 32` gives", "--token-file: %s is empty", o.tokenFile)
		}
	}
	if o.listen == "" {
		return token, nil
	}
	host, _, err := net.SplitHostPort(o.listen)
	if err != nil {
		return "", usageError("127.0.0.1:7800, for example", "--listen: %w", err)
	}
	ip, err := netip.ParseAddr(host)
	if loopback := host == "localhost" || err == nil && ip.IsLoopback(); !loopback && token == "" {
		return "", usageError("give a token with --token-file, or listen to 127.0.0.1", "--listen: %s can be reached by others", o.listen)
	}
	return token, nil
}

// listenMCP serves HTTP until ctx ends.
func (a hostVerbs) listenMCP(ctx context.Context, server *sdk.Server, address, token string) error {
	var listening net.ListenConfig
	l, err := listening.Listen(ctx, "tcp", address)
	if err != nil {
		return usageError("choose another address or port", "--listen: %w", err)
	}
	handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{
		Logger: a.log, SessionTimeout: time.Hour, MaxRequestBodyBytes: mcp.MaxRequest,
	})
	mux := http.NewServeMux()
	mux.Handle("/mcp", http.NewCrossOriginProtection().Handler(requireBearer(token, handler)))
	h := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	served := make(chan error, 1)
	go func() { served <- h.Serve(l) }()
	a.printNote("serving MCP on http://%s/mcp\n", l.Addr())
	select {
	case err = <-served:
		return fmt.Errorf("serve %s: %w", address, err)
	case <-ctx.Done():
	}
	_ = h.Close() // streams of clients would never end by themselves
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", address, err)
	}
	return ctx.Err()
}

// requireBearer lets callers in that send the token; every caller if there is none.
func requireBearer(token string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if token != "" && (!ok || subtle.ConstantTimeCompare([]byte(sent), []byte(token)) != 1) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a bearer token is needed", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// mcpPipeline is what the tools of the MCP server are made of.
func (s *verbSession) mcpPipeline(log *feed.Reader) mcp.Pipeline {
	return mcp.Pipeline{
		Find: s.Find, Do: s.Do,
		Approvals: verbCall[wire.ApprovalsRequest, wire.ApprovalsResponse](s, wire.VerbApprovals),
		Runs:      verbCall[wire.RunsRequest, wire.RunsResponse](s, wire.VerbRuns),
		Status:    verbCall[wire.StatusRequest, wire.StatusResponse](s, wire.VerbStatus),
		Log:       verbCall[wire.LogRequest, wire.LogResponse](s, wire.VerbLog),
		Search:    verbCall[wire.SearchRequest, wire.SearchResponse](s, wire.VerbSearch),
		Alerts: func(ctx context.Context, q mcp.AlertsQuery) ([]wire.Alert, uint64, error) {
			return s.readAlerts(ctx, log, q)
		},
		Start: func(ctx context.Context, r mcp.StartRequest) (string, error) { return s.app.startFor(ctx, log, r) },
		Fork: func(ctx context.Context, r mcp.ForkRequest) (mcp.Fork, error) {
			f, err := s.Fork(ctx, client.ForkRequest{RunID: r.Run, At: r.At, Message: r.Message})
			return mcp.Fork{Run: f.RunID, Parent: f.Parent, At: cmp.Or(f.Label, fmt.Sprint(f.Position)), Recorded: f.Recorded}, err
		},
		Points: func(ctx context.Context, run string) ([]mcp.Point, error) {
			found, err := s.Bookmarks(ctx, run)
			points := make([]mcp.Point, 0, len(found))
			for _, p := range found {
				points = append(points, mcp.Point{Label: p.Label, Node: p.Node, Time: p.Time, Note: p.Note})
			}
			return points, err
		},
		Diff: func(ctx context.Context, a, b string) (string, error) {
			d, err := (viewVerbs{s.app}).compareRuns(ctx, log, a, b)
			if err != nil {
				return "", err
			}
			var text strings.Builder
			err = printDifferences(&text, d)
			return text.String(), err
		},
		State: func(ctx context.Context, run, at string) (string, error) {
			state, err := s.stateAt(ctx, run, at)
			if err != nil {
				return "", err
			}
			var text strings.Builder
			err = printState(&text, state, "")
			return text.String(), err
		},
	}
}

// startFor starts a run for a supervising agent. Its flow is a text, so there is no folder in which files that it
// names could be.
func (a *app) startFor(ctx context.Context, log *feed.Reader, r mcp.StartRequest) (string, error) {
	request := wire.RunRequest{V: wire.Version, RunID: newRunID(), ParentRun: r.Parent, Input: r.Input, Labels: r.Labels}
	def, err := flow.Parse("flow", []byte(r.Flow))
	if err == nil {
		def, err = def.Embed("flow", func(name string) ([]byte, error) {
			return nil, fmt.Errorf("%s: a flow that is given as text names no files", name)
		})
	}
	if err != nil {
		return "", &wire.APIError{Code: wire.CodeFlowInvalid, Message: err.Error()}
	}
	request.Definition = def.Raw()
	if err := a.checkRequest(request); err != nil {
		return "", err
	}
	return request.RunID, a.submitRun(ctx, log, request)
}

// verbCall is a verb of wake.api as a function.
func verbCall[Q, A any](s *verbSession, verb string) func(context.Context, Q) (A, error) {
	return func(ctx context.Context, q Q) (A, error) { return api.Call[A](ctx, s.conn, s.app.names, verb, q) }
}

// readAlerts returns alerts, the oldest first, and the position of the last one that
// was looked at.
func (s *verbSession) readAlerts(ctx context.Context, log *feed.Reader, q mcp.AlertsQuery) ([]wire.Alert, uint64, error) {
	l := alertList{q: q, found: []wire.Alert{}, last: wire.ValueOf(q.After)}
	if err := l.takeAlerts(log, log.Alerts(ctx, q.Run, l.last+1, false)); err != nil {
		return nil, 0, err
	}
	if len(l.found) == 0 && q.Wait > 0 {
		wait, cancel := context.WithTimeout(ctx, time.Duration(q.Wait)*time.Second)
		defer cancel()
		l.first = true
		if err := l.takeAlerts(log, log.Alerts(wait, q.Run, l.last+1, true)); err != nil {
			return nil, 0, err
		}
	}
	return l.found, l.last, ctx.Err()
}

// alertList are the alerts that a query selects.
type alertList struct {
	q     mcp.AlertsQuery
	first bool // the first one is enough
	found []wire.Alert
	last  uint64 // position of the last one that was looked at
}

// takeAlerts looks at alerts until there are enough.
func (l *alertList) takeAlerts(log *feed.Reader, messages iter.Seq2[eventlog.Message, error]) error {
	for m, err := range messages {
		if err != nil {
			return fmt.Errorf("alerts: %w", err)
		}
		l.last = m.Pos
		alert, err := openAlert(log, m)
		if errors.Is(err, seal.ErrNoKey) {
			return fmt.Errorf("alerts: %w", err)
		}
		if err != nil || l.q.Parent != "" && alert.ParentRun != l.q.Parent {
			continue
		}
		if l.found = append(l.found, alert); len(l.found) > l.q.Limit {
			l.found = l.found[1:]
		}
		if l.first || len(l.found) == l.q.Limit && l.q.After != nil {
			return nil // the others are behind last
		}
	}
	return nil
}
