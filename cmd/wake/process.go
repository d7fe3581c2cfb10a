package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
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
	httpAddr string
	grace    time.Duration
}

func (o *processOptions) flags(flags *pflag.FlagSet) {
	flags.StringVar(&o.httpAddr, "http-addr", "", "`address` for /healthz, /readyz and /metrics, such as 127.0.0.1:8080 (default: none)")
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
	dir     string // of the services' files
	locked  string // folder that no other process has at the same time
	nc      *nats.Conn
	log     *eventlog.Log
	group   service.Group
	metrics *prometheus.Registry
}

// runnable is a service.
type runnable interface {
	Run(ctx context.Context) error
}

// constructor makes a service of a process.
type constructor func(ctx context.Context, p *process) (runnable, error)

func (a *app) newProcess(o processOptions, dir, locked string, nc *nats.Conn) *process {
	return &process{
		app: a, o: o, dir: dir, locked: locked, nc: nc,
		group:   service.Group{Log: a.log, Grace: o.grace},
		metrics: prometheus.NewRegistry(),
	}
}

// prepare opens the log under name, which names the process among those of its
// folder.
func (p *process) prepare(ctx context.Context, name string) error {
	p.group.Add("connection", func(ctx context.Context) error {
		<-ctx.Done()
		p.nc.Close()
		return nil
	})
	log, err := eventlog.Open(ctx, p.nc, eventlog.Options{
		Names: p.app.names, Logger: p.app.log, SpoolDir: filepath.Join(p.dir, "spool", name),
	})
	if err != nil {
		return p.app.explain(ctx, p.nc, err)
	}
	p.log = log
	p.group.Add("log", log.Run)
	return p.serveHTTP()
}

func (p *process) serveHTTP() error {
	if p.o.httpAddr == "" {
		return nil
	}
	p.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), natsMetrics(p.nc))
	server, err := service.ListenHTTP(p.o.httpAddr, p.metrics, p.ready)
	if err != nil {
		return err
	}
	p.app.log.Info("health and metrics", "addr", server.Addr())
	p.group.Add("http", server.Run)
	return nil
}

// ready says why the process can't work right now.
func (p *process) ready() error {
	if !p.nc.IsConnected() {
		return errors.New("not connected to NATS")
	}
	return p.log.Health()
}

func natsMetrics(nc *nats.Conn) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "wake_nats_reconnects_total", Help: "How often the connection to NATS was made again.",
	}, func() float64 { return float64(nc.Stats().Reconnects) })
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
	cmd.Flags().DurationVar(&a.server.Wait, "wait", 0, "`how long` to wait for a server that doesn't answer yet")
	flags(cmd.Flags())
	return cmd
}

func (a *app) serve(ctx context.Context, name string, o processOptions, construct constructor) error {
	dir, err := filepath.Abs(a.server.DataDir)
	if err != nil {
		return err
	}
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
	locked := filepath.Join(dir, name)
	lock, err := service.LockDir(locked)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Unlock() }()
	p := a.newProcess(o, dir, locked, nc)
	if err := p.prepare(ctx, name); err != nil {
		return err
	}
	if err := p.add(ctx, name, construct); err != nil {
		return err
	}
	a.log.InfoContext(ctx, "running", "service", name, "server", nc.ConnectedUrlRedacted())
	return p.group.Run(ctx)
}

// verifyAttempt bounds a check of the streams that is followed by another one.
const verifyAttempt = 5 * time.Second

// verify checks the streams, and waits for those that can't be asked for at present
// as long as for the server: while a cluster comes up, they have no leader.
func (a *app) verify(ctx context.Context, js jetstream.JetStream) error {
	for deadline := time.Now().Add(a.server.Wait); time.Now().Before(deadline); {
		attempt, cancel := context.WithTimeout(ctx, verifyAttempt)
		err := topology.Verify(attempt, js, a.names)
		cancel()
		if _, wrong := errors.AsType[*topology.Mismatch](err); err == nil || wrong {
			return err
		}
		a.log.InfoContext(ctx, "waiting for the streams", "error", err)
		select {
		case <-time.After(a.server.Timeout):
		case <-ctx.Done():
			return err
		}
	}
	return topology.Verify(ctx, js, a.names)
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
