package service

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"
	"github.com/synadia-io/orbit.go/natscontext"

	"code.wake.dev/wake/internal/access"
)

// Server says which NATS server to use. A URL is preferred to a context of the
// nats CLI, and that to the URL file of the data directory.
type Server struct {
	URL     string
	Creds   string // path of a credentials file
	Context string // name of a context of the nats CLI, or the absolute path of its file
	DataDir string
	Role    access.Role // role of the credentials to use, of those in the data directory
	TLS     TLS         // for a server of tls://, or one that asks for it

	Name    string        // of the connection, as `nats server report connections` shows it
	Timeout time.Duration // of the dial, and again of the handshake
	Wait    time.Duration // how long to wait for a server that doesn't answer yet

	// InProcess, if set, is a server in this process, which is connected to
	// without a socket; URL may have what the server wants to know.
	InProcess nats.InProcessConnProvider

	// Denied, if set, is told when the credentials don't cover a subject: the
	// call itself would only time out.
	Denied func(error)

	inbox string // what the credentials allow
}

// TLS has the paths of PEM files.
type TLS struct {
	CA   string // the authority of the server's certificate (empty: the system's list)
	Cert string // the client's own certificate, if the server wants one
	Key  string
}

// checkFiles says which file is missing, as a problem of the settings: the client's own
// error would pass for one of the server.
func (t TLS) checkFiles() error {
	if (t.Cert == "") != (t.Key == "") {
		return &Error{Code: CodeUsage, Err: errors.New("--tls-cert and --tls-key belong together")}
	}
	if t.CA != "" {
		b, err := os.ReadFile(t.CA)
		if err != nil {
			return &Error{Code: CodeUsage, Err: fmt.Errorf("--tls-ca: %w", err)}
		}
		if !x509.NewCertPool().AppendCertsFromPEM(b) {
			return &Error{Code: CodeUsage, Err: fmt.Errorf("--tls-ca: %s has no certificate in PEM", t.CA)}
		}
	}
	if t.Cert != "" {
		if _, err := tls.LoadX509KeyPair(t.Cert, t.Key); err != nil {
			return &Error{Code: CodeUsage, Err: fmt.Errorf("--tls-cert: %w", err)}
		}
	}
	return nil
}

func (t TLS) connectOptions() (options []nats.Option) {
	if t.CA != "" {
		options = append(options, nats.RootCAs(t.CA))
	}
	if t.Cert != "" {
		options = append(options, nats.ClientCert(t.Cert, t.Key))
	}
	return options
}

// Flags adds the settings to a set of flags.
func (s *Server) Flags(flags *pflag.FlagSet) {
	flags.StringVar(&s.URL, "nats-url", "", "`URL` of the NATS server (default: that of wake up on the data directory)")
	flags.StringVar(&s.Creds, "creds", "", "NATS credentials `file`")
	flags.StringVar(&s.TLS.CA, "tls-ca", "", "PEM `file` of the authority that signed the server's certificate (default: the system's list)")
	flags.StringVar(&s.TLS.Cert, "tls-cert", "", "PEM `file` of the certificate that a server wants to see")
	flags.StringVar(&s.TLS.Key, "tls-key", "", "PEM `file` of its key")
	flags.StringVar(&s.Context, "context", "", "`name` of a context of the nats CLI")
	flags.StringVar(&s.DataDir, "data-dir", DefaultDataDir, "`folder` where wake up keeps its data and its URL")
	flags.DurationVar(&s.Timeout, "connect-timeout", 450*time.Millisecond, "how `long` a server may take for each step of connecting")
}

// Connect connects to the server. Lost connections are made again for ever;
// what is published meanwhile fails at once, since replaying it later could
// store it out of order. Errors are of type [*Error].
func (s Server) Connect(ctx context.Context, log *slog.Logger) (*nats.Conn, error) {
	if s.Creds == "" && s.URL == "" && s.Context == "" && HasUsers(s.DataDir) {
		s.Creds = UserCreds(s.DataDir, s.Role)
	}
	if s.Creds != "" {
		creds, err := os.ReadFile(s.Creds)
		if err == nil {
			s.inbox, err = access.Inbox(creds)
		}
		if err != nil {
			return nil, &Error{Code: CodeUsage, Err: fmt.Errorf("credentials: %s: %w", s.Creds, err)}
		}
	}
	if err := s.TLS.checkFiles(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.Wait+2*s.Timeout)
	defer cancel()
	var last error // of an attempt that wasn't cut off: it tells more
	var told time.Time
	for {
		nc, err := s.dialOnce(ctx, log)
		if err == nil || !isUnreachable(err) {
			return nc, err
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if s.Wait == 0 {
			return nil, last
		}
		if time.Since(told) >= waitAgain {
			log.InfoContext(ctx, "waiting for the server", "error", err)
			told = time.Now()
		}
		select {
		case <-time.After(s.Timeout):
		case <-ctx.Done():
			return nil, last
		}
	}
}

// waitAgain is how often it is told that a server is waited for.
const waitAgain = 30 * time.Second

func isUnreachable(err error) bool {
	var known *Error
	return errors.As(err, &known) && known.Code == CodeUnreachable
}

// dialOnce tries once. The goroutine is there because the client looks up names
// without any time limit; it closes what comes too late.
func (s Server) dialOnce(ctx context.Context, log *slog.Logger) (*nats.Conn, error) {
	type result struct {
		nc  *nats.Conn
		err error
	}
	results := make(chan result)
	go func() {
		nc, err := s.openConnection(log)
		select {
		case results <- result{nc, err}:
		case <-ctx.Done():
			if nc != nil {
				nc.Close()
			}
		}
	}()
	select {
	case r := <-results:
		return r.nc, r.err
	case <-ctx.Done():
		return nil, s.unreachableError(s.URL, ctx.Err())
	}
}

func (s Server) openConnection(log *slog.Logger) (*nats.Conn, error) {
	loaded := false // a context's file was read: options are applied after that
	options := append(s.connectOptions(log), func(o *nats.Options) error {
		loaded = true
		return takeInbox(o)
	})
	url := s.URL
	if url == "" && s.Context != "" {
		nc, settings, err := natscontext.Connect(s.Context, options...)
		switch {
		case err != nil && !loaded:
			return nil, &Error{Code: CodeUsage, Err: fmt.Errorf("context %q: %w", s.Context, err), Hint: "nats context ls shows the known ones"}
		case err != nil:
			return nil, s.classifyError("context "+s.Context, err)
		case settings.JSDomain != "" || settings.JSAPIPrefix != "":
			nc.Close()
			return nil, &Error{Code: CodeUsage, Err: fmt.Errorf("context %q leads to JetStream by a domain or an API prefix", s.Context), Hint: "connect to the server that holds the streams"}
		}
		return nc, nil
	}
	if url == "" {
		var err error
		url, err = readURL(s.DataDir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, &Error{Code: CodeUnreachable, Err: fmt.Errorf("no server is running on %s", s.DataDir), Hint: startHint}
		case err != nil:
			return nil, &Error{Code: CodeUsage, Err: fmt.Errorf("data directory: %w", err)}
		}
	}
	nc, err := nats.Connect(url, options...)
	if err != nil {
		return nil, s.classifyError(url, err)
	}
	return nc, nil
}

// takeInbox has answers come where the credentials of a context allow it, unless the context says where.
func takeInbox(o *nats.Options) error {
	if o.UserJWT == nil || o.InboxPrefix != "" {
		return nil
	}
	user, err := o.UserJWT()
	if err == nil {
		o.InboxPrefix, err = access.Inbox([]byte(user))
	}
	if err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	return nil
}

const startHint = "start one with `wake up`, or name one with --nats-url, --context or --data-dir"

// Address returns URLs without what servers want to know: users, passwords, tokens.
func Address(urls string) string {
	parts := strings.Split(urls, ",")
	for i, part := range parts {
		scheme, rest, ok := strings.Cut(part, "://")
		if !ok {
			scheme, rest = "", part
		}
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			rest = rest[at+1:]
		}
		if parts[i] = rest; ok {
			parts[i] = scheme + "://" + rest
		}
	}
	return strings.Join(parts, ",")
}

func (s Server) classifyError(server string, err error) error {
	server = Address(server)
	if isRefusal(err) {
		return &Error{Code: CodeUnauthorized, Err: fmt.Errorf("%s: %w", server, err), Hint: "give credentials with --creds or --context"}
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return &Error{Code: CodeUnauthorized, Err: fmt.Errorf("%s: %w", server, err), Hint: "name the authority that signed the server's certificate with --tls-ca"}
	}
	return s.unreachableError(server, err)
}

func (s Server) unreachableError(server string, err error) error {
	server = Address(server)
	hint := startHint
	if s.URL == "" && s.Context == "" {
		hint = URLFile(s.DataDir) + " is left from a server that is gone: run `wake up` again, or name another server with --nats-url"
	}
	return &Error{Code: CodeUnreachable, Err: fmt.Errorf("no answer from %s: %w", server, err), Hint: hint}
}

// A server that is frozen, or to which no cable leads any more, keeps its connections open: without an answer to two pings the
// connection is made anew, with another server if there is one. That is before sessions of runners expire, ten seconds by default.
const (
	pingInterval = 3 * time.Second
	maxPings     = 2
)

func (s Server) connectOptions(log *slog.Logger) []nats.Option {
	var refused atomic.Int64 // when it was last told, Unix ns
	options := []nats.Option{
		nats.Name(s.Name),
		// Credentials that are refused may be taken again: the file is replaced, a server has another configuration. It is read at each attempt.
		nats.IgnoreAuthErrorAbort(),
		nats.Timeout(s.Timeout),
		nats.MaxReconnects(-1),
		nats.ReconnectBufSize(-1),
		nats.ReconnectWait(500 * time.Millisecond),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(maxPings),
		nats.PermissionErrOnSubscribe(true),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil: we closed it
				log.Warn("connection lost", "error", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			log.Warn("connected again", "url", Address(nc.ConnectedUrl()))
			if s.isOtherUser() {
				log.Error("the credentials are another user's now, who gets answers elsewhere: the connection is closed, and the process has to be started again", "creds", s.Creds)
				nc.Close()
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if isRefusal(err) {
				if now := time.Now().UnixNano(); now-refused.Swap(now) > int64(refusalAgain) {
					log.Error("the server refuses the credentials, tries again", "error", err, "creds", s.Creds)
				}
				return
			}
			s.asyncError(log, err)
		}),
	}
	if s.Creds != "" {
		options = append(options, nats.UserCredentials(s.Creds))
	}
	if s.inbox != "" {
		options = append(options, nats.CustomInboxPrefix(s.inbox))
	}
	options = append(options, s.TLS.connectOptions()...)
	if s.InProcess != nil {
		options = append(options, nats.InProcessServer(s.InProcess))
	}
	return options
}

// isOtherUser reports whether the file of credentials has those of another user than at the start.
func (s Server) isOtherUser() bool {
	if s.Creds == "" {
		return false
	}
	creds, err := os.ReadFile(s.Creds)
	if err != nil {
		return false // the next attempt to connect says so
	}
	inbox, err := access.Inbox(creds)
	return err == nil && inbox != s.inbox
}

// refusalAgain is for how long nothing was refused when a refusal is told again.
const refusalAgain = time.Minute

// isRefusal reports whether a server doesn't take who connects.
func isRefusal(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) || errors.Is(err, nats.ErrAccountAuthExpired)
}

func (s Server) asyncError(log *slog.Logger, err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		log.Warn("connection", "error", err)
		return
	}
	if s.Denied == nil {
		log.Error("permission denied", "error", err)
		return
	}
	s.Denied(&Error{Code: CodeDenied, Err: err, Hint: "ask for credentials that cover this subject"})
}
