package inlet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/pull"
	"code.wake.dev/wake/pkg/wire"
)

// readingService is in the keys, in WAKE_STATE, of the runs whose inputs runners read.
const readingService = "ingest"

// reading says which runner's server reads the input of a run. It outlives a server that is killed: another one, or the next, ends the run.
type reading struct {
	V      int    `json:"v"`
	Run    string `json:"run"`
	Server string `json:"server"` // see [subjects.Names.Ingest]
	Writer string `json:"writer"` // claims the run; a run that another writer has claimed since isn't ended
}

const (
	orphanEvery = 10 * time.Second // how often servers look for readings of others
	maxMissing  = 3                // so many times in a row nobody answers for a server that is gone
)

// noteReading notes that this server reads the input of a run, until it calls the function that noteReading returns, with the error
// of the reading. A reading that there is, of a server that may be gone, stays.
func (s *Server) noteReading(ctx context.Context, run, writer string) (forget func(error)) {
	key := s.log.Names().StateKey(readingService, run)
	s.noteRun(run, 1) // before others see it
	leave := func(error) { s.noteRun(run, -1) }
	kv, err := s.stateBucket(ctx)
	if err == nil {
		err = putReading(ctx, kv, key, reading{wire.Version, run, s.id, writer}, 0)
	}
	switch {
	case keys.IsConflict(err):
		return leave
	case err != nil:
		s.logger.Warn("nobody will end the run if this process dies", "run", run, "error", err)
		return leave
	}
	return func(err error) {
		leave(err)
		rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		if errors.Is(err, ingest.ErrExists) { // the run is another writer's
			err = nil
		} else {
			err = s.checkEnded(rest, run)
		}
		if err == nil {
			err = kv.Delete(rest, key)
		}
		if err != nil {
			s.logger.Warn("the run may have no end yet: it is ended later", "run", run, "error", err)
		}
	}
}

// noteRun notes that one input more of a run is read here, or one less.
func (s *Server) noteRun(run string, more int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs[run] += more; s.runs[run] == 0 {
		delete(s.runs, run)
	}
}

// checkEnded fails if a run has begun and not ended. It folds nothing: the run may be long, and its sender waits.
func (s *Server) checkEnded(ctx context.Context, run string) error {
	e, begun, err := s.log.Last(ctx, run, wire.RunNode)
	if err == nil && begun && (e.Event == nil || e.Event.Type() != wire.TypeFlowComplete) {
		err = errors.New("it hasn't ended")
	}
	return err
}

// isOpen reports whether a writer has claimed a run last, and hasn't ended it.
func isOpen(s *wire.State, writer string) bool {
	return s.Status == wire.RunRunning && s.Imported == wire.ImportedIngest && s.Nodes[wire.RunNode].Runner == writer
}

func (s *Server) stateBucket(ctx context.Context) (jetstream.KeyValue, error) {
	return s.log.JetStream().KeyValue(ctx, s.log.Names().StateBucket())
}

// putReading stores a reading over that of a revision. It fails if there is one of another revision; 0: if there is any.
func putReading(ctx context.Context, kv jetstream.KeyValue, key string, r reading, revision uint64) error {
	value, err := wire.Marshal(r)
	switch {
	case err != nil:
	case revision == 0:
		_, err = kv.Create(ctx, key, value)
	default:
		_, err = kv.Update(ctx, key, value, revision)
	}
	return err
}

// followReadings keeps what all servers read, until ctx ends.
func (s *Server) followReadings(ctx context.Context) {
	n := s.log.Names()
	for ctx.Err() == nil {
		s.forgetReadings() // all come again
		for e, err := range keys.Watch(ctx, s.log.JetStream(), n.StateBucket(), n.ServiceStates(readingService)) {
			switch {
			case err != nil:
				s.logger.Debug("what is being read is asked for anew", "error", err)
			case e.Key != "":
				s.noteEntry(e)
			}
		}
		pull.Sleep(ctx, orphanEvery)
	}
}

func (s *Server) forgetReadings() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.readings)
}

func (s *Server) noteEntry(e keys.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.readings, e.Key); !e.Deleted {
		s.readings[e.Key] = e
	}
}

// watchOrphans ends runs whose servers have died while they read, until ctx ends.
func (s *Server) watchOrphans(ctx context.Context) {
	missing := map[string]int{} // by key
	for ctx.Err() == nil {
		pull.Sleep(ctx, orphanEvery)
		if err := s.endOrphans(ctx, missing); err != nil && ctx.Err() == nil {
			s.logger.Warn("runs whose readers are gone weren't ended: they are later", "error", err)
		}
	}
}

// endOrphans ends the runs of servers that haven't answered several times in a row.
func (s *Server) endOrphans(ctx context.Context, missing map[string]int) error {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.readings))
	s.mu.Unlock()
	absent := map[string]bool{}
	for _, e := range all {
		var r reading
		if err := wire.Unmarshal(e.Value, &r); err != nil {
			s.logger.Warn("what is being read can't be told", "key", e.Key, "error", err)
			continue
		}
		if s.isPresent(ctx, r) {
			continue
		}
		if absent[e.Key] = true; r.Server != s.id {
			if missing[e.Key]++; missing[e.Key] < maxMissing {
				continue
			}
		}
		if err := s.endOrphan(ctx, e, r); err != nil {
			return fmt.Errorf("run %s: %w", r.Run, err)
		}
	}
	for key := range missing {
		if !absent[key] {
			delete(missing, key)
		}
	}
	return nil
}

// isPresent reports whether the server that reads an input is there, or may be.
func (s *Server) isPresent(ctx context.Context, r reading) bool {
	if r.Server == s.id {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.runs[r.Run] > 0
	}
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	_, err := s.log.Conn().RequestWithContext(ctx, s.log.Names().Ingest(r.Server), nil) // a piece of nothing, which it refuses
	return !errors.Is(err, nats.ErrNoResponders)
}

// endOrphan makes a reading this server's, and ends its run, unless the run's writer has ended it or is another one.
func (s *Server) endOrphan(ctx context.Context, e keys.Entry, r reading) error {
	kv, err := s.stateBucket(ctx)
	if err != nil {
		return err
	}
	r.Server = s.id
	if err := putReading(ctx, kv, e.Key, r, e.Revision); err != nil {
		if keys.IsConflict(err) {
			return nil // another server is faster
		}
		return err
	}
	last, _, err := s.log.LastMessage(ctx, r.Run, wire.RunNode)
	if err != nil {
		return err
	}
	state, err := history.StateAt(ctx, s.log, r.Run, 0)
	switch {
	case err != nil:
		return err
	case state.Position.Seq < last.Pos:
		return errors.New("its state isn't there yet")
	case isOpen(state, r.Writer):
		if err := ingest.FailRun(ctx, s.log, state, last, r.Writer, "the runner that read the input is gone"); err != nil {
			return err
		}
		s.logger.Info("ended a run whose reader is gone", "run", r.Run)
	}
	return keys.Delete(ctx, kv, e.Key, 0)
}
