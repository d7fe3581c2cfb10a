// Package console serves the pages on which people see the fleet, answer it and travel in time.
//
// It is a client like any other: it asks wake.api and sends commands, and holds nothing that the
// log doesn't. Pages are made here and work without script as far as reading goes; a little script of
// its own keeps them up to date. Whatever an agent wrote is hostile: it reaches a page only as text.
package console

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/redact"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Config are the settings of a console.
type Config struct {
	Addr    string // host:port to listen on; port 0: the last one, else 7070 or the next free one
	File    string // keeps the address with its token; "": nothing is kept
	Public  string // URL by which others reach it, such as that of a proxy; "": its address
	Users   string // file of users, see [readUsers]; "": one operator, and one viewer
	Names   subjects.Names
	Keys    *seal.Keys  // open what is read
	KeyFile string      // where they came from
	By      string      // sender of commands, if there are no users
	Redact  *redact.Set // takes secrets out of runs that are shared
	Logger  *slog.Logger

	// Certificate is that of the console, as for [tls.Config.GetCertificate]; needed where others can reach it. It may be nil.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Connect makes the connection to the server, when a browser asks for a page the first time.
	Connect func(context.Context) (*nats.Conn, error)
	// Checks says what is wrong with the installation.
	Checks func(context.Context, *nats.Conn) []Check
	// Runners lists the runners that are there, and what they hold.
	Runners func(context.Context, *nats.Conn) []Runner
}

// Runner is a runner that is there.
type Runner struct {
	Name  string
	Heard int64 // Unix ms: when it last said that it is there; 0: it doesn't
	Runs  int   // leases of runs that it owns
	Nodes int   // leases of nodes that it works on
}

// Check is one thing that was looked at.
type Check struct{ Name, Verdict, Text, Remedy string }

// Console serves pages.
type Console struct {
	c        Config
	listener net.Listener
	scheme   string
	host     string // by which it is reached, where it listens on all addresses
	users    []user
	secret   []byte       // signs links
	reports  http.Handler // takes what hooks of sessions report; nil: the console takes none
	sessions http.Handler // keeps sessions of programs; nil: the console keeps none
	pulse    pulse
	shared   pageCount

	mu   sync.Mutex // of what follows
	link *link
}

// link is the connection to the log.
type link struct {
	nc     *nats.Conn
	reader *feed.Reader
	client *client.Client
	packs  *workspace.Reader
}

// New listens, so that the address is known. It fails if that isn't safe.
func New(c Config) (*Console, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if u, err := url.Parse(c.Public); err != nil || c.Public != "" && (u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("console: %.100q is no URL by which others reach it, such as https://wake.example/", c.Public)
	}
	s := &Console{c: c, scheme: "http"}
	kept := readAddress(c.File)
	if err := s.findUsers(kept); err != nil {
		return nil, err
	}
	if c.Certificate != nil {
		s.scheme = "https"
	}
	host, _, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return nil, fmt.Errorf("console: address: %w", err)
	}
	if !IsLoopback(host) && c.Certificate == nil {
		return nil, fmt.Errorf("console: others can reach %s: it needs a certificate", c.Addr)
	}
	if s.listener, err = listenNear(c.Addr, kept.port); err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	if c.Certificate != nil {
		pair, err := c.Certificate(&tls.ClientHelloInfo{})
		if err != nil {
			_ = s.listener.Close()
			return nil, fmt.Errorf("console: certificate: %w", err)
		}
		s.host = hostOf(pair)
		s.listener = tls.NewListener(s.listener, &tls.Config{GetCertificate: c.Certificate, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}})
	}
	if err := s.writeAddress(); err != nil {
		_ = s.listener.Close()
		return nil, err
	}
	return s, nil
}

// Address is the URL without the token. Where it listens on all addresses, it is one that others can open.
func (s *Console) Address() string {
	at := s.listener.Addr().(*net.TCPAddr)
	if !at.IP.IsUnspecified() {
		return s.scheme + "://" + at.String() + "/"
	}
	return s.scheme + "://" + net.JoinHostPort(s.host, strconv.Itoa(at.Port)) + "/"
}

// linkBase is what links for others begin with, as far as the user who asks for one has reached the console by it.
func (s *Console) linkBase(host string) string {
	if s.c.Public != "" {
		return strings.TrimSuffix(s.c.Public, "/") + "/"
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	ip := net.ParseIP(strings.Trim(name, "[]"))
	if at := s.listener.Addr().(*net.TCPAddr); ip != nil && ip.IsUnspecified() || IsLoopback(name) && !at.IP.IsLoopback() {
		return s.Address()
	}
	return s.scheme + "://" + host + "/"
}

// URL is the address with the token of the first operator, which signs in the browser that opens it.
func (s *Console) URL() string { return s.Address() + "#token=" + s.users[0].token }

// TakeReports has a handler take what hooks of sessions report, at paths below /hooks/. It comes before Run.
func (s *Console) TakeReports(h http.Handler) { s.reports = h }

// KeepSessions has a handler keep sessions of programs, at paths below /sessions/. It comes before Run, and bounds bodies itself.
func (s *Console) KeepSessions(h http.Handler) { s.sessions = h }

// Run serves until ctx ends.
func (s *Console) Run(ctx context.Context) error {
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(s.c.Logger.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(s.listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("console: %w", err)
	case <-ctx.Done():
	}
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := server.Shutdown(wait); err != nil {
		_ = server.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("console: %w", err)
	}
	s.pulse.wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != nil {
		s.link.nc.Close()
	}
	return nil
}

// openLink returns the connection, which the first request makes.
func (s *Console) openLink(ctx context.Context) (*link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != nil && !s.link.nc.IsClosed() {
		return s.link, nil
	}
	nc, err := s.c.Connect(ctx)
	if err != nil {
		return nil, unreachableError(err)
	}
	l := &link{nc: nc}
	l.reader, err = feed.Open(ctx, nc, feed.Options{Names: s.c.Names, Keys: s.c.Keys, Logger: s.c.Logger})
	if err == nil {
		l.client, err = client.Open(ctx, nc, client.Options{Names: s.c.Names, Logger: s.c.Logger, EncryptionKeys: s.c.KeyFile})
	}
	if err == nil {
		l.packs, err = workspace.NewReader(l.reader.Names(), l.reader.Keys(), l.reader.Pack)
	}
	if err != nil {
		nc.Close()
		return nil, unreachableError(err)
	}
	s.link = l
	return l, nil
}

func unreachableError(err error) error {
	if e, ok := errors.AsType[*wire.APIError](err); ok {
		return e
	}
	return &wire.APIError{Code: wire.CodeUnreachable, Message: err.Error(), Hint: "`wake doctor` says what is wrong"}
}

// callVerb asks a verb of wake.api.
func callVerb[A any](ctx context.Context, s *Console, verb string, q any) (A, error) {
	l, err := s.openLink(ctx)
	if err != nil {
		var none A
		return none, err
	}
	answer, err := api.Call[A](ctx, l.nc, s.c.Names, verb, q)
	if lag, ok := any(answer).(interface{ EventsBehind() uint64 }); ok && err == nil {
		noteLag(ctx, lag.EventsBehind())
	}
	return answer, err
}

// lagKey is the key, in the context of a request, of how many events the answers lack that its page is made of.
type lagKey struct{}

// noteLag notes for the page of a request how many events an answer lacks. A page asks for several answers at once.
func noteLag(ctx context.Context, events uint64) {
	behind, ok := ctx.Value(lagKey{}).(*atomic.Uint64)
	if !ok {
		return
	}
	for known := behind.Load(); events > known && !behind.CompareAndSwap(known, events); known = behind.Load() {
	}
}

// IsLoopback reports whether a host is this machine.
func IsLoopback(host string) bool {
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
