package alerter

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/projection"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/pkg/wire"
)

// publishWait bounds one attempt to store an alert.
const publishWait = 5 * time.Second

// raiseAlerts lets the detectors see the input, notes what they found, and returns
// what the record has become. If it fails it is to be called again with the same
// record and input: what was noted isn't noted again. What is known was raised in
// an earlier life of the record, and isn't raised again even if it is gone.
func (a *Alerter) raiseAlerts(r runRecord, in input, known bool) (runRecord, error) {
	in.Limits = a.limits.Load()
	next, found := r.applyInput(in)
	in.Run = next.Run
	if in.Run.Copy {
		next.Deadline = 0
		return next, nil
	}
	if known {
		found = nil
	}
	if err := a.noteAll(in, found); err != nil {
		return r, err
	}
	a.days.noteSpending(next.Run.ID, next.Spending)
	if found, budget := a.days.crossBudget(in.Limits.Budget); len(found) > 0 {
		in.Run = systemRun()
		if err := a.noteAll(in, found); err != nil {
			return r, err
		}
		a.days.told = budget
	}
	return next, nil
}

// maxBatch bounds the alerts that are stored at once: the server takes no more than a thousand.
const maxBatch = 200

// fewAlerts is the number of alerts up to which they are stored one by one: a server of one replica sets up a store on disk for a
// batch, which takes as many syncs.
const fewAlerts = 6

// noteAll notes findings, whose alerts [Alerter.Flush] stores.
func (a *Alerter) noteAll(in input, found []finding) error {
	for _, f := range found {
		alert, err := a.encodeAlert(in, f)
		if err != nil {
			return err
		}
		if !a.subjects[alert.subject] {
			a.noted, a.subjects[alert.subject] = append(a.noted, alert), true
		}
	}
	return nil
}

// Flush implements [projection.Batcher]: it stores the alerts that were noted.
func (a *Alerter) Flush(ctx context.Context) error {
	for len(a.noted) > 0 {
		part := a.noted[:min(len(a.noted), maxBatch)]
		if len(part) > fewAlerts && a.publishBatch(ctx, part) == nil {
			a.forgetNoted(len(part))
			continue
		}
		for _, alert := range part {
			if err := a.publishAlert(ctx, a.told, alert); err != nil {
				return err
			}
			a.forgetNoted(1)
		}
	}
	a.noted = nil
	return nil
}

// forgetNoted forgets the first n alerts that were noted: they are stored.
func (a *Alerter) forgetNoted(n int) {
	for _, alert := range a.noted[:n] {
		delete(a.subjects, alert.subject)
	}
	a.noted = a.noted[n:]
}

// publishBatch stores alerts at once, if none of them is there. If it fails, each is to be published alone.
func (a *Alerter) publishBatch(ctx context.Context, part []newAlert) error {
	authors := uncertainAlerts{}
	batch := make([]eventlog.NewMessage, len(part))
	for i, alert := range part {
		if _, asked := a.told[alert.subject]; asked {
			return errUncertain
		}
		authors[alert.subject] = rand.Text()
		batch[i] = eventlog.NewMessage{Author: authors[alert.subject], Subject: alert.subject, Data: alert.data}
	}
	wait, cancel := context.WithTimeout(ctx, publishWait)
	defer cancel()
	refused, err := a.log.SendNew(wait, batch)
	if err != nil {
		if !refused {
			maps.Copy(a.told, authors)
		}
		return err
	}
	for _, alert := range part {
		a.noteRaised(ctx, alert)
	}
	return nil
}

var errUncertain = errors.New("some may be stored")

// noteRaised tells of an alert that this process has stored.
func (a *Alerter) noteRaised(ctx context.Context, alert newAlert) {
	a.raised.Inc()
	a.printAlert(ctx, alert.Alert)
}

// newAlert is an alert that is to be stored.
type newAlert struct {
	wire.Alert

	subject string
	data    []byte
}

// headroom is what a message may need beyond an alert.
const headroom = 4 << 10

// encodeAlert makes an alert of a finding. It fails with a [projection.Refusal].
func (a *Alerter) encodeAlert(in input, f finding) (n newAlert, err error) {
	if n.Alert, err = f.toAlert(in, a.log.Incarnation()); err == nil {
		n.data, err = wire.Marshal(n.Alert)
	}
	if err == nil && len(n.data) > int(a.log.Conn().MaxPayload())-headroom { // a run id of a megabyte
		err = nats.ErrMaxPayload
	}
	if err != nil {
		return n, &projection.Refusal{Err: fmt.Errorf("encode alert %s: %w", f.key(), err)}
	}
	n.subject = a.log.Names().Alert(n.RunID, n.NodeID, n.Kind, n.Key)
	return n, nil
}

func (a *Alerter) publishAll(ctx context.Context, told uncertainAlerts, in input, found []finding) error {
	for _, f := range found {
		alert, err := a.encodeAlert(in, f)
		if err != nil {
			return err
		}
		if err := a.publishAlert(ctx, told, alert); err != nil {
			return err
		}
	}
	return nil
}

// uncertainAlerts are the subjects of alerts that one goroutine may have stored, and as which author.
type uncertainAlerts map[string]string

// publishAlert stores an alert unless it is there, and prints it if it stored it. A
// terminal can't be asked what it has shown. So each line is printed at most once, by the
// process that stored its message: if that is killed between storing and printing,
// its successor prints nothing, and `wake alerts` has the alert. The author changes with
// each alert, since an input that comes again has had some of its alerts printed.
func (a *Alerter) publishAlert(ctx context.Context, told uncertainAlerts, alert newAlert) error {
	author, asked := told[alert.subject]
	if !asked {
		author = rand.Text()
	}
	wait, cancel := context.WithTimeout(ctx, publishWait)
	defer cancel()
	send := func() error {
		_, err := a.log.SendAs(wait, author, alert.subject, alert.data, jetstream.WithExpectLastSequencePerSubject(0))
		return err
	}
	err := send()
	for isInFlight(err) && wait.Err() == nil { // it may yet come to nothing
		pull.Sleep(wait, 20*time.Millisecond)
		err = send()
	}
	switch {
	case err == nil:
	case !isDuplicate(err):
		told[alert.subject] = author
		return fmt.Errorf("publish alert %s: %w", alert.Key, err)
	case !asked:
		return nil // told before
	default:
		stored, err := a.log.Author(wait, a.log.Names().AlertsStream(), alert.subject)
		if err != nil {
			return fmt.Errorf("publish alert %s: %w", alert.Key, err)
		}
		if stored != author {
			delete(told, alert.subject)
			return nil // it was stored before, and told
		}
	}
	delete(told, alert.subject)
	a.noteRaised(ctx, alert)
	return nil
}

func (a *Alerter) printAlert(ctx context.Context, alert wire.Alert) {
	a.printing.Lock()
	defer a.printing.Unlock()
	if _, err := fmt.Fprintln(a.cfg.Out, alert.Text); err != nil {
		a.logger.WarnContext(ctx, "alert is not printed", "key", alert.Key, "error", err)
	}
}

// isInFlight reports whether a server of a cluster refused a message because another one is being stored on its subject.
func isInFlight(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant
}

// isDuplicate reports whether the server refused a message because its subject has
// one.
func isDuplicate(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence
}
