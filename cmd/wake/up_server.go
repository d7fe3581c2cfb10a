package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/pkg/subjects"
)

// embedded is the NATS server that lives in the process of `wake up`.
type embedded struct {
	url   string // with the token, unless there are users
	creds string // file of those of this process, if there are users

	dir     string
	options *server.Options
	logger  *serverLogger
	current atomic.Pointer[server.Server]
}

type embeddedConfig struct {
	Dir    string // its data
	Listen string // host to listen on
	Port   int    // 0: that of the last time if it is free, else any
	Names  subjects.Names
	Cert   string // PEM file of its certificate; "": there is no TLS
	Key    string // PEM file of the certificate's key
	Later  bool   // what it acknowledges isn't synced: its folder is, when it has ended
}

// serverStart bounds the start, which reads the whole index of the streams.
const serverStart = time.Minute

// startServer starts a server that stores what it acknowledges on disk, synced unless that is to be later.
func startServer(ctx context.Context, c embeddedConfig, log *slog.Logger) (*embedded, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, usageError("choose another --data-dir", "data directory: %w", err)
	}
	e := &embedded{dir: c.Dir}
	options, err := c.serverUsers(e)
	if err != nil {
		return nil, err
	}
	if options.TLSConfig, err = c.tlsConfig(log); err != nil {
		return nil, err
	}
	options.TLSTimeout = tlsTimeout
	port, err := c.choosePort()
	if err != nil {
		return nil, err
	}
	options.ServerName, options.Host, options.Port = "wake", c.Listen, port
	options.JetStream, options.StoreDir, options.SyncAlways = true, c.Dir, !c.Later
	options.JetStreamLimits.MaxBatchSize = eventlog.MaxBatch
	options.NoSigs, options.DisableJetStreamBanner = true, true
	e.options, e.logger = options, &serverLogger{log: log, fatal: make(chan string, 1), debug: log.Enabled(ctx, slog.LevelDebug)}
	if err := e.launchServer(ctx); err != nil {
		return nil, err
	}
	chosen := e.current.Load().Addr().(*net.TCPAddr).Port
	options.Port = chosen
	e.url = clientURL(c.scheme(), c.Listen, chosen, options.Authorization)
	if err := c.rememberPort(chosen); err != nil {
		e.stop()
		return nil, err
	}
	return e, nil
}

// launchServer starts the server. It fails if the server isn't ready in time, or ctx ends before.
func (e *embedded) launchServer(ctx context.Context) error {
	select {
	case <-e.logger.fatal: // of the one before
	default:
	}
	s, err := server.NewServer(e.options.Clone())
	if err != nil {
		return fmt.Errorf("embedded server: %w", err)
	}
	e.current.Store(s)
	s.SetLoggerV2(e.logger, e.logger.debug, false, false)
	s.Start()
	if reason := e.logger.awaitReady(ctx, s); reason != "" {
		e.stop()
		return fmt.Errorf("embedded server on %s: %s", e.dir, reason)
	}
	return nil
}

// How `wake up` goes on with a server whose disk was full: it starts the server anew when there is room, and again at the earliest after
// a rest, which doubles while a start doesn't help.
const (
	diskRoom    = 16 << 20 // bytes
	firstRest   = 15 * time.Second
	longestRest = 10 * time.Minute
)

// Run shuts the server down when ctx ends. A NATS server doesn't write any more to a stream whose disk was full, also when there is room
// again: Run starts the server anew then, and its clients connect again.
func (e *embedded) Run(ctx context.Context, troubles *health.Board) error {
	defer e.stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for next, rest := time.Now(), firstRest; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		switch rested, full := time.Now().After(next), e.logger.full.Load(); {
		case !rested:
			continue
		case !full: // the last start has helped
			rest = firstRest
			continue
		}
		err := e.findRoom()
		if err == nil {
			e.logger.log.WarnContext(ctx, "the disk has room again: the server starts anew, since it stores nothing before")
			err = e.restartServer(ctx)
		}
		if err == nil {
			next, rest = time.Now().Add(rest), min(2*rest, longestRest)
		}
		if ctx.Err() == nil {
			troubles.Set("nats-server", err)
		}
	}
}

// findRoom fails if there is no room for files of the server.
func (e *embedded) findRoom() error {
	free, err := freeBytes(e.dir)
	if err == nil && free < diskRoom {
		err = fmt.Errorf("%d MiB are free in %s", free>>20, e.dir)
	}
	if err != nil {
		return fmt.Errorf("its disk is full: %w", err)
	}
	return nil
}

// restartServer stops the server and starts it. If the server doesn't start, Run tries again as if its disk were full.
func (e *embedded) restartServer(ctx context.Context) error {
	e.stop()
	e.logger.full.Store(false)
	err := e.launchServer(ctx)
	if err != nil {
		e.logger.full.Store(true)
	}
	return err
}

// InProcessConn is a connection to the server as it is now.
func (e *embedded) InProcessConn() (net.Conn, error) { return e.current.Load().InProcessConn() }

// stop may be called more than once.
func (e *embedded) stop() {
	s := e.current.Load()
	s.Shutdown()
	s.WaitForShutdown()
}

// tlsTimeout is how many seconds a client has to agree on TLS.
const tlsTimeout = 5

// tlsConfig returns the settings of a server with a certificate, nil of one without.
func (c embeddedConfig) tlsConfig(log *slog.Logger) (*tls.Config, error) {
	switch {
	case c.Cert == "" && c.Key == "":
		return nil, nil
	case c.Cert == "" || c.Key == "":
		return nil, usageError("", "--listen-cert and --listen-key belong together")
	}
	pair, err := service.LoadKeyPair(c.Cert, c.Key, log)
	if err != nil {
		return nil, usageError("wake auth generate makes them, in DIR/tls", "--listen-cert: %w", err)
	}
	return &tls.Config{GetCertificate: pair.Certificate, MinVersion: tls.VersionTLS12}, nil
}

func (c embeddedConfig) scheme() string {
	if c.Cert != "" {
		return "tls"
	}
	return "nats"
}

func (c embeddedConfig) portFile() string { return filepath.Join(c.Dir, "port") }

// choosePort returns a port that is free right now. The one of the last time is
// preferred, so that clients find the server again after a restart.
func (c embeddedConfig) choosePort() (int, error) {
	if c.Port != 0 {
		if err := c.checkFree(c.Port); err != nil {
			return 0, serviceError(service.CodeInUse, "choose another --port", "--port %d: %w", c.Port, err)
		}
		return c.Port, nil
	}
	b, err := os.ReadFile(c.portFile())
	if err != nil {
		return server.RANDOM_PORT, nil //nolint:nilerr // the first start, or a hint that is lost
	}
	last, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || c.checkFree(last) != nil {
		return server.RANDOM_PORT, nil //nolint:nilerr // it is only a preference
	}
	return last, nil
}

func (c embeddedConfig) checkFree(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort(c.Listen, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}

func (c embeddedConfig) rememberPort(port int) error {
	if err := os.WriteFile(c.portFile(), []byte(strconv.Itoa(port)+"\n"), 0o600); err != nil {
		return fmt.Errorf("remember port: %w", err)
	}
	return nil
}

// readToken returns what clients have to know, made once. A client that may publish may have
// commands run, and on this machine others live, too, agents among them.
func (c embeddedConfig) readToken() (string, error) {
	path := filepath.Join(c.Dir, "token")
	b, err := os.ReadFile(path)
	switch {
	case err == nil:
		return strings.TrimSpace(string(b)), nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("read token: %w", err)
	}
	token := rand.Text()
	if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write token: %w", err)
	}
	return token, nil
}

// clientURL is how a client on this machine reaches the server.
func clientURL(scheme, host string, port int, token string) string {
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	u := url.URL{Scheme: scheme, Host: net.JoinHostPort(host, strconv.Itoa(port))}
	if token != "" {
		u.User = url.User(token)
	}
	return u.String()
}

// serverLogger writes what the server says to our log.
type serverLogger struct {
	log   *slog.Logger
	debug bool
	fatal chan string // the first fatal error
	full  atomic.Bool // it had no room on its disk
}

// awaitReady waits until the server is ready. It returns why it isn't, or "".
func (l *serverLogger) awaitReady(ctx context.Context, s *server.Server) string {
	for deadline := time.Now().Add(serverStart); time.Now().Before(deadline); {
		if s.ReadyForConnections(50 * time.Millisecond) {
			return ""
		}
		select {
		case text := <-l.fatal:
			return text
		case <-ctx.Done():
			return ctx.Err().Error()
		default:
		}
	}
	return "not ready after " + serverStart.String()
}

func (l *serverLogger) logText(level slog.Level, format string, args []any) {
	l.log.Log(context.Background(), level, "nats-server", "text", fmt.Sprintf(format, args...))
}

// Noticef is for what a server says in good health: more than most want to know.
func (l *serverLogger) Noticef(format string, args ...any) { l.logText(slog.LevelDebug, format, args) }

func (l *serverLogger) Debugf(format string, args ...any) { l.logText(slog.LevelDebug, format, args) }

func (l *serverLogger) Tracef(format string, args ...any) { l.logText(slog.LevelDebug, format, args) }

func (l *serverLogger) Warnf(format string, args ...any) { l.logText(slog.LevelWarn, format, args) }

// Errorf is also how the server says that its disk is full.
func (l *serverLogger) Errorf(format string, args ...any) {
	if isDiskFull(format, args) {
		l.full.Store(true)
	}
	l.logText(slog.LevelError, format, args)
}

// isDiskFull reports whether the server says that its disk is full: by the system's error, or by the text that JetStream makes of it for a
// line that it says rarely. Other texts have what anybody may have sent to the server's port.
func isDiskFull(format string, args []any) bool {
	for _, arg := range args {
		switch v := arg.(type) {
		case error:
			if errors.Is(v, syscall.ENOSPC) || errors.Is(v, syscall.EDQUOT) {
				return true
			}
		case string:
			rare := format == "%s" && strings.HasPrefix(v, "JetStream failed to store a msg on stream ")
			if rare && (strings.HasSuffix(v, syscall.ENOSPC.Error()) || strings.HasSuffix(v, syscall.EDQUOT.Error())) {
				return true
			}
		}
	}
	return false
}

// Fatalf keeps the reason; unlike a server's own, it doesn't end the process.
func (l *serverLogger) Fatalf(format string, args ...any) {
	select {
	case l.fatal <- fmt.Sprintf(format, args...):
	default:
	}
	l.logText(slog.LevelError, format, args)
}

// serverUsers returns what the server asks of its clients. On this machine that is a
// token. A server that others can reach, or could once, has users, each with the
// rights of a role; the verbs find theirs by the data directory.
func (c embeddedConfig) serverUsers(e *embedded) (*server.Options, error) {
	dir := service.UsersDir(filepath.Dir(c.Dir))
	_, err := os.Stat(filepath.Join(dir, authConf))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("users: %w", err)
	}
	if ip := net.ParseIP(c.Listen); err != nil && (c.Listen == "localhost" || ip != nil && ip.IsLoopback()) {
		token, err := c.readToken()
		return &server.Options{Authorization: token}, err
	}
	if _, err := renewUsers(dir, c.Names); err != nil {
		return nil, err
	}
	keys, err := readKeys(dir, access.LogAccount.SeedName())
	if err != nil {
		return nil, err
	}
	account, err := keys.Account(access.LogAccount)
	if err != nil {
		return nil, err
	}
	if err := c.adoptStored(account); err != nil {
		return nil, err
	}
	e.creds = service.UserCreds(filepath.Dir(c.Dir), access.Up)
	options, err := server.ProcessConfigFile(filepath.Join(dir, authConf))
	if err != nil {
		return nil, fmt.Errorf("users: %w", err)
	}
	return options, nil
}

// adoptStored gives an account what was stored while there were no users.
func (c embeddedConfig) adoptStored(account string) error {
	before, now := filepath.Join(c.Dir, server.JetStreamStoreDir, server.DEFAULT_GLOBAL_ACCOUNT), filepath.Join(c.Dir, server.JetStreamStoreDir, account)
	if _, err := os.Stat(now); err == nil {
		return nil
	}
	if err := os.Rename(before, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("users: give account %s what is stored: %w", account, err)
	}
	return nil
}
