package alerter

import (
	"fmt"
	"time"

	"wake/pkg/wire"
)

// system is what alerts about wake itself are about.
func system() run { return run{ID: wire.NoRun, Name: "wake"} }

// sample is how wake was at a moment.
type sample struct {
	At       int64  // Unix ms
	Last     uint64 // position of the last event
	Bytes    uint64 // of the stream of events
	MaxBytes uint64 // that it may have; 0: any number
	Oldest   int64  // when the oldest event was stored that isn't recorded, Unix ms; 0: all are
	Waiting  uint64 // events that aren't recorded
}

// examine finds what is wrong with wake. It has no memory: what persists is found
// again under the same key until the time has come to say it again.
func examine(s System, x sample) []finding {
	if s.Repeat <= 0 {
		return nil
	}
	window := uint64(x.At / s.Repeat.Milliseconds())
	var found []finding
	if x.MaxBytes > 0 {
		percent := int(float64(x.Bytes) / float64(x.MaxBytes) * 100)
		if level, ok := reached(s.Storage, percent); ok {
			found = append(found, storage(x, percent, level, window))
		}
	}
	if late := time.Duration(x.At-x.Oldest) * time.Millisecond; x.Oldest > 0 && s.Lag > 0 && late >= s.Lag {
		found = append(found, finding{
			Kind: kindLag, Severity: wire.SeverityError, NodeID: wire.RunNode, Armed: window,
			Text:  fmt.Sprintf(textLag, span(late), counted(int64(x.Waiting), "event")),
			Event: "recorder_lag", Data: map[string]any{"lagMs": late.Milliseconds(), "events": x.Waiting},
		})
	}
	return found
}

func storage(x sample, percent, level int, window uint64) finding {
	severity := wire.SeverityWarning
	if percent >= 80 { // no run begins any more
		severity = wire.SeverityError
	}
	if percent >= 90 { // no execution either
		severity = wire.SeverityCritical
	}
	return finding{
		Kind: kindStorage, Severity: severity, NodeID: wire.RunNode, Armed: window, Level: fmt.Sprint(level),
		Text:  fmt.Sprintf(textStorage, percent, size(x.Bytes), size(x.MaxBytes)),
		Event: "storage_pressure", Data: map[string]any{"percent": percent, "threshold": level, "bytes": x.Bytes, "maxBytes": x.MaxBytes},
	}
}
