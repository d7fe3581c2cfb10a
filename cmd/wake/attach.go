package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

func (a viewVerbs) attachCommand() *cobra.Command {
	lines := 50
	cmd := &cobra.Command{
		Use:   "attach RUN [NODE]",
		Short: "See the agents of a run work, and talk to them, in a terminal",
		Long: `See the agents of a run work, and talk to them, in a terminal: text as it comes, calls with
how long they have been at work, what edits change, sub-agents below who has begun them. NODE
shows that node only.

What is typed goes to the agent at work (tab chooses which), answers what it asks, or resumes a
run that is paused. Esc stops the agent before it reads what was typed; with nothing typed,
pressed twice, it pauses the run. Ctrl-Y allows and Ctrl-N refuses a call that waits for a
decision; what was typed is the reason.

Ctrl-C twice, or Ctrl-D, leaves. The run goes on, and wake attach comes back to it.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if lines < 0 || lines > wire.MaxLogLimit {
				return usageError("", "--lines: 0 to %d can be shown", wire.MaxLogLimit)
			}
			node := ""
			if len(args) > 1 {
				node = args[1]
			}
			last, err := a.attachRun(cmd.Context(), args[0], node, lines)
			if err == nil && last != nil {
				err = outcomeError(last.RunID, last)
			}
			return interruptError(cmd.Context(), err)
		},
	}
	cmd.Flags().IntVar(&lines, "lines", lines, "begin with this `many` lines of the log")
	return cmd
}

// attachRun attaches the terminal to a run until the user leaves it or it ends; then it returns its last event.
func (a viewVerbs) attachRun(ctx context.Context, ref, node string, lines int) (*wire.Event, error) {
	if a.json || !canDraw(a.out) || !service.IsTerminal(a.in) {
		return nil, usageError("wake tail "+ask.ShellWord(ref)+" follows a run anywhere", "attach: this is no terminal")
	}
	s, err := a.openAttached(ctx)
	if err != nil {
		return nil, err
	}
	defer s.close()
	runID, err := s.Find(ctx, ref)
	if err != nil {
		return nil, err
	}
	page, err := api.Call[wire.LogResponse](ctx, s.conn, a.names, wire.VerbLog, wire.LogRequest{Run: runID, Node: node, Limit: &lines, Details: true})
	if err != nil {
		return nil, err
	}
	state, err := s.StateAt(ctx, runID, page.Position)
	if err != nil {
		return nil, err
	}
	if _, ok := state.Nodes[node]; node != "" && !ok {
		return nil, usageError("wake status "+ask.ShellWord(runID), "run %s has no node %q that has begun", runID, node)
	}
	return s.attach(ctx, state, node, page)
}

// attached is a connection: its notes go to the screen, which belongs to the program of the terminal.
type attached struct {
	*verbSession

	shown   *app // the verb's own, for what is said when the screen is gone
	program *tea.Program
	ready   chan struct{} // closed when there is a program
	orders  sync.WaitGroup
}

// openAttached connects a verb that takes the terminal.
func (a viewVerbs) openAttached(ctx context.Context) (*attached, error) {
	s := &attached{shown: a.app, ready: make(chan struct{})}
	quiet := *a.app
	quiet.errOut = s
	quiet.log = quiet.verbLogger(slog.LevelWarn)
	var err error
	if s.verbSession, err = quiet.openSession(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Write shows what would go to stderr. What comes before there is a screen is about the connection, and is dropped:
// its error comes back.
func (s *attached) Write(b []byte) (int, error) {
	select {
	case <-s.ready:
		s.program.Send(noteMsg(b))
	default:
	}
	return len(b), nil
}

// attach runs the screen.
func (s *attached) attach(ctx context.Context, state *wire.State, node string, page wire.LogResponse) (*wire.Event, error) {
	lines := s.app.newScreen()
	lines.color = useColor(os.Stdout)
	m := newAttachment(state, node, lines, func(c wire.Command) { s.order(ctx, c) })
	s.program = tea.NewProgram(m, tea.WithContext(ctx), tea.WithoutSignalHandler(), tea.WithInput(s.app.in), tea.WithOutput(s.app.out))
	close(s.ready)
	follow, stop := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() { s.follow(follow, m.state.RunID, page, state.Status) })
	_, err := s.program.Run()
	stop()
	following.Wait()
	s.orders.Wait() // what was typed is said
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("terminal: %w", err)
	}
	if m.last == nil && m.err == nil && !m.gone {
		s.shown.printNote("left run %s, which goes on: wake attach %s comes back\n", m.state.RunID, ask.ShellWord(m.state.RunID))
	}
	return m.last, m.err
}

// follow sends what the log has, and what comes.
func (s *attached) follow(ctx context.Context, run string, page wire.LogResponse, status wire.RunStatus) {
	log, err := s.app.readerOn(ctx, s.conn)
	if err != nil {
		s.program.Send(pageMsg(page))
		s.program.Send(overMsg{err: err})
		return
	}
	s.program.Send(pageMsg(page))
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() { s.program.Send(diffsMsg(s.readDiffs(ctx, log, run, page))) })
	last, err := s.followOn(ctx, log, run, page.Position, status)
	if ctx.Err() == nil {
		s.program.Send(overMsg{last, err})
	}
}

// maxReadDiffs is how long it is read what calls have changed before: other nodes may have made very many.
const maxReadDiffs = 5 * time.Second

// readDiffs returns what calls have changed whose lines are on a page, as far as that can be read.
func (s *attached) readDiffs(ctx context.Context, log *feed.Reader, run string, page wire.LogResponse) map[uint64][]string {
	diffs := map[uint64][]string{}
	query := eventlog.Query{Run: run, Kinds: []wire.Kind{wire.KindTool}}
	for _, l := range page.Lines {
		if l.Type == wire.LineTool {
			query.From, query.To, diffs[l.Pos] = cmp.Or(query.From, l.Pos), l.Pos, nil
		}
	}
	if len(diffs) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, maxReadDiffs)
	defer cancel()
	for entry, err := range log.Read(ctx, query) {
		if err != nil {
			s.app.log.WarnContext(ctx, "what calls have changed is not shown", "error", err)
			break
		}
		if _, shown := diffs[entry.Pos]; !shown || entry.Event == nil {
			continue
		}
		if p, ok := s.app.wholeEvent(ctx, log, entry.Event).Payload.(*wire.AgentTool); ok {
			diffs[entry.Pos] = timeline.Diff(p)
		}
	}
	return diffs
}

// followOn follows a run from behind a position. One that had ended by then has nothing to follow.
func (s *attached) followOn(ctx context.Context, log *feed.Reader, run string, pos uint64, status wire.RunStatus) (*wire.Event, error) {
	if status.Ended() {
		return nil, nil // it has ended, and what came of it is on the screen
	}
	return s.app.followRun(ctx, log, eventlog.Query{Run: run, From: pos + 1}, func(e eventlog.Entry) error {
		e.Event = s.app.wholeEvent(ctx, log, e.Event)
		s.program.Send(eventMsg{e})
		return nil
	})
}

// maxOrder is how long an order may take after its sender has left.
const maxOrder = 10 * time.Second

// order gives a command, also if its sender leaves meanwhile.
func (s *attached) order(ctx context.Context, c wire.Command) {
	s.orders.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxOrder)
		defer cancel()
		r, err := s.giveCommand(ctx, c)
		if err == nil && !r.Recorded {
			err = errors.New("queued: no runner answers; it is obeyed when one comes")
		}
		s.program.Send(outcomeMsg{text: "✓ " + c.Type, err: err})
	})
}
