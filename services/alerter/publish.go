package alerter

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/projection"
	"code.wake.dev/wake/pkg/wire"
)

// publishWait bounds one attempt to store an alert.
const publishWait = 5 * time.Second

// raiseAlerts lets the detectors see the input, stores what they found, and returns
// what the record has become. If it fails it is to be called again with the same
// record and input: what was stored isn't stored again. What is known was raised in
// an earlier life of the record, and isn't raised again even if it is gone.
func (a *Alerter) raiseAlerts(ctx context.Context, r runRecord, in input, known bool) (runRecord, error) {
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
	if err := a.publishAll(ctx, a.told, in, found); err != nil {
		return r, err
	}
	a.days.noteSpending(next.Run.ID, next.Spending)
	if found, budget := a.days.crossBudget(in.Limits.Budget); len(found) > 0 {
		in.Run = systemRun()
		if err := a.publishAll(ctx, a.told, in, found); err != nil {
			return r, err
		}
		a.days.told = budget
	}
	return next, nil
}

func (a *Alerter) publishAll(ctx context.Context, told uncertainAlerts, in input, found []finding) error {
	for _, f := range found {
		alert, err := f.toAlert(in, a.log.Incarnation())
		if err != nil {
			return &projection.Refusal{Err: fmt.Errorf("encode alert %s: %w", f.key(), err)}
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
func (a *Alerter) publishAlert(ctx context.Context, told uncertainAlerts, alert wire.Alert) error {
	data, err := wire.Marshal(alert)
	if err != nil {
		return &projection.Refusal{Err: fmt.Errorf("encode alert %s: %w", alert.Key, err)}
	}
	subject := a.log.Names().Alert(alert.RunID, alert.NodeID, alert.Kind, alert.Key)
	author, asked := told[subject]
	if !asked {
		author = rand.Text()
	}
	wait, cancel := context.WithTimeout(ctx, publishWait)
	defer cancel()
	_, err = a.log.SendAs(wait, author, subject, data, jetstream.WithExpectLastSequencePerSubject(0))
	switch {
	case err == nil:
	case errors.Is(err, nats.ErrMaxPayload): // a run id of a megabyte
		return &projection.Refusal{Err: fmt.Errorf("publish alert %s: %w", alert.Key, err)}
	case !isDuplicate(err):
		told[subject] = author
		return fmt.Errorf("publish alert %s: %w", alert.Key, err)
	case !asked:
		return nil // told before
	default:
		stored, err := a.log.Author(wait, a.log.Names().AlertsStream(), subject)
		if err != nil {
			return fmt.Errorf("publish alert %s: %w", alert.Key, err)
		}
		if stored != author {
			delete(told, subject)
			return nil // it was stored before, and told
		}
	}
	delete(told, subject)
	a.raised.Inc()
	a.printAlert(ctx, alert)
	return nil
}

func (a *Alerter) printAlert(ctx context.Context, alert wire.Alert) {
	a.printing.Lock()
	defer a.printing.Unlock()
	if _, err := fmt.Fprintln(a.cfg.Out, alert.Text); err != nil {
		a.logger.WarnContext(ctx, "alert is not printed", "key", alert.Key, "error", err)
	}
}

// isDuplicate reports whether the server refused a message because its subject has
// one.
func isDuplicate(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence
}
