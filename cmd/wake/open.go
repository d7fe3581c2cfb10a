package main

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// showAnswer asks the recorder, and prints its answer: for people by show, for programs as JSON.
func showAnswer[A interface{ EventsBehind() uint64 }](ctx context.Context, a *app, verb string, q any, show func(A) error) error {
	nc, err := a.connectServer(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	answer, err := api.Call[A](ctx, nc, a.names, verb, q)
	if err != nil {
		return err
	}
	a.noteLag(answer.EventsBehind())
	if a.json {
		return a.printJSON(answer)
	}
	return show(answer)
}

// openReader connects a verb to what is recorded. Close its connection in the end.
func (a *app) openReader(ctx context.Context) (*feed.Reader, error) {
	nc, err := a.connectServer(ctx)
	if err != nil {
		return nil, err
	}
	r, err := a.readerOn(ctx, nc)
	if err != nil {
		nc.Close()
	}
	return r, err
}

// openRecord connects a verb to what is recorded, and finds the run that ref means.
func (a *app) openRecord(ctx context.Context, ref string) (*feed.Reader, string, error) {
	log, err := a.openReader(ctx)
	if err != nil {
		return nil, "", err
	}
	run, err := a.runID(ctx, log, ref)
	if err != nil {
		log.Conn().Close()
	}
	return log, run, err
}

func (a *app) readerOn(ctx context.Context, nc *nats.Conn) (*feed.Reader, error) {
	keys, err := a.sealKeys()
	if err != nil {
		return nil, err
	}
	return feed.Open(ctx, nc, feed.Options{Names: a.names, Keys: keys, Logger: a.log, Away: a.noteAway})
}

// noteAway says that what is followed gets no answer, with the reason, or with nil that it
// goes on.
func (a *app) noteAway(err error) {
	if err == nil {
		a.printNote("the recorder is back\n")
		return
	}
	a.printNote("waiting for the recorder: %s\n", err)
}

// openLog connects a verb to the streams, for writing. Close its connection in the end.
func (a *app) openLog(ctx context.Context) (*eventlog.Log, error) {
	o, err := a.logOptions()
	if err != nil {
		return nil, err
	}
	nc, err := a.connectServer(ctx)
	if err != nil {
		return nil, err
	}
	if err := needStreams(nc, "this is done in the streams themselves, as the user init may"); err != nil {
		nc.Close()
		return nil, err
	}
	var log *eventlog.Log
	err = topology.AwaitLeader(ctx, nc, func() (err error) {
		log, err = eventlog.Open(ctx, nc, o)
		return err
	})
	if err == nil {
		return log, nil
	}
	defer nc.Close()
	return nil, a.explainServer(ctx, nc, err)
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
		return nil, usageError("make keys with wake auth key", "--encryption-keys: %w", err)
	}
	return k, nil
}

// runID returns the id of the run that ref means. Ids that the log has need no
// recorder, and are known as soon as the run has begun.
func (a *app) runID(ctx context.Context, log eventlog.Reader, ref string) (string, error) {
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
