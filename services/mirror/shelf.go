package mirror

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// shelf has the transcripts of a session: its own, and those of its sub-agents. They are one run.
type shelf struct {
	m *Mirror
	sessionKey

	mu      sync.Mutex
	files   map[string]*file // by subpath
	run     string           // "": none was chosen
	begun   bool             // the log has its beginning
	resting bool             // it is paused there, or nothing is known of it here
	owner   *eventlog.Writer
	about   session.About
	changed time.Time // when it was last appended to
}

// errConflict is returned to a program if its summary doesn't know all that is kept.
var errConflict = errors.New("something was appended since")

// append keeps entries, and tells them. What is kept already, by its uuid, isn't kept again.
func (s *shelf) append(ctx context.Context, q programRequest) (at int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[q.subpath]
	if f == nil {
		f = &file{s: s, rec: transcriptRecord{Project: s.project, Session: s.session, Subpath: q.subpath}}
	}
	if q.Summary != nil && q.Summary.After != f.rec.At {
		return 0, errConflict
	}
	if err := f.openFile(ctx); err != nil {
		f.close(ctx)
		return 0, err
	}
	s.changed = time.Now()
	next := f.rec
	next.At, next.Run = max(time.Now().UnixMilli(), f.rec.At+1), s.run
	if q.Summary != nil {
		next.Summary, next.Folded = q.Summary.Data, next.At
	}
	if err := f.storeEntries(ctx, q, next); err != nil {
		f.close(ctx) // it may be stored or not
		return 0, err
	}
	s.files[q.subpath] = f
	if err := f.tellChunks(ctx); err != nil { // it is kept: it is told later
		s.m.logger.Warn("what was appended to a session isn't told yet", "session", s.session, "run", s.run, "error", err)
		f.close(ctx)
		f.untold = true
	}
	return f.rec.At, nil
}

// noteTrouble tells that a program has lost entries.
func (s *shelf) noteTrouble(ctx context.Context, q programRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[q.subpath]
	if f == nil { // nothing of it has come
		f = &file{s: s, rec: transcriptRecord{Project: s.project, Session: s.session, Subpath: q.subpath}}
		defer f.close(ctx)
	}
	s.changed = time.Now()
	return f.tellTrouble(ctx, q)
}

// load returns the lines of a transcript, and when it was last added to. It is nil for one that was never appended to.
func (s *shelf) load(ctx context.Context, subpath string) (lines []byte, at int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[subpath]
	if f == nil {
		return nil, 0, nil
	}
	lines, err = s.m.kept.Load(ctx, f.rec.object())
	return lines, f.rec.At, err
}

func (s *shelf) shelfRecords() (all []transcriptRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.files {
		all = append(all, f.rec)
	}
	return all
}

// remove removes a transcript; with the session's own one all others of the session, and its run, as far as retention lets it go.
func (s *shelf) remove(ctx context.Context, subpath string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if subpath != "" {
		f := s.files[subpath]
		if f == nil {
			return nil
		}
		if err := f.tellRemoved(ctx); err != nil {
			return err
		}
		return f.remove(ctx)
	}
	if len(s.files) == 0 {
		return nil
	}
	if err := s.endRun(ctx); err != nil {
		return err
	}
	for _, f := range s.files {
		if err := f.remove(ctx); err != nil {
			return err
		}
	}
	s.m.mu.Lock()
	if s.m.runs[s.run] == s {
		delete(s.m.runs, s.run)
	}
	s.m.mu.Unlock()
	s.run, s.begun, s.resting, s.about = "", false, true, session.About{}
	return nil
}

// deleteTime is how long the recorder may take to hear of the end of a run that is to be deleted.
const deleteTime = 5 * time.Second

// endRun ends the run, and has it deleted as `wake delete` does: one that something needs stays.
func (s *shelf) endRun(ctx context.Context) error {
	if s.run == "" {
		return nil
	}
	if err := s.findBeginning(ctx); err != nil {
		return err
	}
	if !s.begun {
		return nil
	}
	if err := s.appendOwn(ctx, &wire.Event{Payload: &wire.FlowAborted{Reason: "the session was deleted from its store"}}); err != nil {
		return err
	}
	s.close(ctx)
	limited, stop := context.WithTimeout(ctx, deleteTime)
	defer stop()
	for {
		_, err := api.Call[wire.DeleteResponse](limited, s.m.log.Conn(), s.m.log.Names(), wire.VerbDelete, wire.DeleteRequest{Run: s.run})
		known, told := errors.AsType[*wire.APIError](err)
		switch {
		case err == nil:
			return nil
		case !told || known.Code != wire.CodeCommandRejected && known.Code != wire.CodeRunNotFound:
			return fmt.Errorf("mirror: delete run %s: %w", s.run, err)
		}
		select {
		case <-limited.Done():
			s.m.logger.Info("the run of a deleted session stays", "run", s.run, "why", known.Message)
			return nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// chooseRun chooses the run that tells of the session: that of its id, unless it tells of something else.
func (s *shelf) chooseRun(ctx context.Context) error {
	sum := sha256.Sum256([]byte(s.project + "\x00" + s.session))
	suffix := "-" + hex.EncodeToString(sum[:4])
	base := s.session
	if subjects.CheckID(base) != nil || subjects.CheckID(base+suffix+"-999") != nil {
		base = "session"
	}
	for n := 0; ; n++ {
		run := base
		switch {
		case n == 0 && base != s.session:
			continue
		case n == 1:
			run += suffix
		case n > 1:
			run += suffix + "-" + strconv.Itoa(n)
		}
		if !s.m.takeRun(run, s) {
			continue
		}
		free, err := s.isFree(ctx, run)
		if free {
			s.run = run
			return nil
		}
		s.m.mu.Lock()
		delete(s.m.runs, run)
		s.m.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// checkRun makes sure that there is a run to tell of the session: one that was told to end, when the session was about to be deleted, isn't.
func (s *shelf) checkRun(ctx context.Context) error {
	if s.run != "" && !s.begun {
		free, err := s.isFree(ctx, s.run)
		if err != nil {
			return err
		}
		if !free {
			s.run = ""
		}
	}
	if s.run != "" {
		return nil
	}
	return s.chooseRun(ctx)
}

// isFree reports whether a run may tell of the session: there is none yet, or a watcher or hooks tell of it, too.
func (s *shelf) isFree(ctx context.Context, run string) (bool, error) {
	for e, err := range history.ReadSession(ctx, s.m.log, eventlog.Query{Run: run, Node: wire.RunNode, Kinds: []wire.Kind{wire.KindFlow}}) {
		if err != nil {
			return false, err
		}
		if e.Err != nil {
			continue
		}
		switch p := e.Event.Payload.(type) {
		case *wire.FlowStart:
			if p.Imported != wire.ImportedIngest {
				return false, nil
			}
		case *wire.RunForked, *wire.FlowComplete, *wire.FlowAborted:
			return false, nil
		}
	}
	driven, err := s.m.kept.Load(ctx, run) // by a runner, that keeps the session's file
	return err == nil && driven == nil, err
}

// findBeginning looks up what the log has of the run itself.
func (s *shelf) findBeginning(ctx context.Context) error {
	s.begun, s.resting = false, false
	for e, err := range history.ReadSession(ctx, s.m.log, eventlog.Query{Run: s.run, Node: wire.RunNode, Kinds: []wire.Kind{wire.KindFlow}}) {
		if err != nil {
			return err
		}
		if e.Err != nil {
			continue
		}
		switch e.Event.Payload.(type) {
		case *wire.FlowStart:
			s.begun = true
		case *wire.FlowPaused:
			s.resting = true
		case *wire.FlowResumed:
			s.resting = false
		}
	}
	return nil
}

// wakeRun begins the run, or has it go on, before something of it is told.
func (s *shelf) wakeRun(ctx context.Context) error {
	if s.begun && !s.resting {
		return nil
	}
	if err := s.findBeginning(ctx); err != nil {
		return err
	}
	switch {
	case s.begun && !s.resting:
		return nil
	case s.begun:
		err := s.appendOwn(ctx, &wire.Event{Payload: &wire.FlowResumed{Strategy: "manual"}})
		s.resting = err != nil
		return err
	}
	about := s.about
	about.Session = s.session
	start, err := about.Start("")
	if err != nil {
		return err
	}
	e := &wire.Event{Timestamp: about.At, Payload: start}
	if e.Timestamp == 0 {
		e.Timestamp = time.Now().UnixMilli()
	}
	err = s.appendOwn(ctx, e)
	s.begun = err == nil
	return err
}

// appendOwn appends events of the run itself. Another writer there, such as a watcher, is heard first.
func (s *shelf) appendOwn(ctx context.Context, e *wire.Event) (err error) {
	if s.owner == nil || s.owner.Err() != nil {
		begun, resting := s.begun, s.resting
		if s.owner, err = history.Claim(ctx, s.m.log, s.run, wire.RunNode, eventlog.Claim{Runner: s.m.cfg.ID}); err != nil {
			return err
		}
		if err := s.findBeginning(ctx); err != nil || s.begun != begun || s.resting != resting {
			return errors.Join(err, errElsewhere)
		}
	}
	_, err = s.owner.Append(ctx, e)
	return err
}

// errElsewhere is returned if another feed of the session has just written the same.
var errElsewhere = errors.New("another feed of the session was faster")

// pauseQuiet tells what wasn't told, and pauses the run if nothing was appended for a while.
func (s *shelf) pauseQuiet(ctx context.Context, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.files {
		if !f.untold {
			continue
		}
		err := f.openFile(ctx)
		if err == nil {
			err = f.tellChunks(ctx)
		}
		if err != nil {
			f.close(ctx)
			return err
		}
		f.untold = false
	}
	if s.run == "" || now.Sub(s.changed) < s.m.cfg.Idle || s.changed.IsZero() {
		return nil
	}
	if !s.resting {
		if err := s.findBeginning(ctx); err != nil {
			return err
		}
		if s.begun && !s.resting {
			for _, f := range s.files {
				if err := f.tellRest(ctx); err != nil {
					return err
				}
			}
			e := &wire.Event{Payload: &wire.FlowPaused{Reason: wire.PauseIdle, Message: "nothing was appended for a while"}}
			if err := s.appendOwn(ctx, e); err != nil {
				return err
			}
			s.resting = true
		}
	}
	s.close(ctx)
	s.changed = time.Time{}
	return nil
}

// close lets go of what is needed to append on.
func (s *shelf) close(ctx context.Context) {
	for _, f := range s.files {
		f.close(ctx)
	}
	if s.owner != nil {
		_ = s.owner.Close(ctx) // what was appended is stored
	}
	s.owner = nil
}

func (m *Mirror) saveRecord(ctx context.Context, r transcriptRecord, revision uint64) (uint64, error) {
	value, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	key := m.log.Names().StateKey(name, r.key())
	next, err := m.records.Save(ctx, key, value, revision)
	if errors.Is(err, jetstream.ErrKeyExists) { // the answer to a save got lost
		if _, revision, err = m.records.Get(ctx, key); err == nil {
			next, err = m.records.Save(ctx, key, value, revision)
		}
	}
	return next, err
}
