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

// readingService is in the keys, in WAKE_STATE, of the runs whose inputs are being read.
const readingService = "ingest"

// reading says who reads the input of a run. It outlives a server that is killed: another one, or the next, ends the run.
type reading struct {
	V      int    `json:"v"`
	Run    string `json:"run"`
	Server string `json:"server"` // see [subjects.Names.Ingest]
	Writer string `json:"writer"` // in whose name the run is claimed; one that is another's isn't ended
}

const (
	orphanEvery = 10 * time.Second // how often servers look for readings of others
	maxMissing  = 3                // so many times in a row nobody answers for a server that is gone
)

// noteReading notes that this server reads the input of a run, until the function that it returns is called. A run that is
// being read already, or was and never ended, is that reader's.
func (s *Server) noteReading(ctx context.Context, run, writer string) (forget func()) {
	key := s.log.Names().StateKey(readingService, run)
	s.noteRun(run, 1) // before others see it
	leave := func() { s.noteRun(run, -1) }
	kv, err := s.states(ctx)
	if err == nil {
		err = s.putReading(ctx, kv, key, reading{wire.Version, run, s.id, writer}, 0)
	}
	switch {
	case errors.Is(err, jetstream.ErrKeyExists):
		return leave
	case err != nil:
		s.logger.Warn("nobody will end the run if this process dies", "run", run, "error", err)
		return leave
	}
	return func() {
		leave()
		rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		if err := s.forgetReading(rest, kv, key, run, writer); err != nil {
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

// forgetReading forgets a reading, unless its run is still to be ended.
func (s *Server) forgetReading(ctx context.Context, kv jetstream.KeyValue, key, run, writer string) error {
	state, err := history.StateAt(ctx, s.log, run, 0)
	if err != nil {
		return err
	}
	if isOpen(state, writer) {
		return errors.New("it hasn't ended")
	}
	return kv.Delete(ctx, key)
}

// isOpen reports whether a run is a writer's that hasn't ended it.
func isOpen(s *wire.State, writer string) bool {
	return s.Status == wire.RunRunning && s.Imported == wire.ImportedIngest && s.Nodes[wire.RunNode].Runner == writer
}

func (s *Server) states(ctx context.Context) (jetstream.KeyValue, error) {
	return s.log.JetStream().KeyValue(ctx, s.log.Names().StateBucket())
}

// putReading stores who reads an input. It fails if there is one of another revision; 0: if there is any.
func (*Server) putReading(ctx context.Context, kv jetstream.KeyValue, key string, r reading, revision uint64) error {
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

func (s *Server) noteEntry(e keys.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.readings, e.Key); !e.Deleted {
		s.readings[e.Key] = e
	}
}

// watchOrphans ends runs whose readers are gone, until ctx ends.
func (s *Server) watchOrphans(ctx context.Context) {
	missing := map[string]int{} // by key
	for ctx.Err() == nil {
		pull.Sleep(ctx, orphanEvery)
		if err := s.endOrphans(ctx, missing); err != nil && ctx.Err() == nil {
			s.logger.Warn("runs whose readers are gone weren't ended: they are later", "error", err)
		}
	}
}

// endOrphans ends the runs for whose readers nobody has answered for a while.
func (s *Server) endOrphans(ctx context.Context, missing map[string]int) error {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.readings))
	s.mu.Unlock()
	present := map[string]bool{}
	for _, e := range all {
		var r reading
		if err := wire.Unmarshal(e.Value, &r); err != nil {
			s.logger.Warn("what is being read can't be told", "key", e.Key, "error", err)
			continue
		}
		if s.isPresent(ctx, r) {
			continue
		}
		if present[e.Key] = true; r.Server != s.id {
			if missing[e.Key]++; missing[e.Key] < maxMissing {
				continue
			}
		}
		if err := s.endOrphan(ctx, e, r); err != nil {
			return fmt.Errorf("run %s: %w", r.Run, err)
		}
	}
	for key := range missing {
		if !present[key] {
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

// endOrphan ends a run whose reader is gone.
func (s *Server) endOrphan(ctx context.Context, e keys.Entry, r reading) error {
	kv, err := s.states(ctx)
	if err != nil {
		return err
	}
	r.Server = s.id
	if err := s.putReading(ctx, kv, e.Key, r, e.Revision); err != nil {
		if errors.Is(err, jetstream.ErrKeyExists) {
			return nil // another server is faster
		}
		return err
	}
	state, err := history.StateAt(ctx, s.log, r.Run, 0)
	if err != nil {
		return err
	}
	if isOpen(state, r.Writer) {
		if err := ingest.Fail(ctx, s.log, state, r.Writer, "the runner that read the input is gone"); err != nil {
			return err
		}
		s.logger.Info("ended a run whose reader is gone", "run", r.Run)
	}
	return s.forgetReading(ctx, kv, e.Key, r.Run, r.Writer)
}
