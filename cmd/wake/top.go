package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"wake/internal/api"
	"wake/internal/service"
	"wake/pkg/wire"
)

func (a *app) topCommand() *cobra.Command {
	var q wire.TopRequest
	var since string
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the runs that go on: who waits for somebody first",
		Long: `Watch the runs that go on: who waits for somebody first, then what failed, is
paused, is at work. On a terminal it is refreshed until it is interrupted;
elsewhere, and with --json, it is printed once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if q.Since, err = parseAgo("since", since); err != nil {
				return err
			}
			if every < 100*time.Millisecond {
				return usage("such as 2s", "--interval: %s is too short", every)
			}
			return interrupted(cmd.Context(), a.top(cmd.Context(), q, every))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&q.Label, "label", "", "only runs with this label, `key=value` or value")
	flags.StringVar(&q.Flow, "flow", "", "only runs of the flow of this `name`")
	flags.StringVar(&since, "since", "10m", "also runs that ended within this `time`, such as 90s, 5m or 2d; 0s: none")
	flags.IntVar(&q.Limit, "limit", 0, "at most this `many` (default 50)")
	flags.DurationVar(&every, "interval", 2*time.Second, "refresh after this `time`")
	return cmd
}

// top prints the fleet, on a terminal again and again.
func (a *app) top(ctx context.Context, q wire.TopRequest, every time.Duration) error {
	nc, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	refresh := !a.json && service.IsTerminal(a.out)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		fleet, err := api.Call[wire.TopResponse](ctx, nc, a.names, wire.VerbTop, q)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(fleet)
		}
		text, err := fleetText(fleet, useColor(a.out))
		if err != nil {
			return err
		}
		if refresh {
			text = home + strings.ReplaceAll(text, "\n", clearLine+"\n") + clearRest
		}
		if _, err := fmt.Fprint(a.out, text); err != nil || !refresh {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// What moves about a terminal.
const (
	home      = "\x1b[H"
	clearLine = "\x1b[K"
	clearRest = "\x1b[J"
)

// fleetText is the fleet as a table.
func fleetText(f wire.TopResponse, color bool) (string, error) {
	var counts []string
	for _, state := range []string{"waiting", "failed", "paused", "active", "idle", "aborted", "complete"} {
		if n := f.States[state]; n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, state))
		}
	}
	head := cmp.Or(strings.Join(counts, ", "), "no runs")
	if len(f.Runs) == 0 {
		return head + "\n", nil
	}
	var b bytes.Buffer
	t := newTable(&b, "RUN", "FLOW", "STATE", "TOOK", "COST", "TOKENS", "CONTEXT", "TOOLS", "ALERTS", "WAITS FOR, OR DOES")
	states := []string{""}
	for _, r := range f.Runs {
		states = append(states, r.State)
		topRow(t, r.RunID, r.FlowName, r.AgentStatus)
		if len(r.Live) < 2 {
			continue // it is what the run does
		}
		for _, agent := range r.Live {
			states = append(states, agent.State)
			topRow(t, "└ "+agent.AgentID, agent.NodeType, agent)
		}
	}
	if err := t.flush(); err != nil {
		return "", err
	}
	lines := strings.SplitAfter(b.String(), "\n")
	if color {
		for i, state := range states {
			line := strings.TrimSuffix(lines[i], "\n")
			lines[i] = paint(stateColor(state), line) + "\n"
		}
	}
	text := head + "\n\n" + strings.Join(lines, "")
	if f.Omitted > 0 {
		text += fmt.Sprintf("… %d more\n", f.Omitted)
	}
	return text, nil
}

func topRow(t table, name, kind string, s wire.AgentStatus) {
	does := s.WaitingFor
	if does == "" {
		does = s.LastActivity
		if s.State == "failed" {
			does = cmp.Or(s.Error, does)
		}
	}
	if s.LastActivityAge != "" && does != "" {
		does += ", " + s.LastActivityAge
	}
	state := s.State
	if s.OpenTool != "" && !slices.Contains([]string{"complete", "failed", "aborted"}, state) {
		state += " (" + s.OpenTool + ")"
	}
	t.row(name, kind, state, s.Runtime, dollars(s.CostUsd), tokens(s.TokensIn, s.TokensOut), percent(s.ContextPct),
		calls(s.ToolsUsed, s.ToolErrors), number(s.Alerts), does)
}

func percent(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d%%", n)
}

// number is "" for none.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func stateColor(state string) string {
	switch state {
	case "waiting":
		return yellow
	case "failed":
		return red
	case "complete", "idle", "aborted":
		return dim
	}
	return ""
}
