package main

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"wake/internal/api"
	"wake/internal/eventlog"
	"wake/internal/mcp"
	"wake/internal/seal"
	"wake/pkg/wire"
)

type mcpOptions struct {
	listen    string
	tokenFile string
}

func (a *app) mcpCommand() *cobra.Command {
	var o mcpOptions
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Offer runs to a supervising agent as an MCP server",
		Long: `Offer runs to a supervising agent as a server of the Model Context Protocol: tools
to list runs and what waits for a person, look at their status, log and alerts,
search, and to send, steer, reply, approve and deny.

    claude mcp add wake -- wake mcp

It speaks on stdin and stdout, or with --listen as streamable HTTP on /mcp. Other
addresses than loopback need a token, which clients send as a bearer.`,
		Args: arguments, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serveMCP(cmd.Context(), o) },
	}
	cmd.Flags().StringVar(&o.listen, "listen", "", "`address` for HTTP, such as 127.0.0.1:7800 (default: stdin and stdout)")
	cmd.Flags().StringVar(&o.tokenFile, "token-file", "", "`file` with the token that clients have to send")
	return cmd
}

func (a *app) serveMCP(ctx context.Context, o mcpOptions) error {
	token, err := o.token()
	if err != nil {
		return err
	}
	s, err := a.openSession(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	log, err := a.sessionLog(ctx, s)
	if err != nil {
		return err
	}
	server := mcp.NewServer(versionOfThis().Version, s.pipeline(log))
	if o.listen != "" {
		return interrupted(ctx, a.listenMCP(ctx, server, o.listen, token))
	}
	err = mcp.Serve(ctx, server, a.in, a.out)
	if errors.Is(err, io.EOF) || errors.Is(err, sdk.ErrConnectionClosed) {
		return nil
	}
	return interrupted(ctx, err)
}

// sessionLog opens the log on the connection of a session.
func (a *app) sessionLog(ctx context.Context, s *session) (*eventlog.Log, error) {
	opts, err := a.logOptions()
	if err != nil {
		return nil, err
	}
	return eventlog.Open(ctx, s.conn, opts)
}

// token returns the token that clients have to send, "" for none. Without one only
// this machine can be listened to.
func (o mcpOptions) token() (string, error) {
	token := ""
	if o.tokenFile != "" {
		b, err := os.ReadFile(o.tokenFile)
		if err != nil {
			return "", usage("name a file with nothing but the token", "--token-file: %w", err)
		}
		if token = strings.TrimSpace(string(b)); token == "" {
			return "", usage("such as `openssl rand -hex 32` gives", "--token-file: %s is empty", o.tokenFile)
		}
	}
	if o.listen == "" {
		return token, nil
	}
	host, _, err := net.SplitHostPort(o.listen)
	if err != nil {
		return "", usage("127.0.0.1:7800, for example", "--listen: %w", err)
	}
	ip, err := netip.ParseAddr(host)
	if loopback := host == "localhost" || err == nil && ip.IsLoopback(); !loopback && token == "" {
		return "", usage("give a token with --token-file, or listen to 127.0.0.1", "--listen: %s can be reached by others", o.listen)
	}
	return token, nil
}

// listenMCP serves HTTP until ctx ends.
func (a *app) listenMCP(ctx context.Context, server *sdk.Server, address, token string) error {
	var listening net.ListenConfig
	l, err := listening.Listen(ctx, "tcp", address)
	if err != nil {
		return usage("choose another address or port", "--listen: %w", err)
	}
	handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{
		Logger: a.log, SessionTimeout: time.Hour, MaxRequestBodyBytes: mcp.MaxRequest,
	})
	mux := http.NewServeMux()
	mux.Handle("/mcp", http.NewCrossOriginProtection().Handler(bearer(token, handler)))
	h := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	served := make(chan error, 1)
	go func() { served <- h.Serve(l) }()
	a.note("serving MCP on http://%s/mcp\n", l.Addr())
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

// bearer lets those in who send the token; everybody if there is none.
func bearer(token string, next http.Handler) http.Handler {
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

// pipeline is what the tools of the MCP server are made of.
func (s *session) pipeline(log *eventlog.Log) mcp.Pipeline {
	return mcp.Pipeline{
		Find: s.Find, Do: s.Do,
		Approvals: asked[wire.ApprovalsRequest, wire.ApprovalsResponse](s, wire.VerbApprovals),
		Runs:      asked[wire.RunsRequest, wire.RunsResponse](s, wire.VerbRuns),
		Status:    asked[wire.StatusRequest, wire.StatusResponse](s, wire.VerbStatus),
		Log:       asked[wire.LogRequest, wire.LogResponse](s, wire.VerbLog),
		Search:    asked[wire.SearchRequest, wire.SearchResponse](s, wire.VerbSearch),
		Alerts: func(ctx context.Context, q mcp.AlertsQuery) ([]wire.Alert, uint64, error) {
			return s.alerts(ctx, log, q)
		},
	}
}

// asked is a verb of wake.api as a function.
func asked[Q, A any](s *session, verb string) func(context.Context, Q) (A, error) {
	return func(ctx context.Context, q Q) (A, error) { return api.Call[A](ctx, s.conn, s.app.names, verb, q) }
}

// alerts returns alerts, the oldest first, and the position of the last one that
// was looked at.
func (s *session) alerts(ctx context.Context, log *eventlog.Log, q mcp.AlertsQuery) ([]wire.Alert, uint64, error) {
	filter := s.app.names.AllAlerts()
	if q.Run != "" {
		filter = s.app.names.RunAlerts(q.Run)
	}
	consumer, err := log.JetStream().OrderedConsumer(ctx, s.app.names.AlertsStream(), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{filter}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: q.After + 1,
		InactiveThreshold: time.Minute,
	})
	if err != nil {
		return nil, 0, fmt.Errorf("alerts: %w", err)
	}
	info, err := consumer.Info(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("alerts: %w", err)
	}
	found, last, pending := []wire.Alert{}, q.After, info.NumPending
	deadline := time.Now().Add(time.Duration(q.Wait) * time.Second)
	for pending > 0 || len(found) == 0 && time.Now().Before(deadline) {
		m, err := consumer.Next(jetstream.FetchMaxWait(max(min(time.Until(deadline), 5*time.Second), time.Second)))
		switch {
		case ctx.Err() != nil:
			return nil, 0, ctx.Err()
		case err != nil && pending > 0:
			return nil, 0, fmt.Errorf("alerts: %w", err)
		case err != nil:
			continue // nothing has come yet
		}
		meta, err := m.Metadata()
		if err != nil {
			return nil, 0, fmt.Errorf("alerts: %w", err)
		}
		last, pending = meta.Sequence.Stream, meta.NumPending
		alert, err := openAlert(log, m)
		if errors.Is(err, seal.ErrNoKey) {
			return nil, 0, fmt.Errorf("alerts: %w", err)
		}
		if err != nil || q.Parent != "" && alert.ParentRun != q.Parent {
			continue
		}
		if found = append(found, alert); len(found) > q.Limit {
			found = found[1:]
		}
		if len(found) == q.Limit && q.After != 0 {
			break // the others are behind last
		}
	}
	return found, last, nil
}
