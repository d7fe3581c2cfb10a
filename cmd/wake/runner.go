package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"wake/internal/agent"
	"wake/internal/agent/claude"
	"wake/internal/agent/fixture"
	"wake/internal/agent/native"
	programs "wake/internal/process"
	"wake/internal/tracing"
	"wake/services/runner"
)

// runnerOptions are the settings of a runner.
type runnerOptions struct {
	config runner.Config
	claude string
}

// runnerFlags adds the settings of a runner to a set of flags. Drain is how long
// agents have for coming to a safe point when the process is told to stop.
func runnerFlags(flags *pflag.FlagSet, o *runnerOptions, drain time.Duration) {
	flags.StringVar(&o.config.ID, "runner-id", "", "`name` of the runner in claims and leases (default: one that is kept in a file runner-id)")
	flags.IntVar(&o.config.MaxAgents, "max-agents", 8, "`number` of agents and commands that run at once")
	flags.IntVar(&o.config.MaxWaiting, "max-waiting", 0, "`number` of agents that wait for a person, keep their process and leave their place to others (default: 4 times --max-agents)")
	flags.StringSliceVar(&o.config.Pools, "pool", []string{"default"}, "`pools` of nodes to take from, besides the runner's own")
	flags.StringVar(&o.config.Workspaces, "workspaces", "", "`folder` in which runs get their own (default: DIR/workspaces)")
	flags.DurationVar(&o.config.DrainTimeout, "drain-timeout", drain, "`how long` agents and commands may take to come to a safe point when the runner is told to stop")
	flags.DurationVar(&o.config.WorkspaceGrace, "workspace-grace", time.Minute, "`how long` a run waits for the runner that has its folder until it is paused")
	flags.DurationVar(&o.config.PersistTimeout, "persist-timeout", 0, "`how long` an agent waits for storage (default: 30s)")
	flags.StringVar(&o.claude, "claude", "claude", "Claude Code `program`")
}

func newRunner(o *runnerOptions) constructor {
	return func(_ context.Context, p *process) (runnable, error) {
		c := o.config
		if err := checkDrain(c.DrainTimeout, p.o.grace); err != nil {
			return nil, err
		}
		var err error
		if c.Home, err = runnerID(p.locked); err != nil {
			return nil, err
		}
		c.ID = cmp.Or(c.ID, c.Home)
		if c.Workspaces == "" {
			c.Workspaces = filepath.Join(p.dir, "workspaces")
		}
		if c.Secrets, err = p.app.givenSecrets(); err != nil {
			return nil, err
		}
		log := p.logger("runner")
		if err := programs.Conceal(); err != nil { // keys are in its environment, and agents run commands
			return nil, err
		}
		c.Providers = map[string]agent.Provider{
			"claude": &claude.Provider{Binary: o.claude, Environ: os.Environ(), Logger: log},
			"native": &native.Provider{Environ: os.Environ(), Logger: log},
		}
		c.Ask = p.ask
		c.Fixtures = func(dir string) (agent.Provider, error) { return &fixture.Provider{Dir: dir}, nil }
		return runner.New(c, p.log, log)
	}
}

// ask asks a subject, for hooks of agents: one of others, or of wake.hooks.>. A flow has
// no say on wake's own.
func (p *process) ask(ctx context.Context, subject string, question []byte) ([]byte, error) {
	own := p.app.names.Prefix() + "."
	if strings.HasPrefix(subject, own) && !strings.HasPrefix(subject, own+"hooks.") {
		return nil, fmt.Errorf("subject %s is wake's own; those of hooks begin with %shooks", subject, own)
	}
	ask := &nats.Msg{Subject: subject, Data: question, Header: nats.Header{}}
	tracing.Inject(ctx, ask.Header)
	m, err := p.nc.RequestMsgWithContext(ctx, ask)
	if err != nil {
		return nil, err
	}
	if problem := m.Header.Get(micro.ErrorHeader); problem != "" {
		return nil, fmt.Errorf("it answers with the error %s", problem)
	}
	return m.Data, nil
}

// checkDrain checks that an orderly stop leaves time for the drain.
func checkDrain(drain, stop time.Duration) error {
	switch {
	case drain <= 0:
		return usage("such as 20s", "--drain-timeout: %s is no time", drain)
	case drain >= stop:
		return usage("give --stop-timeout "+(drain+5*time.Second).String(), "--stop-timeout: %s is not longer than the drain, which may take %s", stop, drain)
	}
	return nil
}

// runnerID returns the name that a runner keeps across restarts: folders of runs
// stay with it, and leases under it are its own. So dir is one that only one
// process at a time has, by its lock.
func runnerID(dir string) (string, error) {
	path := filepath.Join(dir, "runner-id")
	b, err := os.ReadFile(path)
	if err == nil && len(strings.TrimSpace(string(b))) > 0 {
		return strings.TrimSpace(string(b)), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("name of the runner: %w", err)
	}
	id, err := ulid.New(ulid.Now(), rand.Reader)
	if err != nil {
		return "", fmt.Errorf("name of the runner: %w", err)
	}
	name := strings.ToLower(id.String())
	if err := os.WriteFile(path, []byte(name+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("name of the runner: %w", err)
	}
	return name, nil
}

func (a *app) runnerCommand() *cobra.Command {
	var o runnerOptions
	return a.serviceCommand("runner", "Own runs and work on their nodes",
		func(flags *pflag.FlagSet) {
			runnerFlags(flags, &o, 20*time.Second)
			a.redactFlag(flags)
			a.secretFlag(flags)
		}, newRunner(&o))
}
