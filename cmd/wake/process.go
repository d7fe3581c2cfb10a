package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/internal/trial"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// processOptions are the settings of every process that runs services.
type processOptions struct {
	httpAddr  string
	pprofAddr string
	anywhere  bool // pprofAddr may be one that others can reach
	grace     time.Duration
	stampKey  string // file
}

func (o *processOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.httpAddr, "http-addr", "", "`address` for /healthz, /readyz and /metrics, such as 127.0.0.1:8080 (default: none)")
	flags.StringVar(&o.pprofAddr, "pprof-addr", "", "loopback `address` for profiles at /debug/pprof/, such as 127.0.0.1:6060 (default: none)")
	flags.BoolVar(&o.anywhere, "pprof-anywhere", false, "let --pprof-addr be one that others can reach; profiles show what is in memory")
	flags.DurationVar(&o.grace, "stop-timeout", 25*time.Second, "`how long` an orderly stop may take")
	flags.StringVar(&o.stampKey, "snapshot-key", "", "`file` of the key that vouches for the states of runs on the server (wake up makes DIR/snapshot.key; default of others: none is asked for)")
}

// process is a process that runs services on a connection:
//
//	connection ◀─ log ◀─ services
//
// It stops them from right to left.
type process struct {
	app     *app
	o       processOptions
	name    string          // such as up, or recorder
	dir     string          // of the services' files
	locked  string          // folder that no other process has at the same time
	ending  <-chan struct{} // closed when the process was told to end
	nc      *nats.Conn
	log     *eventlog.Log
	open    atomic.Pointer[eventlog.Log] // log, for goroutines that ask while it is being opened
	health  *health.Board
	alone   sync.Mutex // held by the service that handles an event that may have ended an earlier process
	group   service.Group
	metrics *prometheus.Registry
}

// runnable is a service.
type runnable interface {
	Run(ctx context.Context) error
}

// constructor makes a service of a process.
type constructor func(ctx context.Context, p *process) (runnable, error)

func (a *app) newProcess(ctx context.Context, name string, o processOptions, dir, locked string) *process {
	return &process{
		app: a, name: name, o: o, dir: dir, locked: locked, ending: ctx.Done(),
		group:   service.Group{Log: a.log, Grace: o.grace},
		health:  health.NewBoard(a.log),
		metrics: prometheus.NewRegistry(),
	}
}

// prepareLog opens the log on a connection.
func (p *process) prepareLog(ctx context.Context, nc *nats.Conn) error {
	p.nc = nc
	closed := nc.StatusChanged(nats.CLOSED)
	p.group.Add("connection", func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			nc.Close()
			return nil
		case <-closed:
			return serviceError(codeFailed, "the log says why; start it again", "the connection to NATS is closed for good")
		}
	})
	o, err := p.app.logOptions()
	if err != nil {
		return err
	}
	if o.Redact, err = p.app.secretSet(); err != nil {
		return err
	}
	if o.Stamp, err = p.stamp(); err != nil {
		return err
	}
	o.Health, o.Service = p.health, p.name
	if p.name == "up" {
		o.Service = "snapshotter" // no service is named up
	}
	o.SpoolDir = filepath.Join(p.dir, "spool", p.name)
	if err := p.app.retryUntil(ctx, "the log", func(ctx context.Context) (err error) {
		p.log, err = eventlog.Open(ctx, p.nc, o)
		return err
	}); err != nil {
		return p.app.explainServer(ctx, p.nc, err)
	}
	if err := service.BindDir(p.locked, p.log.Incarnation(), p.app.names.Prefix(), filepath.Join(p.locked, "keepers"), o.SpoolDir); err != nil {
		return err
	}
	if err := p.app.retryUntil(ctx, "which key is in use", p.log.UseKeys); err != nil {
		return err
	}
	p.open.Store(p.log)
	p.metrics.MustRegister(slices.Concat(processMetrics(p.nc), p.troubleMetrics())...)
	p.metrics.MustRegister(p.log)
	p.group.Add("log", p.log.Run)
	p.group.Add("health", p.publishHealth)
	p.group.Add("memory", releaseMemory)
	return nil
}

// stamp reads the key that vouches for states; nil without.
func (p *process) stamp() (*seal.Stamp, error) {
	if p.o.stampKey == "" {
		return nil, nil
	}
	s, err := seal.LoadStamp(p.o.stampKey)
	if err != nil {
		return nil, usageError("take that of wake up: DIR/snapshot.key", "--snapshot-key: %w", err)
	}
	return s, nil
}

// stampFile is where wake up keeps the key that vouches for states.
func stampFile(dir string) string { return filepath.Join(dir, "snapshot.key") }

// makeStamp makes the key that vouches for states, if there is none in the folder, and has it vouch for those that
// are there already.
func (p *process) makeStamp(ctx context.Context, nc *nats.Conn) error {
	p.o.stampKey = stampFile(p.dir)
	if _, err := os.Stat(p.o.stampKey); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	o, err := p.app.logOptions()
	if err != nil {
		return err
	}
	o.Stamp = seal.NewStamp()
	if err := p.app.retryUntil(ctx, "states of runs", func(ctx context.Context) error {
		log, err := eventlog.Open(ctx, nc, o)
		if err != nil {
			return err
		}
		return log.StampAll(ctx)
	}); err != nil {
		return err
	}
	return o.Stamp.Write(p.o.stampKey)
}

// serveHTTP serves health and metrics, and profiles if that is wanted, from before
// the process is connected until the returned function is called: that it waits for
// a server is no reason to restart it, nor that it ends slowly.
func (p *process) serveHTTP(ctx context.Context) (stop func(), err error) {
	stops := []func(){}
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	if p.o.httpAddr != "" {
		p.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		server, err := service.ListenHTTP(p.o.httpAddr, p.metrics, p.readyError)
		if err != nil {
			return nil, err
		}
		stops = append(stops, p.serveOn(ctx, "health and metrics", server))
	}
	if p.o.pprofAddr != "" {
		server, err := service.ListenProfiles(p.o.pprofAddr, p.o.anywhere)
		if err != nil {
			stop()
			return nil, err
		}
		stops = append(stops, p.serveOn(ctx, "profiles", server))
	}
	return stop, nil
}

// serveOn serves until the returned function is called.
func (p *process) serveOn(ctx context.Context, what string, server *service.HTTP) (stop func()) {
	p.app.log.InfoContext(ctx, "serving", "what", what, "addr", server.Addr())
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Run(serving); err != nil {
			p.app.log.ErrorContext(ctx, "serving ended", "what", what, "error", err)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// readyError says why the process can't work right now. One that was told to end takes
// no more work, although it still has some.
func (p *process) readyError() error {
	select {
	case <-p.ending:
		return errors.New("ending")
	default:
	}
	log := p.open.Load()
	if log == nil {
		return errors.New("waiting for the server or its streams")
	}
	if !log.Conn().IsConnected() {
		return errors.New("not connected to NATS")
	}
	return errors.Join(log.Health(), p.health.Err())
}

// trial is that of the events of a service. No other process has the folder, as no other has the spool's.
func (p *process) trial(service string) *trial.Trial {
	t, err := trial.Open(filepath.Join(p.dir, "trial", p.name), service, p.log.Incarnation(), &p.alone)
	if err != nil {
		p.app.log.Warn("events that end this process are not set aside", "service", service, "error", err)
	}
	return t
}

func (p *process) serviceLogger(service string) *slog.Logger {
	return p.app.log.With("service", service)
}

// addService makes a service and adds it to the group, with its metrics if it has some. What fails in
// it later, it begins again.
func (p *process) addService(ctx context.Context, name string, construct constructor) error {
	s, err := construct(ctx, p)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if c, ok := s.(prometheus.Collector); ok {
		p.metrics.MustRegister(c)
	}
	if name == "runner" { // which keeps its own parts, since it can't be begun again
		p.group.Add(name, s.Run)
	} else {
		p.keepPart(name, s.Run)
	}
	return nil
}

// keepPart adds a part that is begun again when it fails, however often: what observes agents
// ends none, and no process ends since its server or its disk falters.
func (p *process) keepPart(name string, run func(context.Context) error) {
	p.group.Add(name, func(ctx context.Context) error { return p.health.Keep(ctx, name, isLasting, run) })
}

// isLasting reports whether an error doesn't go away by itself: settings are wrong, or
// the log is another one.
func isLasting(err error) bool {
	return errors.Is(err, eventlog.ErrIncarnation) || recorder.Lasting(err) || errors.Is(err, seal.ErrNoKey) || errors.Is(err, seal.ErrForged) ||
		errors.Is(err, nats.ErrConnectionClosed)
}

// serviceCommand is the verb that runs one service against a server.
func (a *app) serviceCommand(name, short string, flags func(*pflag.FlagSet), construct constructor) *cobra.Command {
	var o processOptions
	cmd := &cobra.Command{
		Use:         name,
		Short:       short,
		Long:        short + ".\n\nThe server has been prepared by `wake init`.",
		Annotations: map[string]string{annotationService: name},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.runService(cmd.Context(), name, o, construct)
		},
	}
	o.addFlags(cmd.Flags())
	a.waitFlag(cmd.Flags())
	flags(cmd.Flags())
	completeRedact(cmd)
	return cmd
}

// waitFlag adds the flag for processes that start together with their server.
func (a *app) waitFlag(flags *pflag.FlagSet) {
	flags.DurationVar(&a.server.Wait, "wait", 0, "`how long` to wait for a server that doesn't answer, or isn't prepared, yet")
}

func (a *app) runService(ctx context.Context, name string, o processOptions, construct constructor) error {
	dir, err := filepath.Abs(a.server.DataDir)
	if err != nil {
		return err
	}
	locked := filepath.Join(dir, name)
	p := a.newProcess(ctx, name, o, dir, locked)
	stop, err := p.serveHTTP(ctx)
	if err != nil {
		return err
	}
	defer stop()
	nc, err := a.server.Connect(ctx, a.log)
	if err != nil {
		return err
	}
	defer nc.Close()
	if err := needStreams(nc, "wake "+name+" needs those of the role "+string(a.server.Role)); err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if err := a.verifyStreams(ctx, js); err != nil {
		return a.explainServer(ctx, nc, err)
	}
	lock, err := service.LockDir(locked)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Unlock() }() // the end of the process does it, too
	if err := p.prepareLog(ctx, nc); err != nil {
		return err
	}
	if err := p.addService(ctx, name, construct); err != nil {
		return err
	}
	a.log.InfoContext(ctx, "running", "service", name, "server", service.Address(nc.ConnectedUrl()))
	return p.group.Run(ctx)
}

// needStreams refuses credentials of a user who may only ask services: it says at once what each question would
// wait for.
func needStreams(nc *nats.Conn, needed string) error {
	user, err := access.WithoutStreams(nc)
	if err != nil || user == "" {
		return err
	}
	return serviceError(service.CodeDenied, "give them with --creds; `wake auth user NAME --role ROLE` makes some", "the credentials are those of user %s, who has no streams: %s", user, needed)
}

// attemptTime bounds an attempt that is followed by another one.
const attemptTime = 5 * time.Second

// verifyStreams checks the streams. As long as for the server it waits for those that
// aren't as they should be: `wake init` may be under way, and while a cluster comes
// up streams have no leader.
func (a *app) verifyStreams(ctx context.Context, js jetstream.JetStream) error {
	return a.retryUntil(ctx, "the streams", func(ctx context.Context) error { return topology.Verify(ctx, js, a.names) })
}

// retryUntil tries until it works, for as long as --wait allows, or what is wrong won't go away.
// The last try has no other bound than the context.
func (a *app) retryUntil(ctx context.Context, what string, try func(context.Context) error) error {
	for deadline := time.Now().Add(a.server.Wait); time.Now().Before(deadline); {
		attempt, cancel := context.WithTimeout(ctx, attemptTime)
		err := try(attempt)
		cancel()
		if err == nil || isLasting(err) {
			return err
		}
		a.log.InfoContext(ctx, "waiting", "for", what, "error", err)
		select {
		case <-time.After(a.server.Timeout):
		case <-ctx.Done():
			return err
		}
	}
	return try(ctx)
}

// awaitServices waits until the services that answer questions do so, or are in trouble. It
// returns false if ctx ends before.
func (p *process) awaitServices(ctx context.Context) bool {
	for _, verb := range []string{wire.VerbRuns, wire.VerbSnapshot} {
		for p.health.Err() == nil {
			_, err := api.Call[wire.Raw](ctx, p.nc, p.app.names, verb, struct{}{})
			if !wire.HasCode(err, wire.CodeUnreachable) {
				break // whatever it says, it answers
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return false
			}
		}
	}
	return ctx.Err() == nil
}
