package alerter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"wake/internal/projection"
	"wake/pkg/wire"
)

// publishWait bounds one attempt to store an alert.
const publishWait = 5 * time.Second

// raise lets the detectors see the input, stores what they found, and returns
// what the record has become. If it fails it is to be called again with the same
// record and input: what was stored isn't stored again. What is known was raised in
// an earlier life of the record, and isn't raised again even if it is gone.
func (a *Alerter) raise(ctx context.Context, r record, in input, known bool) (record, error) {
	in.Limits = a.limits.Load()
	next, found := r.step(in)
	in.Run = next.Run
	if in.Run.Copy {
		next.Deadline = 0
		return next, nil
	}
	if known {
		found = nil
	}
	if err := a.publishAll(ctx, &a.told, in, found); err != nil {
		return r, err
	}
	a.ledger.put(next.Run.ID, next.Spending)
	if found, budget := a.ledger.crossed(in.Limits.Budget); len(found) > 0 {
		in.Run = system()
		if err := a.publishAll(ctx, &a.told, in, found); err != nil {
			return r, err
		}
		a.ledger.told = budget
	}
	return next, nil
}

func (a *Alerter) publishAll(ctx context.Context, told *told, in input, found []finding) error {
	for _, f := range found {
		alert, err := f.alert(in, a.log.Incarnation())
		if err != nil {
			return &projection.Refusal{Err: fmt.Errorf("encode alert %s: %w", f.key(), err)}
		}
		if err := a.publish(ctx, told, alert); err != nil {
			return err
		}
	}
	return nil
}

// told is what one goroutine needs to know of what it has published.
type told struct {
	uncertain map[string]bool // subjects of alerts that may have been stored
}

// publish stores an alert unless it is there, and prints it if this process
// stored it.
func (a *Alerter) publish(ctx context.Context, told *told, alert wire.Alert) error {
	data, err := wire.Marshal(alert)
	if err != nil {
		return &projection.Refusal{Err: fmt.Errorf("encode alert %s: %w", alert.Key, err)}
	}
	subject := a.log.Names().Alert(alert.RunID, alert.NodeID, alert.Kind, alert.Key)
	wait, cancel := context.WithTimeout(ctx, publishWait)
	defer cancel()
	_, err = a.log.Send(wait, subject, data, jetstream.WithExpectLastSequencePerSubject(0))
	switch {
	case err == nil:
	case errors.Is(err, nats.ErrMaxPayload): // a run id of a megabyte
		return &projection.Refusal{Err: fmt.Errorf("publish alert %s: %w", alert.Key, err)}
	case !exists(err):
		told.uncertain[subject] = true
		return fmt.Errorf("publish alert %s: %w", alert.Key, err)
	case !told.uncertain[subject]:
		return nil // told before
	}
	delete(told.uncertain, subject)
	a.raised.Inc()
	a.print(ctx, alert)
	return nil
}

func (a *Alerter) print(ctx context.Context, alert wire.Alert) {
	a.printing.Lock()
	defer a.printing.Unlock()
	if _, err := fmt.Fprintln(a.cfg.Out, alert.Text); err != nil {
		a.logger.WarnContext(ctx, "alert is not printed", "key", alert.Key, "error", err)
	}
}

// exists reports whether the server refused a message because its subject has
// one.
func exists(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence
}
