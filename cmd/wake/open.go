package main

import (
	"context"
	"strings"

	"wake/internal/api"
	"wake/internal/eventlog"
	"wake/internal/seal"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// openLog connects a verb to the log, for reading. Close its connection in the
// end.
func (a *app) openLog(ctx context.Context) (*eventlog.Log, error) {
	o, err := a.logOptions()
	if err != nil {
		return nil, err
	}
	nc, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	log, err := eventlog.Open(ctx, nc, o)
	if err == nil {
		return log, nil
	}
	defer nc.Close()
	return nil, a.explain(ctx, nc, err)
}

// logOptions are what all of wake's processes open the log with.
func (a *app) logOptions() (eventlog.Options, error) {
	keys, err := a.sealKeys()
	return eventlog.Options{Names: a.names, Logger: a.log, Keys: keys, Tracer: a.tracer}, err
}

// sealKeys returns the keys of --encryption-keys; nil without.
func (a *app) sealKeys() (*seal.Keys, error) {
	if a.keys == "" {
		return nil, nil
	}
	k, err := seal.Load(a.keys)
	if err != nil {
		return nil, usage("make keys with wake auth key", "--encryption-keys: %w", err)
	}
	return k, nil
}

// runID returns the id of the run that ref means. Ids that the log has need no
// recorder, and are known as soon as the run has begun.
func (a *app) runID(ctx context.Context, log *eventlog.Log, ref string) (string, error) {
	if ref == subjects.NoRun {
		return ref, nil // what belongs to no run
	}
	if subjects.CheckID(ref) == nil && !strings.HasPrefix(ref, "@") {
		_, found, err := log.Last(ctx, ref, wire.RunNode)
		if err != nil {
			return "", err
		}
		if found {
			return ref, nil
		}
	}
	q := wire.StatusRequest{Run: ref}
	status, err := api.Call[wire.StatusResponse](ctx, log.Conn(), a.names, wire.VerbStatus, q)
	if err != nil {
		return "", err
	}
	return status.RunID, nil
}
