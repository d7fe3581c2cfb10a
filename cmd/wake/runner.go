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
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/acp"
	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/agent/codex"
	"code.wake.dev/wake/internal/agent/fixture"
	"code.wake.dev/wake/internal/agent/native"
	"code.wake.dev/wake/internal/inlet"
	"code.wake.dev/wake/internal/keeper"
	programs "code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/tracing"
	"code.wake.dev/wake/services/runner"
)

// runnerOptions are the settings of a runner.
type runnerOptions struct {
	config  runner.Config
	claude  string
	prices  string // file
	user    string // that agents run as
	keepers keepers
}

// keepers are the settings of what holds agents.
type keepers struct {
	fence  string
	orphan time.Duration
	limit  byteSize
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
	flags.IntVar(&o.config.MaxTrials, "max-trials", 3, "`how many` processes may end while they take a run over until it is set aside (ENDED_ITS_RUNNER)")
	flags.IntVar(&o.config.NodeTrials, "node-trials", 9, "`how many` processes may end while they execute a node of it that doesn't get on, until the run is set aside; the same for all runners")
	flags.DurationVar(&o.config.WorkspaceGrace, "workspace-grace", time.Minute, "`how long` a run waits for the runner that has its folder until it goes on elsewhere with the last snapshot of it, or is paused")
	flags.DurationVar(&o.config.ParkAfter, "park-after", 0, "`how long` a run that only waits, for a time or a command, keeps its owner; then it costs some hundred bytes until it is woken (default: it keeps it)")
	flags.BoolVar(&o.config.KeepFolders, "workspace-snapshots", true, "keep what is in the folders of runs, so that forks and other runners find them as they were")
	flags.DurationVar(&o.config.PersistTimeout, "persist-timeout", 0, "`how long` an agent waits for storage; the time for which its keeper has stopped it doesn't count (default: 30s)")
	flags.BoolVar(&o.config.LeaveAgents, "leave-agents", true, "agents and commands that are still at work then go on in their keepers until the runner is back; else they are interrupted")
	flags.StringVar(&o.user, "agent-user", "", "`user` that agents and commands run as, so that they can't read what is the runner's: by name or number; only root may (default: the runner's own)")
	flags.StringVar(&o.keepers.fence, "fence", "auto", "`how` agents are kept from outliving their keeper: namespace, user-namespace or watchdogs, auto (the strongest that the host allows), or none (no keepers)")
	flags.DurationVar(&o.keepers.orphan, "orphan-timeout", 10*time.Minute, "`how long` agents of a runner that doesn't come back are kept, frozen")
	o.keepers.limit = 256 << 20
	flags.Var(&o.keepers.limit, "journal-limit", "`size` of an agent's journal at which the agent waits")
	pricesFlag(flags, &o.prices)
	flags.StringVar(&o.claude, "claude", "claude", "Claude Code `program`")
}

// minJournal is the least that a journal may have: what an agent's call and its result may need at once.
const minJournal = 32_000_000

// checkBounds fails for numbers that nobody can mean: a default in their place would pass for what was asked for.
func (o *runnerOptions) checkBounds() error {
	c := o.config
	for _, b := range []struct {
		flag       string
		given, min int64
		least      string
	}{
		{"max-agents", int64(c.MaxAgents), 1, "1"}, {"max-waiting", int64(c.MaxWaiting), 0, "0"},
		{"max-trials", int64(c.MaxTrials), 1, "1"}, {"node-trials", int64(c.NodeTrials), 1, "1"},
		{"workspace-grace", int64(c.WorkspaceGrace), 0, "0s"}, {"park-after", int64(c.ParkAfter), 0, "0s"},
		{"persist-timeout", int64(c.PersistTimeout), 0, "0s"}, {"orphan-timeout", int64(o.keepers.orphan), int64(time.Second), "1s"},
		{"journal-limit", int64(o.keepers.limit), minJournal, "32MB"},
	} {
		if b.given < b.min {
			return usageError("leave it out for the default", "--%s: at least %s is needed", b.flag, b.least)
		}
	}
	return nil
}

func newRunner(o *runnerOptions) constructor {
	return func(ctx context.Context, p *process) (runnable, error) {
		c := o.config
		c.Health = p.health
		c.Private = []string{p.dir}
		c.Folders = []string{filepath.Join(p.dir, "spool", p.name), filepath.Join(p.locked, "keepers")}
		err := cmp.Or(checkDrain(c.DrainTimeout, p.o.grace), o.checkBounds())
		if err != nil {
			return nil, err
		}
		if c.Home, err = runnerID(p.locked); err != nil {
			return nil, err
		}
		c.ID = cmp.Or(c.ID, c.Home)
		if c.Workspaces, err = filepath.Abs(cmp.Or(c.Workspaces, filepath.Join(p.dir, "workspaces"))); err != nil { // links in them are told by it
			return nil, err
		}
		if c.User, err = agentUser(o.user, c.Workspaces, p.dir, o.keepers.fence); err != nil {
			return nil, err
		}
		if c.Secrets, err = p.app.givenSecrets(); err != nil {
			return nil, err
		}
		if c.Prices, err = readPrices(o.prices); err != nil {
			return nil, err
		}
		log := p.serviceLogger("runner")
		if err := programs.Conceal(); err != nil { // keys are in its environment, and agents run commands
			return nil, err
		}
		debug.SetTraceback("crash")  // a panic ends it by a signal: exit code 2 is wrong use, see wake supervise
		self, err := os.Executable() // agents start it for its tools
		if err != nil {
			return nil, err
		}
		c.Providers = map[string]agent.Provider{
			"claude": &claude.Provider{Binary: o.claude, User: c.User, Environ: os.Environ(), Logger: log},
			"native": &native.Provider{User: c.User, Environ: os.Environ(), Logger: log},
			"acp":    &acp.Provider{User: c.User, Environ: os.Environ(), Parent: []string{self, "mcp", "parent"}, Logger: log},
			"codex":  &codex.Provider{User: c.User, Environ: os.Environ(), Parent: []string{self, "mcp", "parent"}, Logger: log},
		}
		if c.Shelf, err = p.openKeepers(ctx, c.Home, c.User, o.keepers); err != nil {
			return nil, err
		}
		c.Ask = p.askSubject
		c.Fixtures = func(dir string) (agent.Provider, error) { return &fixture.Provider{Dir: dir}, nil }
		p.keepPart("ingest", inlet.NewServer(p.log, p.dir, c.Prices, log).Run)
		return runner.New(c, p.log, log)
	}
}

// agentUser finds the user that agents run as, nil for the runner's own, and lets it pass
// through the data directory to the folders of runs, without looking around there.
func agentUser(name, workspaces, dir, fence string) (*programs.User, error) {
	if name == "" {
		return nil, nil
	}
	if fence == "none" {
		return nil, usageError("leave --fence as it is", "--agent-user: keepers start programs as another user, and there are none")
	}
	user, err := programs.FindUser(name)
	if err != nil {
		return nil, usageError("run the runner as root, or in a container of its own", "--agent-user: %w", err)
	}
	if err := os.MkdirAll(workspaces, 0o711); err != nil {
		return nil, usageError("choose other --workspaces", "--agent-user: %w", err)
	}
	for _, passed := range []string{dir, workspaces} {
		info, err := os.Stat(passed)
		if err == nil && info.Mode()&0o001 == 0 {
			err = os.Chmod(passed, info.Mode()|0o011)
		}
		if err != nil {
			return nil, usageError("choose other --workspaces", "--agent-user: %w", err)
		}
	}
	path, err := filepath.Abs(workspaces)
	for ; err == nil && path != filepath.Dir(path); path = filepath.Dir(path) {
		info, e := os.Stat(path)
		if e == nil && info.Mode()&0o001 == 0 {
			e = fmt.Errorf("%s can't pass through %s", user.Name, path)
		}
		if e != nil {
			return nil, usageError("choose other --workspaces", "--agent-user: %w", e)
		}
	}
	return user, err
}

// openKeepers opens the keepers of the runner's agents, beside its lock: no other runner has them at
// the same time.
func (p *process) openKeepers(ctx context.Context, home string, user *programs.User, o keepers) (*keeper.Shelf, error) {
	if o.fence == "none" || runtime.GOOS != "linux" {
		return nil, nil
	}
	c := keeper.ShelfConfig{Dir: filepath.Join(p.locked, "keepers"), Home: home, User: user, Limit: int64(o.limit), Orphan: o.orphan}
	switch f := keeper.Fence(o.fence); f {
	case keeper.Namespace, keeper.UserNamespace, keeper.Watchdogs:
		c.Fence = f
	default:
		if o.fence != "auto" {
			return nil, usageError("one of auto, namespace, user-namespace, watchdogs, none", "--fence: %q is none", o.fence)
		}
	}
	if keys := p.log.Keys(); keys != nil {
		c.Seal, c.Unseal = keys.Value, keys.OpenValue
	}
	shelf, err := keeper.NewShelf(ctx, c)
	if err != nil {
		return nil, err
	}
	p.serviceLogger("runner").Info("agents are held by keepers", "fence", shelf.Means())
	return shelf, nil
}

// askSubject asks a subject, for hooks of agents: one of others, or of wake.hooks.>. A flow has
// no say on wake's own.
func (p *process) askSubject(ctx context.Context, subject string, question []byte) ([]byte, error) {
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
		return usageError("such as 20s", "--drain-timeout: %s is no time", drain)
	case drain >= stop:
		return usageError("give --stop-timeout "+(drain+5*time.Second).String(), "--stop-timeout: %s is not longer than the drain, which may take %s", stop, drain)
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

func (a hostVerbs) runnerCommand() *cobra.Command {
	var o runnerOptions
	return a.serviceCommand("runner", "Own runs and work on their nodes",
		func(flags *pflag.FlagSet) {
			runnerFlags(flags, &o, 20*time.Second)
			a.redactFlag(flags)
			a.secretFlag(flags)
		}, newRunner(&o))
}
