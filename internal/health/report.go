package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Report is what a process tells others of its troubles, in WAKE_STATE as health.<process>. One
// without troubles has none.
type Report struct {
	V        int       `json:"v"`
	Process  string    `json:"process"` // for people
	At       int64     `json:"at"`      // Unix ms
	Troubles []Symptom `json:"troubles"`
}

// Symptom is a trouble as it is stored.
type Symptom struct {
	Part  string `json:"part"`
	Text  string `json:"text"`
	Since int64  `json:"since"` // Unix ms
}

// Service returns the service that a part is of.
func Service(part string) string {
	service, _, _ := strings.Cut(part, ": ")
	return service
}

// How often a report is written again, and after which time it is that of a process which is
// gone.
const (
	reportEvery = 20 * time.Second
	reportAge   = time.Minute
)

// service names the keys of the reports in WAKE_STATE.
const service = "health"

// Publish reports the troubles of a process until ctx ends. Its key tells it apart from others
// of its kind; name is for people.
func (b *Board) Publish(ctx context.Context, js jetstream.JetStream, names subjects.Names, key, name string) error {
	key = names.StateKey(service, key)
	shown := true // by an earlier process, maybe
	for ctx.Err() == nil {
		changed, again := b.Changed(), reportEvery
		troubles := b.Troubles()
		if shown || len(troubles) > 0 {
			wait, cancel := context.WithTimeout(ctx, reportEvery/4)
			err := replaceReport(wait, js, names, key, name, troubles)
			cancel()
			shown = len(troubles) > 0 || err != nil
			if err != nil {
				b.logger.Debug("health not reported", slog.Any("error", err))
				again = time.Second
			}
		}
		select {
		case <-changed:
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
	if !shown {
		return nil
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := replaceReport(last, js, names, key, name, nil); err != nil {
		b.logger.Debug("health not withdrawn, it grows old", slog.Any("error", err))
	}
	return nil
}

// replaceReport replaces the report of a process; without troubles it is removed.
func replaceReport(ctx context.Context, js jetstream.JetStream, names subjects.Names, key, name string, troubles []Trouble) error {
	kv, err := js.KeyValue(ctx, names.StateBucket())
	if err != nil {
		return err
	}
	if len(troubles) == 0 {
		if _, err := kv.Get(ctx, key); errors.Is(err, jetstream.ErrKeyNotFound) {
			return nil
		}
		return keys.Delete(ctx, kv, key, 0)
	}
	r := Report{V: wire.Version, Process: name, At: time.Now().UnixMilli()}
	for _, t := range troubles {
		r.Troubles = append(r.Troubles, Symptom{Part: t.Part, Text: t.Err.Error(), Since: t.Since.UnixMilli()})
	}
	data, err := wire.Marshal(r)
	if err == nil {
		_, err = kv.Put(ctx, key, data)
	}
	return err
}

// Reports returns the reports of the processes that are in trouble.
func Reports(ctx context.Context, js jetstream.JetStream, names subjects.Names) ([]Report, error) {
	kv, err := js.KeyValue(ctx, names.StateBucket())
	if err != nil {
		return nil, fmt.Errorf("health: %w", err)
	}
	list, err := kv.ListKeysFiltered(ctx, names.ServiceStates(service))
	if err != nil {
		return nil, fmt.Errorf("health: %w", err)
	}
	defer list.Stop() //nolint:errcheck // the watch ends with ctx, too
	var all []Report
	for key := range list.Keys() {
		e, err := kv.Get(ctx, key)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue // it is well again
		}
		if err != nil {
			return nil, fmt.Errorf("health: %w", err)
		}
		var r Report
		if wire.Unmarshal(e.Value(), &r) == nil && time.Since(e.Created()) < reportAge {
			all = append(all, r)
		}
	}
	return all, nil
}
