package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

func (a viewVerbs) topCommand() *cobra.Command {
	var q wire.TopRequest
	var since string
	var every time.Duration
	var also []string
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the runs that go on: those that wait for a person first",
		Long: `Watch the runs that go on: those that wait for a person first, then what failed, is
paused, is at work. A run that another one has started and waits for is shown while
it goes on. On a terminal it is refreshed, and has keys:

    enter  wake attach to the run, and back here when it is left
    a      what waits for you there: y allows it, n refuses it
    r      reply: the answer to what it asks, or a message
    /      only runs in whose line a text stands
    s      by attention, cost, tokens or last activity
    q      quit

Elsewhere, and with --json, it is printed once.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if q.Since, err = parseAgo("since", since); err != nil {
				return err
			}
			if every < 100*time.Millisecond {
				return usageError("such as 2s", "--interval: %s is too short", every)
			}
			return interruptError(cmd.Context(), a.showTop(cmd.Context(), q, also, every))
		},
	}
	flags := cmd.Flags()
	filterFlags(flags, &q.Label, &q.Flow, nil)
	flags.StringVar(&since, "since", "10m", "also runs that ended within this `time`, such as 90s, 5m or 2d; 0s: none")
	flags.IntVar(&q.Limit, "limit", 0, "at most this `many`, 200 or fewer (default 50)")
	flags.DurationVar(&every, "interval", 2*time.Second, "refresh after this `time`")
	alsoFlag(flags, &also)
	return cmd
}

// showTop prints the fleet, on a terminal as a screen with keys.
func (a viewVerbs) showTop(ctx context.Context, q wire.TopRequest, also []string, every time.Duration) error {
	if !a.json && canDraw(a.out) {
		return a.watchFleet(ctx, q, also, every)
	}
	nc, err := a.connectServer(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	fleet, err := a.askFleets(ctx, nc, q, also)
	if err != nil {
		return err
	}
	a.noteLag(fleet.EventsBehind())
	if a.json {
		return a.printJSON(fleet)
	}
	_, err = io.WriteString(a.out, fleetText(fleet, fleetView{color: useColor(a.out)}))
	return err
}

// fleetStates are the states of runs, those that want attention first.
func fleetStates() []string {
	return []string{"waiting", "failed", "paused", "active", "idle", "aborted", "complete"}
}

// askFleets asks for the fleet of this installation, together with those of further ones.
func (a viewVerbs) askFleets(ctx context.Context, nc *nats.Conn, q wire.TopRequest, also []string) (all wire.TopResponse, err error) {
	err = a.askEach(also, func(names subjects.Names, of string) error {
		fleet, err := api.Call[wire.TopResponse](ctx, nc, names, wire.VerbTop, q)
		if err != nil {
			return err
		}
		for i := range fleet.Runs {
			fleet.Runs[i].RunID = of + fleet.Runs[i].RunID
		}
		if all.States == nil {
			all = fleet
			return nil
		}
		for state, n := range fleet.States {
			all.States[state] += n
		}
		all.Runs, all.Omitted = append(all.Runs, fleet.Runs...), all.Omitted+fleet.Omitted
		return nil
	})
	if len(also) > 0 {
		slices.SortStableFunc(all.Runs, func(a, b wire.TopRun) int {
			return cmp.Compare(slices.Index(fleetStates(), a.State), slices.Index(fleetStates(), b.State))
		})
	}
	return all, err
}

// fleetView is how the fleet is shown.
type fleetView struct {
	color         bool
	columns, rows int    // of the terminal; 0: as many as it takes
	selected      string // run
}

// fleetText is the fleet as a table, as far as the terminal has room.
func fleetText(f wire.TopResponse, v fleetView) string {
	var counts []string
	for _, state := range fleetStates() {
		if n := f.States[state]; n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, state))
		}
	}
	head := cmp.Or(strings.Join(counts, ", "), "no runs")
	if len(f.Runs) == 0 {
		return head + "\n"
	}
	cells := [][]string{{"RUN", "NAME", "FLOW", "STATE", "TOOK", "COST", "TOKENS", "CONTEXT", "TOOLS", "ALERTS", "LAST", "WAITS FOR, OR DOES"}}
	states, runs := []string{""}, []int{0} // of each line: its state, and how many runs there are up to it
	add := func(name, label, kind string, s wire.AgentStatus, n int) {
		cells, states, runs = append(cells, topRow(name, label, kind, s, v.columns)), append(states, s.State), append(runs, n)
	}
	for i, r := range f.Runs {
		label := r.AgentID
		if label == r.RunID || strings.HasSuffix(r.RunID, ":"+label) {
			label = ""
		}
		add(timeline.Line(r.RunID, maxRunCell), label, r.FlowName, r.AgentStatus, i+1)
		if len(r.Live) < 2 {
			continue // it is what the run does
		}
		for _, agent := range r.Live {
			add("└ "+agent.AgentID, "", agent.NodeType, agent, i+1)
		}
	}
	lines, chosen := alignColumns(cells, v.columns), 0
	for i := range lines {
		mine := i > 0 && v.selected != "" && f.Runs[runs[i]-1].RunID == v.selected
		if mine && chosen == 0 {
			chosen = i
			lines[i] = sgrText(reverse, lines[i])
		} else if v.color {
			lines[i] = sgrText(stateColor(states[i]), lines[i])
		}
	}
	more := f.Omitted
	if room := max(2, v.rows-4); v.rows > 0 && len(lines) > room { // the counts, a free line, those that are left out, the cursor
		first := min(max(1, chosen-room+2), len(lines)-room+1)
		shown := lines[first : first+room-1]
		more += len(f.Runs) - runs[first+room-2] + runs[first] - 1
		lines = append(lines[:1:1], shown...)
	}
	text := head + "\n\n" + strings.Join(lines, "\n") + "\n"
	if more > 0 {
		text += fmt.Sprintf("… %d more\n", more)
	}
	return text
}

// minText is how much of the last column there should be room for.
const minText = 30

// alignColumns lines columns up, the first row being their names. It leaves out columns
// without a value, and, to fit into width characters, dispensable ones; 0 is any
// width.
func alignColumns(rows [][]string, width int) []string {
	widths := make([]int, len(rows[0])) // 0: left out
	total := 0
	for c := range widths {
		for _, row := range rows[1:] {
			widths[c] = max(widths[c], utf8.RuneCountInString(row[c]))
		}
		if widths[c] > 0 {
			widths[c] = max(widths[c], len(rows[0][c]))
			total += widths[c] + 2
		}
	}
	last := len(widths) - 1
	widths[last] = max(1, widths[last])
	for _, name := range []string{"TOOLS", "TOKENS", "FLOW", "COST", "TOOK", "ALERTS", "CONTEXT", "LAST", "NAME"} {
		if c := slices.Index(rows[0], name); width > 0 && total-widths[last]+min(widths[last], minText) > width {
			total -= widths[c] + 2
			widths[c] = 0
		}
	}
	lines := make([]string, 0, len(rows))
	for _, row := range rows {
		var line strings.Builder
		for c, cell := range row {
			switch {
			case c == last:
				line.WriteString(cmp.Or(cell, "-"))
			case widths[c] > 0:
				line.WriteString(padText(cmp.Or(cell, "-"), widths[c]+2))
			}
		}
		text := line.String()
		if r := []rune(text); width > 0 && len(r) > width {
			text = string(r[:width-1]) + "…"
		}
		lines = append(lines, text)
	}
	return lines
}

// minOfTool is how wide a terminal has to be for the name of the tool at work: in a narrower one what is done with it counts.
const minOfTool = 100

// maxRunCell bounds what is shown of a run's id, in characters: the ids that wake gives have 26.
const maxRunCell = 32

func topRow(name, label, kind string, s wire.AgentStatus, columns int) []string {
	does := s.WaitingFor
	if does == "" {
		does = s.LastActivity
		switch s.State {
		case "failed":
			does = cmp.Or(s.Error, does)
		case "aborted", "paused", "skipped": // it does nothing any more
			does = cmp.Or(s.Reason, s.Error)
		}
	}
	state := s.State
	if s.OpenTool != "" && !slices.Contains([]string{"complete", "failed", "aborted"}, state) && (columns == 0 || columns >= minOfTool) {
		state += " (" + s.OpenTool + ")"
	}
	age, _, _ := strings.Cut(s.LastActivityAge, " ")
	tools := callsText(s.ToolsUsed, s.ToolErrors)
	if s.ToolsUsed == 0 {
		tools = ""
	}
	cells := []string{
		name, label, kind, state, s.Runtime, knownText(costText(s.CostUsd, s.CostBasis)), knownText(tokensText(s.TokensIn, s.TokensOut)), percentText(s.ContextPct),
		tools, numberText(s.Alerts), age, does,
	}
	for i := range cells {
		cells[i] = timeline.Line(cells[i], maxCell)
	}
	return cells
}

// knownText is "" for what isn't.
func knownText(s string) string { return strings.TrimPrefix(s, "-") }

func percentText(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d%%", n)
}

// numberText is "" for none.
func numberText(n int) string {
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
