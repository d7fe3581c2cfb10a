package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/console"
	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/lease"
	"code.wake.dev/wake/internal/redact"
	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/pkg/wire"
)

// consoleOptions are the settings of a console.
type consoleOptions struct {
	addr, cert, key, users, public string
}

const consoleAddr = "127.0.0.1:7070"

func (o *consoleOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.addr, "console-addr", consoleAddr, "`address` of the console; if nothing is given, that of the last time or the next free one; \"\": there is none")
	flags.StringVar(&o.cert, "console-cert", "", "PEM `file` of the console's certificate, which it needs where others can reach it")
	flags.StringVar(&o.key, "console-key", "", "PEM `file` of its key")
	flags.StringVar(&o.public, "public-url", "", "`URL` by which others reach the console, such as that of a proxy: links that are shared begin with it (default: its address)")
	flags.StringVar(&o.users, "console-users", "", "`file` of the console's users, a line each: NAME viewer|inspector|operator TOKEN (default: one operator and one viewer, whose tokens are made)")
}

// openConsole makes a console for a data directory; what it asks goes over a connection that connect
// makes when it is needed. It is nil if there is to be none.
func (a hostVerbs) openConsole(flags *pflag.FlagSet, o consoleOptions, dir string, connect func(context.Context) (*nats.Conn, error)) (*console.Console, error) {
	if o.addr == "" {
		return nil, nil
	}
	if !flags.Changed("console-addr") {
		o.addr = "127.0.0.1:0"
	}
	keys, err := a.sealKeys()
	if err != nil {
		return nil, err
	}
	secrets, err := redact.New(redact.All, redact.Environ(os.Environ()))
	if err != nil {
		return nil, err
	}
	const remedy = "choose another --console-addr; off this machine it needs --console-cert, --console-key and --console-users"
	var certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	if o.cert != "" {
		pair, err := service.LoadKeyPair(o.cert, o.key, a.log)
		if err != nil {
			return nil, usageError(remedy, "console: certificate: %w", err)
		}
		certificate = pair.Certificate
	}
	s, err := console.New(console.Config{
		Addr: o.addr, File: consoleFile(dir), Certificate: certificate, Public: o.public, Users: o.users, Names: a.names, Keys: keys, KeyFile: a.keys, By: senderName(), Redact: secrets, Logger: a.log,
		Connect: connect,
		Checks:  func(ctx context.Context, nc *nats.Conn) []console.Check { return a.consoleChecks(ctx, nc, dir) },
		Runners: a.listRunners,
	})
	if err != nil {
		return nil, usageError(remedy, "%w", err)
	}
	return s, nil
}

// consoleFile keeps the console's address with its token.
func consoleFile(dir string) string { return filepath.Join(dir, "console-url") }

// consoleChecks is what wake doctor says, as far as the credentials of the connection let it look.
func (a hostVerbs) consoleChecks(ctx context.Context, nc *nats.Conn, dir string) (all []console.Check) {
	js, err := jetstream.New(nc)
	if user, denied := access.WithoutStreams(nc); err != nil || denied != nil || user != "" {
		return []console.Check{{Name: "doctor", Verdict: string(warned), Text: "the console's credentials have no streams", Remedy: "wake doctor, where they do"}}
	}
	for _, c := range (doctor{nc: nc, js: js, names: a.names, dataDir: dir}).runChecks(ctx).Checks {
		all = append(all, console.Check{Name: c.Name, Verdict: string(c.Verdict), Text: c.Text, Remedy: c.Remedy})
	}
	return all
}

// listRunners lists the runners that have a session, by name; none where the credentials of the connection have no streams.
func (a hostVerbs) listRunners(ctx context.Context, nc *nats.Conn) []console.Runner {
	js, err := jetstream.New(nc)
	if user, denied := access.WithoutStreams(nc); err != nil || denied != nil || user != "" {
		return nil
	}
	entries, err := keys.All(ctx, js, a.names.LeasesBucket(), ">")
	if err != nil {
		a.log.InfoContext(ctx, "sessions of runners can't be read", "error", err)
		return nil
	}
	byName := map[string]*console.Runner{}
	for _, e := range entries {
		var s lease.Session
		if wire.Unmarshal(e.Value, &s) != nil || s.Over {
			continue
		}
		r := byName[s.Runner]
		if r == nil {
			r = &console.Runner{Name: s.Runner}
			byName[s.Runner] = r
		}
		if s.At > r.Heard { // of two processes the one that is there: the other's session is about to expire
			r.Heard, r.Runs, r.Nodes = s.At, s.Runs, s.Nodes
		}
	}
	var all []console.Runner
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, *byName[name])
	}
	return all
}

// consoleText is the address for people: with its token on a terminal, where it is clicked, and without
// where it would be kept.
func (a hostVerbs) consoleText(s *console.Console, dir string) string {
	if service.IsTerminal(a.out) {
		return s.URL()
	}
	return s.Address() + ", its token in " + consoleFile(dir)
}

func (a hostVerbs) consoleCommand() *cobra.Command {
	var o consoleOptions
	var open bool
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Serve pages that show the fleet, answer it and travel in time",
		Long: `Serve pages that show what runs do and wait for, on which people answer, steer and fork
them, for the server of --nats-url or --data-dir. wake up serves them, too. Whoever opens them needs
a token; DIR/console-url has the address with it. With --open the browser opens it, and nothing more is
served if a console of this data directory is up.`,
		Annotations: map[string]string{annotationServer: "console"},
		RunE:        func(cmd *cobra.Command, _ []string) error { return a.runConsole(cmd.Context(), cmd.Flags(), o, open) },
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&open, "open", false, "open the address in the browser")
	return cmd
}

func (a hostVerbs) runConsole(ctx context.Context, flags *pflag.FlagSet, o consoleOptions, open bool) error {
	dir, err := filepath.Abs(a.server.DataDir)
	if err != nil {
		return err
	}
	if at := a.servedConsole(ctx, dir); open && at != "" {
		return a.openBrowser(ctx, at)
	}
	nc, err := a.connectServer(ctx) // else only a page would tell the user that there is no server
	if err != nil {
		return err
	}
	nc.Close()
	s, err := a.openConsole(flags, o, dir, a.connectServer)
	if err != nil || s == nil {
		return err
	}
	err = a.printAnswer(map[string]string{"console": s.Address()}, "the console is up: "+a.consoleText(s, a.server.DataDir))
	if err == nil && open {
		err = a.openBrowser(ctx, s.URL())
	}
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// servedConsole is the address of the console of a data directory, if one answers there.
func (a *app) servedConsole(ctx context.Context, dir string) string {
	b, err := os.ReadFile(consoleFile(dir))
	if err != nil {
		return ""
	}
	at := strings.TrimSpace(string(b))
	u, err := url.Parse(at)
	if err != nil {
		return ""
	}
	u.Fragment, u.Path = "", "/assets/icon.svg"
	limited, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(limited, http.MethodGet, u.String(), nil)
	if err != nil {
		return ""
	}
	client, err := a.consoleClient()
	if err != nil {
		return ""
	}
	answer, err := client.Do(r)
	if err != nil {
		return ""
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return ""
	}
	return at
}

// consoleClient asks the console of this machine. The authority that signed the server's certificate signed the console's, too. Where
// the console's name leads nowhere from here, the console is on loopback.
func (a *app) consoleClient() (*http.Client, error) {
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if file := a.server.TLS.CA; file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, usageError("", "--tls-ca: %w", err)
		}
		trust.RootCAs = x509.NewCertPool()
		trust.RootCAs.AppendCertsFromPEM(b)
	}
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, network, addr)
		if _, port, e := net.SplitHostPort(addr); err != nil && e == nil {
			return d.DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
		}
		return c, err
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: trust, DialContext: dial, DisableKeepAlives: true}}, nil
}

// openBrowser opens an address in the browser of the user of this machine.
func (a hostVerbs) openBrowser(ctx context.Context, at string) error {
	program := map[string][]string{"darwin": {"open"}, "windows": {"rundll32", "url.dll,FileProtocolHandler"}}[runtime.GOOS]
	if program == nil {
		program = []string{"xdg-open"}
	}
	if err := exec.CommandContext(ctx, program[0], append(program[1:], at)...).Run(); err != nil { // our own address
		_, err := fmt.Fprintf(a.out, "no browser can be opened from here; open %s\n", at)
		return err
	}
	return nil
}
