package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/flow"
	fold "code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/snapshot"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

type runOptions struct {
	id, input, parent   string
	fixtures, workspace string
	sets, labels        []string
	detach              bool
	budget              budgetOptions
}

func (a runVerbs) runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run FLOW",
		Short: "Run a flow and follow it until it is complete",
		Long: `Run a flow, a YAML or JSON file, and follow it until it is complete. Ctrl-C
detaches; the run goes on. The exit code is 4 if the run fails.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := a.limitedRequest(args[0], o, cmd.Flags())
			if err != nil {
				return err
			}
			return a.runFlow(cmd.Context(), request, o)
		},
	}
	runFlags(cmd.Flags(), &o)
	o.budget.addFlags(cmd)
	cmd.Flags().StringVar(&o.fixtures, "fixtures", "", "`folder` of recorded calls that stand in for every agent")
	cmd.Flags().BoolVar(&o.detach, "detach", false, "don't follow, only print the id")
	completeFlag(cmd, "fixtures", completeDir)
	completeFlag(cmd, "workspace", completeDir)
	a.flowSecretsFlag(cmd.Flags())
	return cmd
}

// runFlags adds the settings of a new run to a set of flags.
func runFlags(flags *pflag.FlagSet, o *runOptions) {
	flags.StringVar(&o.id, "id", "", "`id` of the run (default: a new ULID)")
	flags.StringVar(&o.input, "input", "", "the run's input: `JSON`, @FILE, or - for stdin")
	flags.StringArrayVar(&o.sets, "set", nil, "set a field of the flow's state, `key=value`; dots lead into nested fields, a value that is JSON counts as such")
	flags.StringArrayVar(&o.labels, "label", nil, "label of the run, `key=value`; name=… is how alerts call it")
	flags.StringVar(&o.parent, "parent", "", "the `run` that this one works for")
	flags.StringVar(&o.workspace, "workspace", "", "`folder` in which the run works (default: one of its own)")
}

// limitedRequest is [app.buildRequest]'s with the limits of the flags, of a flow that has no known secrets.
func (a *app) limitedRequest(file string, o runOptions, flags *pflag.FlagSet) (wire.RunRequest, error) {
	r, err := a.buildRequest(file, o)
	if err != nil {
		return r, err
	}
	if r.Limits, err = o.budget.limits(flags); err != nil {
		return r, err
	}
	return r, a.checkRequest(r)
}

// buildRequest makes the request of a flow file and the flags.
func (a *app) buildRequest(file string, o runOptions) (wire.RunRequest, error) {
	r := wire.RunRequest{V: wire.Version, RunID: o.id, ParentRun: o.parent}
	src, err := os.ReadFile(file)
	if err != nil {
		return r, usageError("", "flow: %w", err)
	}
	def, err := flow.Parse(file, src)
	if err != nil {
		return r, serviceError(string(wire.CodeFlowInvalid), "", "%w", err)
	}
	if def, err = def.Embed(file, os.ReadFile); err != nil {
		return r, serviceError(string(wire.CodeFlowInvalid), "", "%w", err)
	}
	r.Definition = def.Raw()
	r.RunID = cmp.Or(r.RunID, newRunID())
	if err := subjects.CheckNewRun(r.RunID); err != nil {
		return r, usageError("", "--id: %w", err)
	}
	if r.Input, err = a.readInput(o.input); err != nil {
		return r, err
	}
	if r.State, err = parseSets(o.sets); err != nil {
		return r, err
	}
	if r.Labels, err = parseLabels(o.labels); err != nil {
		return r, err
	}
	if r.Fixtures, err = folderPath("fixtures", o.fixtures); err != nil {
		return r, err
	}
	r.Workspace, err = folderPath("workspace", o.workspace)
	return r, err
}

// newRunID returns an id that sorts by time.
func newRunID() string {
	return strings.ToLower(ulid.MustNew(ulid.Now(), rand.Reader).String())
}

func (a *app) readInput(input string) (wire.Raw, error) {
	var src []byte
	var err error
	switch {
	case input == "":
		return nil, nil
	case input == "-":
		src, err = io.ReadAll(a.in)
	case strings.HasPrefix(input, "@"):
		src, err = os.ReadFile(input[1:])
	default:
		src = []byte(input)
	}
	if err != nil {
		return nil, usageError("", "--input: %w", err)
	}
	raw, err := wire.RawFromJSON(src)
	if err != nil {
		return nil, usageError("text needs quotes: '\"text\"'", "--input is not JSON: %w", err)
	}
	return raw, nil
}

// parseSets makes an object of "a.b=value" pairs.
func parseSets(sets []string) (wire.Raw, error) {
	return objectOf(sets, "--set key=value", func(key string) ([]string, error) { return strings.Split(key, "."), nil })
}

// objectOf makes an object of "key=value" pairs, nil of none; pathOf says where the value of a key stands. A value that is JSON
// counts as such.
func objectOf(sets []string, hint string, pathOf func(key string) ([]string, error)) (wire.Raw, error) {
	if len(sets) == 0 {
		return nil, nil
	}
	all := map[string]any{}
	for _, set := range sets {
		key, text, ok := cutPair(set)
		if !ok {
			return nil, usageError(hint, "--set: %q has no key and value", set)
		}
		path, err := pathOf(key)
		if err != nil {
			return nil, err
		}
		value, err := wire.RawFromJSON([]byte(text))
		if err != nil {
			value = wire.RawString(text)
		}
		if err := putField(all, path, value); err != nil {
			return nil, usageError("", "--set %s: %w", set, err)
		}
	}
	return wire.Marshal(all)
}

// putField sets a field of an object, making the objects that lead to it.
func putField(object map[string]any, path []string, value wire.Raw) error {
	name, rest := path[0], path[1:]
	if len(rest) == 0 {
		object[name] = value
		return nil
	}
	if object[name] == nil {
		object[name] = map[string]any{}
	}
	inner, ok := object[name].(map[string]any)
	if !ok {
		return fmt.Errorf("%s is set to a value already", name)
	}
	return putField(inner, rest, value)
}

// cutPair splits "key=value". It reports false without a key, and for what no
// event can hold: text that isn't UTF-8.
func cutPair(s string) (key, value string, ok bool) {
	key, value, ok = strings.Cut(s, "=")
	return key, value, ok && key != "" && utf8.ValidString(s)
}

func parseLabels(pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	all := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		key, value, ok := cutPair(pair)
		if !ok {
			return nil, usageError("--label key=value", "--label: %q has no key and value", pair)
		}
		all[key] = value
	}
	return all, nil
}

// folderPath returns the absolute path of a folder that exists, or "" for "".
func folderPath(flag, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", usageError("", "--%s: %w", flag, err)
	}
	if !info.IsDir() {
		return "", usageError("", "--%s: %s is no folder", flag, path)
	}
	return filepath.Abs(path)
}

// runFlow submits a request and follows the run.
func (a runVerbs) runFlow(ctx context.Context, r wire.RunRequest, o runOptions) error {
	log, err := a.openReader(ctx)
	if err != nil {
		return err
	}
	defer log.Conn().Close()
	if o.id != "" {
		if err := a.checkUnused(ctx, log.Conn(), o.id); err != nil {
			return err
		}
	}
	if o.detach {
		if err := a.submitRun(ctx, log, r); err != nil {
			return err
		}
		if !hasBegun(ctx, log, r.RunID) {
			a.printNote("queued: no runner has taken it yet; `wake doctor` says whether there is one\n")
		}
		return a.printAnswer(map[string]string{"runId": r.RunID}, r.RunID)
	}
	last, err := a.submitAndWatch(ctx, log, r)
	if err != nil {
		return err
	}
	if a.json {
		if err := a.printResult(r.RunID, last); err != nil {
			return err
		}
	}
	return outcomeError(r.RunID, last)
}

// checkUnused refuses an id for a new run that another run has or had, as the recorder knows it, if it is there: the stream may not have
// that one's events any more, and of a run that was removed nothing is recorded.
func (a *app) checkUnused(ctx context.Context, conn *nats.Conn, id string) error {
	status, err := api.Call[wire.StatusResponse](ctx, conn, a.names, wire.VerbStatus, wire.StatusRequest{Run: id})
	if err == nil && status.RunID == id {
		return serviceError(codeRunExists, "choose another --id", "run %s exists", id)
	}
	if refused, ok := errors.AsType[*wire.APIError](err); ok && refused.RemovedAt > 0 {
		return serviceError(codeRunExists, "choose another --id: nothing of this one would be recorded", "%s", refused.Message)
	}
	return nil
}

// submitAndWatch starts a run, shows it until it ends and returns its last event.
func (a *app) submitAndWatch(ctx context.Context, log *feed.Reader, r wire.RunRequest) (*wire.Event, error) {
	_, last, err := log.Bounds(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.submitRun(ctx, log, r); err != nil {
		return nil, err
	}
	if !a.json {
		a.printNote("run %s\n", r.RunID)
	}
	return a.watchRun(ctx, log, r.RunID, last+1)
}

// submitRun stores a request for the runners.
func (a *app) submitRun(ctx context.Context, log *feed.Reader, r wire.RunRequest) error {
	if r.ParentRun != "" {
		var err error
		if r.ParentRun, err = a.runID(ctx, log, r.ParentRun); err != nil {
			return err
		}
	}
	_, taken, err := log.Last(ctx, r.RunID, wire.RunNode)
	if err != nil {
		return err
	}
	if taken {
		return serviceError(codeRunExists, "choose another --id", "run %s exists", r.RunID)
	}
	r.By = senderName()
	if err := log.StartRun(ctx, r); err != nil {
		return fmt.Errorf("submit run %s: %w", r.RunID, err)
	}
	return nil
}

// hasBegun waits a little for the first event of a run.
func hasBegun(ctx context.Context, log *feed.Reader, runID string) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, err := range log.Follow(ctx, eventlog.Query{Run: runID, Node: wire.RunNode}) {
		return err == nil
	}
	return false
}

// patience is how long a run may wait for an owner until we say so.
const patience = 3 * time.Second

// watchRun shows a run until it ends.
func (a *app) watchRun(ctx context.Context, log *feed.Reader, runID string, from uint64) (*wire.Event, error) {
	waiting := time.AfterFunc(patience, func() {
		a.printNote("no runner has taken it yet; `wake doctor` says whether there is one\n")
	})
	defer waiting.Stop()
	s := a.newScreen()
	stop := s.startClock()
	last, err := a.followRun(ctx, log, eventlog.Query{Run: runID, From: from}, func(e eventlog.Entry) error {
		waiting.Stop()
		if !a.json {
			if err := s.showEvent(e.Pos, a.wholeEvent(ctx, log, e.Event)); err != nil {
				return err
			}
		}
		return a.tellPause(ctx, log, e)
	})
	stop()
	if err := errors.Join(err, s.close()); err != nil {
		if ctx.Err() != nil {
			err = serviceError(codeDetached, "wake tail "+ask.ShellWord(runID), "detached from run %s, which goes on", runID)
		}
		return nil, err
	}
	return last, nil
}

// tellPause tells the user who follows a run how it goes on after a pause that waits for
// a person.
func (a *app) tellPause(ctx context.Context, log *feed.Reader, e eventlog.Entry) error {
	p, ok := e.Event.Payload.(*wire.FlowPaused)
	if !ok {
		return nil
	}
	if !wire.NeedsPerson(p.Reason) && p.Reason != wire.PauseSharedBudget {
		return nil
	}
	state, err := presentState(ctx, log, e.RunID)
	if err != nil {
		return err
	}
	var nodes []string
	for _, id := range slices.Sorted(maps.Keys(state.NodeStatus)) {
		if fold.Interrupted(state, id) {
			nodes = append(nodes, id)
		}
	}
	if what := toDo(e.RunID, state.Status, state.Reason, nodes); what != "" { // else it goes on already
		a.printNote("run %s is paused (%s): %s\n", e.RunID, state.Reason, what)
	}
	return nil
}

// presentState returns the state of a run as of now: its snapshot, if there is one,
// and what the log has beyond it.
func presentState(ctx context.Context, log *feed.Reader, runID string) (*wire.State, error) {
	state, found, err := snapshot.Load(ctx, log, runID)
	if err != nil && !errors.Is(err, snapshot.ErrUnusable) {
		return nil, err
	}
	if err != nil || !found {
		state = fold.New(runID)
	}
	return state, snapshot.Fold(ctx, log, state, 0)
}

// runResult is what programs get of a run that has ended.
type runResult struct {
	RunID      string          `json:"runId"`
	Status     wire.RunStatus  `json:"status"`
	Result     wire.FlowStatus `json:"result,omitempty"`
	Error      string          `json:"error,omitempty"`
	FailedNode string          `json:"failedNode,omitempty"`
	DurationMs int64           `json:"durationMs,omitempty"`
}

func (a runVerbs) printResult(runID string, last *wire.Event) error {
	r := runResult{RunID: runID, Status: wire.RunAborted}
	switch p := last.Payload.(type) {
	case *wire.FlowAborted:
		r.Error = p.Reason
	case *wire.FlowComplete:
		r.Status, r.Result, r.Error, r.FailedNode, r.DurationMs = wire.RunComplete, p.Status, p.Error, p.FailedNode, p.DurationMs
	}
	return a.printJSON(r)
}
