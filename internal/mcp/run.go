package mcp

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// StartRequest asks for a new run.
type StartRequest struct {
	Flow   string // YAML or JSON; it names no files
	Input  wire.Raw
	Labels map[string]string
	Parent string // the run that this one works for; "": none
}

// ForkRequest asks for a fork.
type ForkRequest struct{ Run, At, Message string }

// Fork is a fork.
type Fork struct {
	Run      string `json:"run"`
	Parent   string `json:"parent" jsonschema:"the run that has the point"`
	At       string `json:"at" jsonschema:"the point"`
	Recorded bool   `json:"recorded" jsonschema:"false: it waits for a runner"`
}

// Point is where a run can be forked.
type Point struct {
	Label string `json:"label"`
	Node  string `json:"node,omitempty"`
	Time  int64  `json:"time" jsonschema:"Unix ms"`
	Note  string `json:"note,omitempty" jsonschema:"what happened there"`
}

type startInput struct {
	Flow   string            `json:"flow" jsonschema:"the flow's text, YAML or JSON"`
	Input  any               `json:"input,omitempty" jsonschema:"the run's input, any JSON value"`
	Labels map[string]string `json:"labels,omitempty" jsonschema:"name is how alerts call the run"`
	Parent string            `json:"parent,omitempty" jsonschema:"the RUN that this one works for"`
}

// started is a run that was asked for.
type started struct {
	Run string `json:"run"`
}

func (p Pipeline) startRun(ctx context.Context, in startInput) (_ string, _ started, err error) {
	r := StartRequest{Flow: in.Flow, Labels: in.Labels}
	if strings.TrimSpace(in.Flow) == "" {
		return "", started{}, badRequest("flow is empty")
	}
	if in.Input != nil {
		if r.Input, err = wire.Marshal(in.Input); err != nil {
			return "", started{}, badRequest("input: %v", err)
		}
	}
	if in.Parent != "" {
		if r.Parent, err = p.Find(ctx, in.Parent); err != nil {
			return "", started{}, err
		}
	}
	run, err := p.Start(ctx, r)
	if err != nil {
		return "", started{}, err
	}
	return "started run " + cleanLine(run), started{run}, nil
}

type forkInput struct {
	Run     string `json:"run" jsonschema:"id or its beginning, a label, or @last"`
	At      string `json:"at,omitempty" jsonschema:"a point of bookmarks, or a position of the log; absent: the present, of an ended run its last point"`
	Message string `json:"message,omitempty" jsonschema:"what its agents are told; absent: continue"`
}

func (p Pipeline) forkRun(ctx context.Context, in forkInput) (string, Fork, error) {
	run, err := p.Find(ctx, in.Run)
	if err != nil {
		return "", Fork{}, err
	}
	f, err := p.Fork(ctx, ForkRequest{Run: run, At: in.At, Message: in.Message})
	if err != nil {
		return "", Fork{}, err
	}
	f = Fork{Run: cleanLine(f.Run), Parent: cleanLine(f.Parent), At: cleanLine(f.At), Recorded: f.Recorded}
	text := fmt.Sprintf("forked run %s from %s at %s", f.Run, f.Parent, f.At)
	if !f.Recorded {
		text += "\nqueued: no runner has begun it yet"
	}
	return text, f, nil
}

type bookmarkInput struct {
	Run   string `json:"run" jsonschema:"id or its beginning, a label, or @last"`
	Label string `json:"label,omitempty" jsonschema:"its name; absent: that of the point"`
	At    string `json:"at,omitempty" jsonschema:"a point of bookmarks, or a position of the log; absent: the present, of an ended run its last point"`
}

func (p Pipeline) setBookmark(ctx context.Context, in bookmarkInput) (string, order, error) {
	return p.sendCommand(ctx, in.Run, wire.Command{Type: "bookmark", Label: in.Label, At: in.At}, "bookmarked")
}

type reasonInput struct {
	Run    string `json:"run" jsonschema:"id or its beginning, a label, or @last"`
	Reason string `json:"reason,omitempty" jsonschema:"why, for readers of the run"`
}

func (p Pipeline) pauseRun(ctx context.Context, in reasonInput) (string, order, error) {
	return p.sendCommand(ctx, in.Run, wire.Command{Type: "pause", Reason: in.Reason}, "paused")
}

func (p Pipeline) abortRun(ctx context.Context, in reasonInput) (string, order, error) {
	return p.sendCommand(ctx, in.Run, wire.Command{Type: "abort", Reason: in.Reason}, "aborted")
}

type resumeInput struct {
	Run     string   `json:"run" jsonschema:"id or its beginning, a label, or @last"`
	Message string   `json:"message,omitempty" jsonschema:"what its agents are told; absent: continue"`
	Rerun   []string `json:"rerun,omitempty" jsonschema:"nodes to execute again; [\"*\"]: all that failed"`
}

func (p Pipeline) resumeRun(ctx context.Context, in resumeInput) (string, order, error) {
	return p.sendCommand(ctx, in.Run, wire.Command{Type: "resume", Message: in.Message, Rerun: in.Rerun}, "resumed")
}

type pointsInput struct {
	Run   string `json:"run" jsonschema:"id or its beginning, a label, or @last"`
	Limit int    `json:"limit,omitempty" jsonschema:"default 20, at most 100"`
}

// pointsAnswer are the last points of a run, the oldest first.
type pointsAnswer struct {
	Points  []Point `json:"points"`
	Earlier int     `json:"earlier" jsonschema:"how many came before"`
}

func (p Pipeline) listBookmarks(ctx context.Context, in pointsInput) (string, pointsAnswer, error) {
	run, err := p.Find(ctx, in.Run)
	if err != nil {
		return "", pointsAnswer{}, err
	}
	all, err := p.Points(ctx, run)
	if err != nil {
		return "", pointsAnswer{}, err
	}
	earlier := max(0, len(all)-atMost(in.Limit, 20))
	answer := pointsAnswer{Points: []Point{}, Earlier: earlier}
	var b strings.Builder
	if earlier > 0 {
		fmt.Fprintf(&b, "… %d earlier\n", earlier)
	}
	for _, at := range all[earlier:] {
		at = Point{Label: cleanLine(at.Label), Node: cleanLine(at.Node), Time: at.Time, Note: cleanLine(at.Note)}
		answer.Points = append(answer.Points, at)
		fmt.Fprintf(&b, "%s %s %s %s\n", at.Label, clockTime(at.Time), at.Node, at.Note)
	}
	return cmp.Or(b.String(), "no bookmarks"), answer, nil
}

type stateInput struct {
	Run string `json:"run" jsonschema:"id or its beginning, a label, or @last"`
	At  string `json:"at,omitempty" jsonschema:"a point of bookmarks, or a position of the log; absent: now"`
}

// stateAnswer is the state of a run.
type stateAnswer struct {
	Run   string `json:"run"`
	At    string `json:"at,omitempty" jsonschema:"the point; absent: now"`
	State string `json:"state" jsonschema:"as text"`
}

func (p Pipeline) showState(ctx context.Context, in stateInput) (string, stateAnswer, error) {
	run, err := p.Find(ctx, in.Run)
	if err != nil {
		return "", stateAnswer{}, err
	}
	text, err := p.State(ctx, run, in.At)
	return text, stateAnswer{Run: cleanLine(run), At: cleanLine(in.At), State: boundText(text)}, err
}

type diffInput struct {
	A string `json:"a" jsonschema:"id or its beginning, a label, or @last"`
	B string `json:"b" jsonschema:"the other one"`
}

// diffAnswer is in what two runs differ.
type diffAnswer struct {
	A    string `json:"a"`
	B    string `json:"b"`
	Diff string `json:"diff" jsonschema:"as text"`
}

func (p Pipeline) compareRuns(ctx context.Context, in diffInput) (_ string, answer diffAnswer, err error) {
	if in.A, err = p.Find(ctx, in.A); err != nil {
		return "", answer, err
	}
	if in.B, err = p.Find(ctx, in.B); err != nil {
		return "", answer, err
	}
	text, err := p.Diff(ctx, in.A, in.B)
	return text, diffAnswer{A: cleanLine(in.A), B: cleanLine(in.B), Diff: boundText(text)}, err
}

type tailInput struct {
	Run  string `json:"run" jsonschema:"id or its beginning, a label, or @last"`
	Node string `json:"node,omitempty" jsonschema:"only of this node"`
	From int64  `json:"from,omitempty" jsonschema:"first line from 0, as next of the answer before says"`
	Wait int    `json:"wait,omitempty" jsonschema:"seconds to wait if there is none, at most 300"`
}

// tailAnswer are lines, and how to go on.
type tailAnswer struct {
	Lines []lineAnswer `json:"lines"`
	Next  int64        `json:"next" jsonschema:"from, to go on"`
}

// tailPause is how long a call waits before it looks for lines once more.
const tailPause = time.Second

func (p Pipeline) tailLog(ctx context.Context, in tailInput) (string, tailAnswer, error) {
	limit, deadline := maxList, time.Now().Add(time.Duration(min(max(in.Wait, 0), maxWait))*time.Second)
	for {
		page, err := p.Log(ctx, wire.LogRequest{Run: in.Run, Node: in.Node, Offset: &in.From, Limit: &limit, Details: true})
		if err != nil {
			return "", tailAnswer{}, err
		}
		if page.ReturnedLines > 0 || !time.Now().Add(tailPause).Before(deadline) {
			page = fittingPage(page, false)
			next := page.Offset + int64(page.ReturnedLines)
			return fmt.Sprintf("%snext: %d", pageText(page), next), tailAnswer{logFields(page).Lines, next}, nil
		}
		select {
		case <-time.After(tailPause):
		case <-ctx.Done():
			return "", tailAnswer{}, ctx.Err()
		}
	}
}
