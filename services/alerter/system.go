package alerter

import (
	"fmt"
	"hash/fnv"
	"time"

	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// systemRun is what alerts about wake itself are about.
func systemRun() run { return run{ID: wire.NoRun, Name: "wake"} }

// sample is how wake was at a moment.
type sample struct {
	At       int64           // Unix ms
	Last     uint64          // position of the last event
	Bytes    uint64          // of the stream of events
	MaxBytes uint64          // that it may have; 0: any number
	Oldest   int64           // when the oldest event was stored that isn't recorded, Unix ms; 0: all are
	Waiting  uint64          // events that aren't recorded
	Reports  []health.Report // of processes that are in trouble
	Letter   letter
}

// letter is the recorder's last dead letter: what was stored as an event and can't
// be one. The recorder reads all that is stored.
type letter struct {
	At     int64 // when it was stored, Unix ms; 0: there is none
	Reason string
}

// examineSystem finds what is wrong with wake. It has no memory: what persists is found
// again under the same key until the time has come to say it again.
func examineSystem(s System, x sample) []finding {
	if s.Repeat <= 0 {
		return nil
	}
	window := uint64(x.At / s.Repeat.Milliseconds())
	var found []finding
	if x.MaxBytes > 0 {
		percent := int(float64(x.Bytes) / float64(x.MaxBytes) * 100)
		if level, ok := highestReached(s.Storage, percent); ok {
			found = append(found, storageFinding(x, percent, level, window))
		}
	}
	if late := time.Duration(x.At-x.Oldest) * time.Millisecond; x.Oldest > 0 && s.Lag > 0 && late >= s.Lag {
		found = append(found, finding{
			Kind: kindLag, Severity: wire.SeverityError, NodeID: wire.RunNode, Armed: window,
			Text: fmt.Sprintf(textLag, formatSpan(late), formatCount(int64(x.Waiting), "event")),
			Data: map[string]any{"lagMs": late.Milliseconds(), "events": x.Waiting},
		})
	}
	if x.Letter.At > 0 && x.At-x.Letter.At < s.Repeat.Milliseconds() { // the letters of one window are told once
		found = append(found, finding{
			Kind: kindLetter, Severity: wire.SeverityError, NodeID: wire.RunNode, Armed: uint64(x.Letter.At / s.Repeat.Milliseconds()),
			Text: fmt.Sprintf(textLetter, timeline.Line(x.Letter.Reason, maxError)),
			Data: map[string]any{"reason": timeline.Line(x.Letter.Reason, maxError)},
		})
	}
	return append(found, troubleFindings(x, window)...)
}

// troubleAge is how long something must have been wrong with a part of a process to be an alert.
const troubleAge = 20 * time.Second

// troubleFindings finds what keeps parts of processes from their work: one alert for each service of a
// process.
func troubleFindings(x sample, window uint64) (found []finding) {
	for _, r := range x.Reports {
		told := map[string]bool{}
		for _, t := range r.Troubles {
			service := health.Service(t.Part)
			if told[service] || time.Duration(x.At-t.Since)*time.Millisecond < troubleAge {
				continue
			}
			told[service] = true
			sum := fnv.New32a()
			sum.Write([]byte(r.Process + "\x00" + service))
			found = append(found, finding{
				Kind: kindTrouble, Severity: wire.SeverityError, NodeID: wire.RunNode, Armed: window, Level: fmt.Sprintf("%08x", sum.Sum32()),
				Text: fmt.Sprintf(textTrouble, nameLine(service), nameLine(r.Process), nameLine(t.Text)),
				Data: map[string]any{"part": nameLine(t.Part), "process": nameLine(r.Process), "error": nameLine(t.Text), "since": t.Since},
			})
		}
	}
	return found
}

func storageFinding(x sample, percent, level int, window uint64) finding {
	severity := wire.SeverityWarning
	if percent >= 80 { // no run begins any more
		severity = wire.SeverityError
	}
	if percent >= 90 { // no execution either
		severity = wire.SeverityCritical
	}
	return finding{
		Kind: kindStorage, Severity: severity, NodeID: wire.RunNode, Armed: window, Level: fmt.Sprint(level),
		Text: fmt.Sprintf(textStorage, percent, formatSize(x.Bytes), formatSize(x.MaxBytes)),
		Data: map[string]any{"percent": percent, "threshold": level, "bytes": x.Bytes, "maxBytes": x.MaxBytes},
	}
}
