package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/console"
	"code.wake.dev/wake/internal/report"
	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/listener"
	"code.wake.dev/wake/services/mirror"
	"code.wake.dev/wake/services/recorder"
)

type upOptions struct {
	embedded embeddedConfig
	topology topology.Config
	process  processOptions
	recorder recorder.Config
	alerter  alerterOptions
	runner   runnerOptions
	watcher  watchOptions
	watch    bool
	console  consoleOptions
	demo     bool
}

func (a hostVerbs) upCommand() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a NATS server and all services in one process",
		Long: `Run a NATS server and all services in one process. What is stored is under
--data-dir, synced before it is acknowledged; a second start goes on where the
first ended. The URL, with the token that the server wants from all clients, is in
DIR/nats-url, where the other verbs look for it; only you can read that. So has
DIR/console-url the address of the console, the pages that show it all. A server that
others can reach, by --listen, has users instead, now and from then on: DIR/nats/auth
has their credentials, and wake auth user --dir DIR/nats/auth makes more.

Ctrl-C interrupts the agents at a safe point; the next start goes on with their
runs. A second Ctrl-C ends at once, which loses nothing that was acknowledged.`,
		Annotations: map[string]string{annotationService: "up"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.demo && !cmd.Flags().Changed("data-dir") {
				a.server.DataDir = filepath.Join(service.DefaultDataDir, "demo")
			}
			if o.demo && a.level == "" {
				a.log = service.NewLogger(a.errOut, slog.LevelWarn)
			}
			return a.runUp(cmd.Context(), cmd.Flags(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.embedded.Listen, "listen", "127.0.0.1", "`host` to listen on")
	flags.StringVar(&o.embedded.Cert, "listen-cert", "", "PEM `file` of the server's certificate: clients connect by TLS (default: none does)")
	flags.StringVar(&o.embedded.Key, "listen-key", "", "PEM `file` of its key")
	flags.IntVar(&o.embedded.Port, "port", 0, "`port` to listen on (default: that of the last time, else a free one)")
	topologyFlags(flags, &o.topology)
	flags.BoolVar(&o.demo, "demo", false, "run the demo flow with recorded agents, in .wake/demo; stays up on a terminal")
	flags.BoolVar(&o.watch, "watch", false, "follow the sessions of Claude Code on this machine, see wake watch")
	o.watcher.addFlags(flags)
	o.console.addFlags(flags)
	o.process.addFlags(flags)
	recorderFlags(flags, &o.recorder)
	alerterFlags(flags, &o.alerter)
	runnerFlags(flags, &o.runner, 5*time.Second)
	a.redactFlag(flags)
	a.secretFlag(flags)
	completeRedact(cmd)
	return cmd
}

// runUp composes
//
//	nats-server ◀─ connection ◀─ log ◀─ recorder, snapshotter, alerter, runner ◀─ console
//
// and stops them from right to left.
func (a hostVerbs) runUp(ctx context.Context, flags *pflag.FlagSet, o upOptions) error {
	dir, err := filepath.Abs(a.server.DataDir)
	if err != nil {
		return err
	}
	lock, err := service.LockDir(dir)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Unlock() }() // the end of the process does it, too
	if os.Getenv("GOGC") == "" {
		boundGarbage()
	}
	p := a.newProcess(ctx, "up", o.process, dir, dir)
	stop, err := p.serveHTTP(ctx)
	if err != nil {
		return err
	}
	defer stop()

	o.embedded.Dir, o.embedded.Names = filepath.Join(dir, "nats"), a.names
	server, err := startServer(ctx, o.embedded, a.log)
	if err != nil {
		return err
	}
	defer server.stop()
	nc, err := a.inProcess(ctx, server, server.creds)
	if err != nil {
		return err
	}
	defer nc.Close()
	o.topology.Names = a.names
	if _, err := initTopology(ctx, nc, o.topology); err != nil {
		return err
	}

	if p.o.stampKey == "" {
		if err := p.makeStamp(ctx, nc); err != nil {
			return err
		}
	}
	p.group.Add("nats-server", func(ctx context.Context) error { return server.Run(ctx, p.health) })
	if err := p.prepareLog(ctx, nc); err != nil {
		return err
	}
	var pages *console.Console
	o.alerter.link = func(a *wire.Alert) string { // is asked once all run
		if pages == nil {
			return ""
		}
		return pages.AnswerLink(a)
	}
	for _, s := range a.namedServices(&o) {
		if err := p.addService(ctx, s.name, s.construct); err != nil {
			return err
		}
	}
	pages, err = a.addConsole(p, flags, o.console, server)
	if err != nil {
		return err
	}
	if err := errors.Join(addListener(p, pages), addMirror(p, pages, o.runner.prices, o.watcher.idle)); err != nil {
		return err
	}
	defer func() { _ = os.Remove(service.URLFile(dir)) }() // a verb that finds one left behind says so
	p.group.Add("announcement", func(ctx context.Context) error { return a.announceServer(ctx, p, server.url, pages, o.demo) })
	return p.group.Run(ctx)
}

// namedService is a service and what makes it.
type namedService struct {
	name      string
	construct constructor
}

// namedServices are those that up runs, in the order in which they start. The runner
// is the last, so that it is stopped first.
func (a hostVerbs) namedServices(o *upOptions) []namedService {
	services := []namedService{
		{"recorder", a.newRecorder(&o.recorder)},
		{"snapshotter", newSnapshotter},
		{"alerter", newAlerter(a.alertsOf(*o), &o.alerter)},
	}
	if o.watch {
		o.watcher.prices = o.runner.prices
		services = append(services, namedService{"watcher", a.newWatcher(&o.watcher)})
	}
	return append(services, namedService{"runner", newRunner(&o.runner)})
}

// alertsOf returns where up prints alerts, or nil: programs read one value, and
// the demo prints them in the end.
func (a hostVerbs) alertsOf(o upOptions) io.Writer {
	if a.json || o.demo {
		return nil
	}
	return a.out
}

func (a *app) inProcess(ctx context.Context, server *embedded, creds string) (*nats.Conn, error) {
	settings := service.Server{
		URL:   strings.Replace(server.url, "tls://", "nats://", 1), // no other user can listen within the process
		Creds: creds, Name: "wake up", Timeout: serverStart, InProcess: server,
	}
	return settings.Connect(ctx, a.log)
}

// addConsole has the process serve the console. One that fails is told of, and ends nothing else.
func (a hostVerbs) addConsole(p *process, flags *pflag.FlagSet, o consoleOptions, server *embedded) (*console.Console, error) {
	s, err := a.openConsole(flags, o, p.dir, func(ctx context.Context) (*nats.Conn, error) { return a.consoleConnection(ctx, server) })
	if s == nil || err != nil {
		return nil, err
	}
	p.group.Add("console", func(ctx context.Context) error {
		if err := s.Run(ctx); err != nil {
			a.log.ErrorContext(ctx, "the console has ended", "error", err)
			<-ctx.Done()
		}
		return nil
	})
	return s, nil
}

// addListener has the console take what hooks of sessions on this machine report, where only this machine reaches it.
func addListener(p *process, pages *console.Console) error {
	if pages == nil || !strings.HasPrefix(pages.Address(), "http://") {
		return nil
	}
	id, err := runnerID(p.locked)
	if err != nil {
		return err
	}
	l, err := listener.New(listener.Config{
		ID: "hooks-" + id, URL: strings.TrimSuffix(pages.Address(), "/"), File: report.FileIn(p.dir),
	}, p.log, p.serviceLogger("listener"))
	if err != nil {
		return err
	}
	pages.TakeReports(l)
	p.keepPart("listener", l.Run)
	return nil
}

// addMirror has the console keep the sessions of programs.
func addMirror(p *process, pages *console.Console, priceFile string, idle time.Duration) error {
	if pages == nil {
		return nil
	}
	id, err := runnerID(p.locked)
	if err != nil {
		return err
	}
	prices, err := readPrices(priceFile)
	if err != nil {
		return err
	}
	m, err := mirror.New(mirror.Config{
		ID: "sessions-" + id, URL: strings.TrimSuffix(pages.Address(), "/"), File: filepath.Join(p.dir, "sessions-url"), Idle: idle, Prices: prices,
	}, p.log, p.serviceLogger("mirror"))
	if err != nil {
		return err
	}
	pages.KeepSessions(m)
	p.keepPart("mirror", m.Run)
	return nil
}

// consoleConnection is that of an operator, where there are users.
func (a *app) consoleConnection(ctx context.Context, server *embedded) (*nats.Conn, error) {
	creds := server.creds
	if creds != "" {
		creds = service.UserCreds(a.server.DataDir, access.Operator)
	}
	return a.inProcess(ctx, server, creds)
}

// announceServer tells where the server is once the services answer, and where
// clients find it.
func (a hostVerbs) announceServer(ctx context.Context, p *process, url string, pages *console.Console, demo bool) error {
	if !p.awaitServices(ctx) {
		return nil
	}
	if err := service.WriteURL(p.dir, url); err != nil {
		return err
	}
	if err := a.printUp(service.Address(url), pages); err != nil {
		return err
	}
	if demo {
		return a.runDemo(ctx, p)
	}
	<-ctx.Done()
	return nil
}

func (a hostVerbs) printUp(url string, pages *console.Console) error {
	if a.json {
		fields := map[string]string{"url": url, "dataDir": a.server.DataDir}
		if pages != nil {
			fields["console"] = pages.Address()
		}
		return a.printJSON(fields)
	}
	users := ""
	if dir := service.UsersDir(a.server.DataDir); service.HasUsers(a.server.DataDir) {
		users = ", users in " + dir
	}
	_, err := fmt.Fprintf(a.out, "wake is up: %s, data in %s%s\n", url, a.server.DataDir, users)
	if err == nil && pages != nil {
		_, err = fmt.Fprintf(a.out, "the console: %s\n", a.consoleText(pages, a.server.DataDir))
	}
	return err
}
