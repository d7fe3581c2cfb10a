package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"wake/internal/api"
	"wake/internal/eventlog"
	"wake/internal/service"
	"wake/internal/topology"
	"wake/pkg/wire"
)

// processOptions are the settings of every process that runs services.
type processOptions struct {
	httpAddr  string
	pprofAddr string
	anywhere  bool // pprofAddr may be one that others can reach
	grace     time.Duration
}

func (o *processOptions) flags(flags *pflag.FlagSet) {
	flags.StringVar(&o.httpAddr, "http-addr", "", "`address` for /healthz, /readyz and /metrics, such as 127.0.0.1:8080 (default: none)")
	flags.StringVar(&o.pprofAddr, "pprof-addr", "", "loopback `address` for profiles at /debug/pprof/, such as 127.0.0.1:6060 (default: none)")
	flags.BoolVar(&o.anywhere, "pprof-anywhere", false, "let --pprof-addr be one that others can reach; profiles show what is in memory")
	flags.DurationVar(&o.grace, "stop-timeout", 25*time.Second, "`how long` an orderly stop may take")
}

// process is a process that runs services on a connection:
//
//	connection ◀─ log ◀─ services
//
// It stops them from right to left.
type process struct {
	app     *app
	o       processOptions
	dir     string          // of the services' files
	locked  string          // folder that no other process has at the same time
	ending  <-chan struct{} // closed when the process was told to end
	nc      *nats.Conn
	log     *eventlog.Log
	open    atomic.Pointer[eventlog.Log] // log, for whoever asks while it is being opened
	group   service.Group
	metrics *prometheus.Registry
}

// runnable is a service.
type runnable interface {
	Run(ctx context.Context) error
}

// constructor makes a service of a process.
type constructor func(ctx context.Context, p *process) (runnable, error)

func (a *app) newProcess(ctx context.Context, o processOptions, dir, locked string) *process {
	return &process{
		app: a, o: o, dir: dir, locked: locked, ending: ctx.Done(),
		group:   service.Group{Log: a.log, Grace: o.grace},
		metrics: prometheus.NewRegistry(),
	}
}

// prepare opens the log on a connection, under name, which names the process among
// those of its folder.
func (p *process) prepare(ctx context.Context, nc *nats.Conn, name string) error {
	p.nc = nc
	p.group.Add("connection", func(ctx context.Context) error {
		<-ctx.Done()
		p.nc.Close()
		return nil
	})
	o, err := p.app.logOptions()
	if err != nil {
		return err
	}
	if o.Redact, err = p.app.secrets(); err != nil {
		return err
	}
	o.SpoolDir = filepath.Join(p.dir, "spool", name)
	log, err := eventlog.Open(ctx, p.nc, o)
	if err != nil {
		return p.app.explain(ctx, p.nc, err)
	}
	if err := log.UseKeys(ctx); err != nil {
		return err
	}
	p.log = log
	p.open.Store(log)
	p.metrics.MustRegister(processMetrics(p.nc), log)
	p.group.Add("log", log.Run)
	return nil
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
		server, err := service.ListenHTTP(p.o.httpAddr, p.metrics, p.ready)
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

// ready says why the process can't work right now. One that was told to end takes
// no more work, although it still has some.
func (p *process) ready() error {
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
	return log.Health()
}

// logger is the logger of a service.
func (p *process) logger(service string) *slog.Logger { return p.app.log.With("service", service) }

// add makes a service and adds it to the group, with its metrics if it has some.
func (p *process) add(ctx context.Context, name string, construct constructor) error {
	s, err := construct(ctx, p)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if c, ok := s.(prometheus.Collector); ok {
		p.metrics.MustRegister(c)
	}
	p.group.Add(name, s.Run)
	return nil
}

// serviceCommand is the verb that runs one service against a server.
func (a *app) serviceCommand(name, short string, flags func(*pflag.FlagSet), construct constructor) *cobra.Command {
	var o processOptions
	cmd := &cobra.Command{
		Use:         name,
		Short:       short,
		Long:        short + ".\n\nThe server has been prepared by `wake init`.",
		Args:        cobra.NoArgs,
		Annotations: map[string]string{annotationService: name},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.serve(cmd.Context(), name, o, construct)
		},
	}
	o.flags(cmd.Flags())
	a.waitFlag(cmd.Flags())
	flags(cmd.Flags())
	completeRedact(cmd)
	return cmd
}

// waitFlag adds the flag for processes that start together with their server.
func (a *app) waitFlag(flags *pflag.FlagSet) {
	flags.DurationVar(&a.server.Wait, "wait", 0, "`how long` to wait for a server that doesn't answer, or isn't prepared, yet")
}

func (a *app) serve(ctx context.Context, name string, o processOptions, construct constructor) error {
	dir, err := filepath.Abs(a.server.DataDir)
	if err != nil {
		return err
	}
	locked := filepath.Join(dir, name)
	p := a.newProcess(ctx, o, dir, locked)
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
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if err := a.verify(ctx, js); err != nil {
		return a.explain(ctx, nc, err)
	}
	lock, err := service.LockDir(locked)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Unlock() }() // the end of the process does it, too
	if err := p.prepare(ctx, nc, name); err != nil {
		return err
	}
	if err := p.add(ctx, name, construct); err != nil {
		return err
	}
	a.log.InfoContext(ctx, "running", "service", name, "server", nc.ConnectedUrlRedacted())
	return p.group.Run(ctx)
}

// attemptTime bounds an attempt that is followed by another one.
const attemptTime = 5 * time.Second

// verify checks the streams. As long as for the server it waits for those that
// aren't as they should be: `wake init` may be under way, and while a cluster comes
// up streams have no leader.
func (a *app) verify(ctx context.Context, js jetstream.JetStream) error {
	return a.retry(ctx, "the streams", func(ctx context.Context) error { return topology.Verify(ctx, js, a.names) })
}

// retry tries until it works, for as long as --wait allows. The last try has no
// other bound than the context.
func (a *app) retry(ctx context.Context, what string, try func(context.Context) error) error {
	for deadline := time.Now().Add(a.server.Wait); time.Now().Before(deadline); {
		attempt, cancel := context.WithTimeout(ctx, attemptTime)
		err := try(attempt)
		cancel()
		if err == nil {
			return nil
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

// answering waits until the services that answer questions do so. It returns
// false if ctx ends before.
func (p *process) answering(ctx context.Context) bool {
	for _, verb := range []string{wire.VerbRuns, wire.VerbSnapshot} {
		for {
			_, err := api.Call[wire.Raw](ctx, p.nc, p.app.names, verb, struct{}{})
			if e, ok := errors.AsType[*wire.APIError](err); !ok || e.Code != wire.CodeUnreachable {
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
