package deliver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Notification is what a sink gets: an alert, a digest of several, or a test.
type Notification struct {
	// ID is the same whenever the same thing is sent, and of no other.
	ID       string        `json:"id"`
	Time     int64         `json:"time"` // Unix ms
	Severity wire.Severity `json:"severity"`
	Text     string        `json:"text"` // of a digest: several lines
	Alert    *wire.Alert   `json:"alert,omitempty"`
	Digest   *Digest       `json:"digest,omitempty"`

	link string // by which it is answered; made when it is sent, and kept nowhere
}

// Why alerts are held back.
const (
	reasonQuiet  = "quiet"
	reasonDigest = "digest"
	reasonRate   = "rate"
	reasonLate   = "late"
)

// Digest stands for several alerts.
type Digest struct {
	Reason string                `json:"reason"` // quiet, digest, rate or late
	Count  map[wire.Severity]int `json:"count"`
	First  uint64                `json:"first"` // positions in WAKE_ALERTS
	Last   uint64                `json:"last"`
	From   int64                 `json:"from"` // Unix ms, of the first alert
	To     int64                 `json:"to"`
	Lines  []string              `json:"lines,omitempty"` // of the first 20
}

// alertNotification makes the notification of an alert. Its id is the alert's key, which is
// of one incarnation of the log, and its time: a log that was restored from a backup
// counts on from there, so that its positions, and the keys, may be of other alerts.
func alertNotification(a *wire.Alert) Notification {
	return Notification{
		ID:   fmt.Sprintf("%s-%s-%d", a.Position.Incarnation, subjects.Escape(a.Key), a.Timestamp),
		Time: a.Timestamp, Severity: a.Severity, Text: a.Text, Alert: a,
	}
}

func testNotification(sink string) Notification {
	return Notification{ID: "test-" + sink, Time: time.Now().UnixMilli(), Severity: wire.SeverityInfo, Text: "wake: a test of the sink " + sink}
}

// cloudEvent is the structured JSON form of CloudEvents 1.0.
type cloudEvent struct {
	SpecVersion string          `json:"specversion"`
	ID          string          `json:"id"`
	Source      string          `json:"source"`
	Type        string          `json:"type"`
	Subject     string          `json:"subject,omitempty"`
	Time        string          `json:"time"`
	ContentType string          `json:"datacontenttype"`
	AnswerURL   string          `json:"answerurl,omitempty"` // a link: its holder answers what the alert asks, once
	Data        json.RawMessage `json:"data"`
}

// cloudEvent returns the notification as a CloudEvent. Its data is the alert, or
// {reason, count …} of a digest, or {text} of a test.
func (n Notification) cloudEvent(names subjects.Names) ([]byte, error) {
	e := cloudEvent{
		SpecVersion: "1.0", ID: n.ID, Source: "wake://" + names.Prefix(), Type: "wake.test",
		Time: n.utcTime().Format("2006-01-02T15:04:05.000Z07:00"), ContentType: "application/json", AnswerURL: n.link,
	}
	var data any = map[string]string{"text": n.Text}
	switch {
	case n.Alert != nil:
		e.Source += "/" + url.PathEscape(n.Alert.RunID)
		e.Type, e.Subject, data = "wake.alert."+n.Alert.Kind, n.Alert.NodeID, n.Alert
	case n.Digest != nil:
		e.Type, data = "wake.digest."+n.Digest.Reason, n.Digest
	}
	raw, err := wire.Marshal(data)
	if err != nil {
		return nil, err
	}
	if e.Data, err = wire.AppendJSON(nil, raw); err != nil {
		return nil, err
	}
	return json.Marshal(e)
}

func (n Notification) utcTime() time.Time { return time.UnixMilli(n.Time).UTC() }

func (d *Digest) summaryText(rate *Rate) string {
	total := 0
	var parts []string
	for _, s := range severities {
		if c := d.Count[s]; c > 0 {
			total += c
			parts = append(parts, fmt.Sprintf("%d %s", c, s))
		}
	}
	what := "alerts"
	if total == 1 {
		what = "alert"
	}
	about := fmt.Sprintf("%d %s (%s)", total, what, strings.Join(parts, ", "))
	switch d.Reason {
	case reasonRate:
		per := time.Duration(0)
		if rate != nil {
			per = rate.Per
		}
		return fmt.Sprintf("%s more within %s: see `wake alerts`", about, per)
	case reasonLate:
		return about + " could not be delivered in time: see `wake alerts`"
	case reasonQuiet:
		about += " in quiet hours"
	}
	lines := append([]string{about + ":"}, d.Lines...)
	if more := total - len(d.Lines); more > 0 {
		lines = append(lines, fmt.Sprintf("… and %d more: see `wake alerts`", more))
	}
	return strings.Join(lines, "\n")
}

// sendError is what an attempt failed with.
type sendError struct {
	err   error
	after time.Duration // what the sink asked for; 0: nothing
	final bool          // trying again is of no use
}

func (e *sendError) Error() string { return e.err.Error() }
func (e *sendError) Unwrap() error { return e.err }

func finalError(format string, args ...any) error {
	return &sendError{err: fmt.Errorf(format, args...), final: true}
}

// sender brings a notification to its sink, in one attempt that ends with ctx. It
// is used by one goroutine. What it fails with may be a [*sendError].
type sender interface {
	sendNotification(ctx context.Context, n Notification) error
	closeSender()
}
