package main

import (
	"context"
	"strings"

	"wake/internal/api"
	"wake/internal/eventlog"
	"wake/pkg/subjects"
	"wake/pkg/wire"
)

// openLog connects a verb to the log, for reading. Close its connection in the
// end.
func (a *app) openLog(ctx context.Context) (*eventlog.Log, error) {
	nc, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	log, err := eventlog.Open(ctx, nc, eventlog.Options{Names: a.names, Logger: a.log})
	if err == nil {
		return log, nil
	}
	defer nc.Close()
	return nil, a.explain(ctx, nc, err)
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
