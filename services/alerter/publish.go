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
// record and input: what was stored isn't stored again.
func (a *Alerter) raise(ctx context.Context, r record, in input) (record, error) {
	next, found := r.step(in)
	in.Run = next.Run
	if in.Run.Copy {
		next.Deadline = 0
		return next, nil
	}
	for _, f := range found {
		alert, err := f.alert(in, a.log.Incarnation())
		if err != nil {
			return r, &projection.Refusal{Err: fmt.Errorf("encode alert %s: %w", f.key(), err)}
		}
		if err := a.publish(ctx, alert); err != nil {
			return r, err
		}
	}
	return next, nil
}

// publish stores an alert unless it is there, and prints it if this process
// stored it.
func (a *Alerter) publish(ctx context.Context, alert wire.Alert) error {
	data, err := wire.Marshal(alert)
	if err != nil {
		return &projection.Refusal{Err: fmt.Errorf("encode alert %s: %w", alert.Key, err)}
	}
	subject := a.log.Names().Alert(alert.RunID, alert.NodeID, alert.Kind, alert.Key)
	wait, cancel := context.WithTimeout(ctx, publishWait)
	defer cancel()
	_, err = a.log.JetStream().Publish(wait, subject, data, jetstream.WithExpectLastSequencePerSubject(0))
	switch {
	case err == nil:
	case errors.Is(err, nats.ErrMaxPayload): // a run id of a megabyte
		return &projection.Refusal{Err: fmt.Errorf("publish alert %s: %w", alert.Key, err)}
	case !exists(err):
		a.uncertain[subject] = true
		return fmt.Errorf("publish alert %s: %w", alert.Key, err)
	case !a.uncertain[subject]:
		return nil // told before
	}
	delete(a.uncertain, subject)
	a.raised.Inc()
	if _, err := fmt.Fprintln(a.cfg.Out, alert.Text); err != nil {
		a.logger.WarnContext(ctx, "alert is not printed", "key", alert.Key, "error", err)
	}
	return nil
}

// exists reports whether the server refused a message because its subject has
// one.
func exists(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence
}
