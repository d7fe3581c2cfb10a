// Package export writes a run in the formats of others, and reads the one that
// is wake's own.
//
// A format is a function of the run's events, in the order of the log: it
// writes while it reads and keeps what is open at the moment (a turn of an agent,
// spans, sums), never the run. The same events always give the same bytes.
//
//	JSONL        the wire as JSON with the hash chain; what Import takes
//	OpenHarness  events as the agent observability specification spells them
//	Claude       a session file that the Claude CLI can resume
//	Codex        a session file that Codex can resume
//	HTML         one page for people
//	OTLP         spans, as OTLP/JSON
//
// It reads the log, and Import adds to it; it can't reach an agent.
package export

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"maps"
	"slices"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// Events are those of a run in the order of the log, as [eventlog.Log.Read]
// yields them. What isn't an event is passed over.
type Events = iter.Seq2[eventlog.Entry, error]

// Run says which run the events are of.
type Run struct {
	ID          string
	Incarnation string // of the stream that has it
	From, To    uint64 // the positions that were asked for; 0: from the beginning, to the end

	Alerts []wire.Alert // that a page shows, in the order in which they are given
	Note   string       // that a page shows
	// Redact takes out of a line what a page doesn't show, of a text that came in pieces when these are joined. Nil: a page shows all.
	Redact func(line string) string
}

// Result says what was written.
type Result struct {
	RunID   string `json:"runId"`
	Events  int    `json:"events"`            // that were read
	Written int    `json:"written"`           // lines, messages or spans
	Skipped int    `json:"skipped,omitempty"` // entries that aren't events, or of a writer that had been replaced
	Missing int    `json:"missing,omitempty"` // large fields that the object store has lost
	Hash    string `json:"hash,omitempty"`    // of the whole chain (jsonl)
	Session string `json:"session,omitempty"` // that was written (claude, codex)
	Cwd     string `json:"cwd,omitempty"`     // folder that it belongs to (claude, codex)
	Begun   int64  `json:"-"`                 // when it was begun, Unix ms (codex)
}

// Fetch returns a large field by its SHA-256, as [eventlog.Log.Blob] does.
type Fetch func(sha256 string) ([]byte, error)

// Whole yields the events with their large fields put back. Of those that the
// object store has lost, missing is told; the event then is without them.
func Whole(events Events, fetch Fetch, missing func()) Events {
	return func(yield func(eventlog.Entry, error) bool) {
		for e, err := range events {
			if err == nil && e.Event != nil && len(e.Event.Blobs) > 0 {
				var whole *wire.Event
				switch whole, err = inlineBlobs(e.Event, fetch); {
				case errors.Is(err, eventlog.ErrBlobMissing):
					missing()
					err = nil
				case err == nil:
					e.Event = whole
				}
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

func inlineBlobs(e *wire.Event, fetch Fetch) (*wire.Event, error) {
	data, err := wire.Encode(e)
	if err != nil {
		return nil, err
	}
	if data, err = wire.Inline(data, fetch); err != nil {
		return nil, err
	}
	return wire.Decode(data)
}

// eachVisible calls f with each event that readers see, and counts them.
func eachVisible(r *Result, events Events, f func(*eventlog.Entry) error) error {
	old := eventlog.LastEpochs{}
	return eachStored(r, events, func(e *eventlog.Entry) error {
		if old.IsVoid(e.Event) {
			r.Events--
			r.Skipped++
			return nil
		}
		return f(e)
	})
}

// eachStored calls f with each event and counts.
func eachStored(r *Result, events Events, f func(*eventlog.Entry) error) error {
	for e, err := range events {
		switch {
		case err != nil:
			return err
		case e.Event == nil:
			r.Skipped++
			continue
		}
		r.Events++
		if err := f(&e); err != nil {
			return err
		}
	}
	return nil
}

// eachShown calls f with what readers see of the node's own agent.
func (c Conversation) eachShown(r *Result, events Events, f func(*wire.Event) error) error {
	return eachVisible(r, events, func(e *eventlog.Entry) error {
		if e.NodeID != c.Node || e.Event.Parent != "" || c.hidden.isHidden(e.Event) {
			return nil
		}
		return f(e.Event)
	})
}

// writeShown writes what readers see of the node's own agent by take, and what is left at its end by finish, to out.
func (c Conversation) writeShown(r *Result, events Events, take func(*wire.Event) error, finish func() error, out *bufio.Writer) error {
	if err := c.eachShown(r, events, take); err != nil {
		return err
	}
	if err := finish(); err != nil {
		return err
	}
	return out.Flush()
}

// writeLine writes a value as a line of JSON.
func writeLine(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// truncations hide events of a node from readers.
type truncations []truncation

type truncation struct{ after, before uint64 } // seq

func (all truncations) isHidden(e *wire.Event) bool {
	return slices.ContainsFunc(all, func(t truncation) bool { return e.Seq > t.after && e.Seq < t.before })
}

// truncationsOf are those of each node of a run.
func truncationsOf(events Events) (map[string]truncations, error) {
	all := map[string]truncations{}
	if events == nil {
		return all, nil
	}
	err := eachVisible(&Result{}, events, func(e *eventlog.Entry) error {
		if p, ok := e.Event.Payload.(*wire.LogTruncated); ok {
			all[e.NodeID] = append(all[e.NodeID], truncation{p.AtSeq, e.Event.Seq})
		}
		return nil
	})
	return all, err
}

// hashTexts is the hash of texts, told apart, from which ids are derived.
func hashTexts(texts ...string) [sha256.Size]byte {
	h := sha256.New()
	for _, t := range texts {
		h.Write([]byte(t))
		h.Write([]byte{0})
	}
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	return sum
}

// execOf names the execution that an event is about: its node if it names none.
func execOf(e *wire.Event) string { return cmp.Or(e.ExecID, e.Node()) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
