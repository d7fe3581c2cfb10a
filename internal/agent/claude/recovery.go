package claude

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// recoverCalls returns what the record of a session tells of calls and usage and the log lacks: the agent went
// on when its runner was gone, or its last words were lost.
func (p *Provider) recoverCalls(ctx context.Context, r agent.Request, calls agent.Calls) ([]*wire.Event, error) {
	d := p.withDefaults(r)
	if baseSession(r) == "" {
		return nil, nil
	}
	files, err := d.filesOf(r.Options)
	if err != nil {
		return nil, fmt.Errorf("claude: %w", err)
	}
	record, err := d.loadRecord(ctx, r, files)
	if err != nil {
		return nil, fmt.Errorf("claude: %w", err)
	}
	return recoveredCalls(record.content, baseSession(r), calls, r.Options.Prices.Of), nil
}

// recoveredCalls returns the calls of a session file that the log lacks, the results of those
// that it has as open, and the usage of messages that it hasn't counted. What stands before the first call or message
// that the log knows is older than the execution, unless all of the session is the execution's. What the program
// wrote for want of a result is none. Calls of sub-agents stand elsewhere, or in between.
func recoveredCalls(content []byte, session string, calls agent.Calls, priceOf func(string) (agent.Price, bool)) []*wire.Event {
	r := recovery{calls: calls, fresh: make(map[string]bool), messages: make(map[string]int)}
	r.first = firstKnown(content, calls)
	n := NewNormalizer(NormalizerOptions{Format: Transcript, SessionID: session, Started: true, PriceOf: priceOf})
	for text := range bytes.Lines(content) {
		r.line++
		var e fileEntry
		if json.Unmarshal(text, &e) == nil && e.Sidechain {
			continue
		}
		r.messages[e.Message.ID] = r.line
		for _, e := range n.Line(0, text) {
			r.addEvent(e)
		}
	}
	for _, e := range n.Finish(0, Exit{Unknown: true}) { // the usage of the last message may be told with the next one
		if e.Type() == wire.TypeUsage {
			r.addEvent(e)
		}
	}
	return slices.DeleteFunc(r.events, func(e *wire.Event) bool {
		p, is := e.Payload.(*wire.Usage)
		return is && r.older(r.messages[p.MessageID])
	})
}

// recovery collects what a session file has and the log lacks.
type recovery struct {
	calls       agent.Calls
	first, line int             // the first line that the log knows, 0 if none, and the one that is read
	fresh       map[string]bool // calls that the log lacks
	messages    map[string]int  // the last lines of these
	events      []*wire.Event
}

// older reports whether a line is from before the execution.
func (r *recovery) older(line int) bool { return !r.calls.Whole && (r.first == 0 || line < r.first) }

func (r *recovery) addEvent(e *wire.Event) {
	if e.Parent != "" || e.AgentID != "" {
		return
	}
	switch p := e.Payload.(type) {
	case *wire.ToolIntent:
		if r.older(r.line) || slices.Contains(r.calls.Open, e.CallID) || slices.Contains(r.calls.Ended, e.CallID) {
			return
		}
		r.fresh[e.CallID], p.Recovered = true, wire.RecoveredTranscript
	case *wire.AgentTool:
		if !r.fresh[e.CallID] && !slices.Contains(r.calls.Open, e.CallID) || p.Error == wire.CallInterrupted || isRejection(p.Error) || isFeigned(p.Error) {
			return
		}
		p.Recovered = wire.RecoveredTranscript
	case *wire.Usage:
		if slices.Contains(r.calls.Counted, p.MessageID) {
			return
		}
		p.Source = wire.SourceRecovered // no result of this process counts it
	default:
		return
	}
	e.Timestamp, e.Turn = 0, 0 // it is recorded now, in no turn of this process
	r.events = append(r.events, e)
}

// firstKnown returns the number of the first line of a session file that makes a call, or is of a message, which the
// log knows, 0 if there is none.
func firstKnown(content []byte, calls agent.Calls) int {
	line := 0
	for text := range bytes.Lines(content) {
		line++
		var e fileEntry
		if json.Unmarshal(text, &e) != nil || e.Sidechain {
			continue
		}
		if e.Message.ID != "" && slices.Contains(calls.Counted, e.Message.ID) {
			return line
		}
		for _, b := range e.contentBlocks() {
			if b.Type == "tool_use" && (slices.Contains(calls.Open, b.ID) || slices.Contains(calls.Ended, b.ID)) {
				return line
			}
		}
	}
	return 0
}
