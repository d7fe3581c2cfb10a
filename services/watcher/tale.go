package watcher

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/agent/workdir"
	"code.wake.dev/wake/internal/completeness"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// tale is the run of a session.
type tale struct {
	run      string
	session  string
	files    []*file
	owner    *eventlog.Writer // nil: not claimed
	begun    bool             // the log has its beginning
	foreign  bool             // it isn't told by watchers
	holder   session.Holder   // as the log has it
	resting  bool             // it is paused there
	at       int64            // the last time that it tells of, Unix ms
	changed  time.Time        // when it was last told of, here
	compared uint64           // the last that hooks had told when its files were compared with that
}

func (t *tale) forgetFile(f *file) {
	t.files = slices.DeleteFunc(t.files, func(other *file) bool { return other == f })
}

// placeFile finds the run that a file belongs to.
func (w *Watcher) placeFile(ctx context.Context, f *file) error {
	id, err := sessionOf(f)
	if err != nil {
		return err
	}
	f.node = nodeOf(f.name)
	if f.refused = !isID(id) || !isID(f.node); f.refused {
		w.logger.Warn("a file is named like no session", "file", f.name)
		return nil
	}
	runID := id
	first, err := w.firstFile(ctx, f, id)
	if err != nil {
		return err
	}
	if first != "" {
		if isCopy(f.path, first) {
			return errForeign // such as where a fork of the session begins; it may go on by itself later
		}
		sum := sha256.Sum256([]byte(f.name))
		runID = id + "-" + hex.EncodeToString(sum[:4])
	}
	t := w.tales[runID]
	if t == nil {
		t = &tale{run: runID, session: id}
		if err := w.findBeginning(ctx, t); err != nil {
			return err
		}
		w.tales[runID] = t
	}
	if f.refused = t.foreign; !f.refused {
		t.files = append(t.files, f)
		f.tale = t
	}
	return nil
}

func isID(text string) bool { return subjects.CheckID(text) == nil }

// sessionOf returns the session of a file: it is named so, or its folder is; of a sub-agent of older versions its first
// lines say it.
func sessionOf(f *file) (string, error) {
	dir := path.Dir(f.name)
	switch {
	case nodeOf(f.name) == session.MainNode:
		return strings.TrimSuffix(path.Base(f.name), ".jsonl"), nil
	case path.Base(dir) == "subagents":
		return path.Base(path.Dir(dir)), nil
	}
	about, err := session.Read(f.path)
	if err == nil && about.Session == "" && time.Since(f.changed) < retryTime {
		err = errEarly
	}
	return about.Session, err
}

// isCopy reports whether a file has nothing that another one doesn't begin with.
func isCopy(path, of string) bool {
	a, err := workdir.OpenFile(path)
	if err != nil {
		return false
	}
	defer func() { _ = a.Close() }() // it was only read
	b, err := workdir.OpenFile(of)
	if err != nil {
		return false
	}
	defer func() { _ = b.Close() }() // it was only read
	piece, other := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err := io.ReadFull(a, piece)
		if m, _ := io.ReadFull(b, other[:n]); m < n || !bytes.Equal(piece[:n], other[:n]) {
			return false
		}
		if err != nil {
			return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		}
	}
}

// firstFile returns the path of another file that is there under the id of the session, and was told first; "" if there is none.
func (w *Watcher) firstFile(ctx context.Context, f *file, id string) (string, error) {
	first := f.name
	if t := w.tales[id]; t != nil {
		for _, other := range t.files {
			if other.node == f.node {
				first = other.name
			}
		}
	}
	if first == f.name {
		twin := &file{node: f.node, tale: &tale{run: id}}
		if err := w.findMark(ctx, twin); err != nil {
			return "", err
		}
		if twin.mark != nil {
			first = twin.mark.File
		}
	}
	if first == f.name {
		return "", nil
	}
	root := strings.TrimSuffix(f.path, filepath.FromSlash(f.name))
	at := filepath.Join(root, filepath.FromSlash(first))
	if _, err := os.Lstat(at); err != nil {
		return "", nil //nolint:nilerr // it has moved here
	}
	return at, nil
}

// findBeginning looks up whether the log has the run already, and whether it is one that a watcher tells.
func (w *Watcher) findBeginning(ctx context.Context, t *tale) error {
	for e, err := range history.ReadSession(ctx, w.log, eventlog.Query{Run: t.run, Node: wire.RunNode, Kinds: []wire.Kind{wire.KindFlow}}) {
		if err != nil {
			return err
		}
		if e.Err != nil {
			continue
		}
		switch p := e.Event.Payload.(type) {
		case *wire.FlowStart:
			t.begun, t.foreign = true, p.Imported != wire.ImportedIngest
			t.at = max(t.at, e.Event.Timestamp)
		case *wire.FlowPaused:
			t.resting = true
		case *wire.FlowResumed:
			t.resting, t.at = false, max(t.at, e.Event.Timestamp)
		case *wire.RunForked, *wire.FlowComplete, *wire.FlowAborted:
			t.foreign = true // a runner executes it, or it was ingested as a whole
		}
	}
	return nil
}

// isDriven reports whether a runner drives the session, and records it: it keeps the session's file.
func (w *Watcher) isDriven(ctx context.Context, id string) (bool, error) {
	_, err := w.kept.GetInfo(ctx, id)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return false, nil
	}
	return err == nil, err
}

// wakeTale begins the run of a file, or has it go on, before something of it is told.
func (w *Watcher) wakeTale(ctx context.Context, f *file) error {
	t := f.tale
	if t.changed = f.changed; t.changed.After(time.Now()) {
		t.changed = time.Now()
	}
	switch {
	case !t.begun:
		return w.beginTale(ctx, f)
	case !t.resting:
		return nil
	}
	err := w.appendOwn(ctx, t, &wire.Event{Payload: &wire.FlowResumed{Strategy: "manual"}})
	t.resting = t.resting && err != nil
	return err
}

// beginTale begins the run of a file. It fails with [errEarly] until it is clear that no runner drives the session, and while the line
// that names the folder, and with it what the run is labelled, may be about to come.
func (w *Watcher) beginTale(ctx context.Context, f *file) error {
	t := f.tale
	about, err := session.Read(mainFile(f))
	if errors.Is(err, os.ErrNotExist) {
		about, err = session.Read(f.path)
	}
	if err != nil {
		return err
	}
	age := time.Since(time.UnixMilli(about.At))
	if about.At == 0 {
		age = time.Since(f.changed)
	}
	quiet := time.Since(f.changed)
	if age >= 0 && age < settleTime || about.Cwd == "" && quiet >= 0 && quiet < folderTime {
		return errEarly
	}
	if f.refused, err = w.isDriven(ctx, t.session); f.refused || err != nil {
		return cmp.Or(err, errForeign)
	}
	w.checkHolders()
	about.Session = t.session
	start, err := about.Start(w.before[t.session])
	if err != nil {
		return err
	}
	if err := w.appendOwn(ctx, t, &wire.Event{Timestamp: about.At, Payload: start}); err != nil {
		return err
	}
	t.begun, t.at = true, about.At
	if w.cfg.Begun != nil {
		w.cfg.Begun(t.run, start.Labels)
	}
	return nil
}

// mainFile returns where the file of the session itself is.
func mainFile(f *file) string {
	if dir := filepath.Dir(f.path); f.node != session.MainNode && filepath.Base(dir) == "subagents" {
		return filepath.Dir(dir) + ".jsonl"
	}
	return f.path
}

// restTale pauses a run while nothing goes on in its session.
func (w *Watcher) restTale(ctx context.Context, t *tale) error {
	if !t.begun {
		return nil
	}
	err := w.appendOwn(ctx, t, &wire.Event{Timestamp: t.at, Payload: &wire.FlowPaused{Reason: wire.PauseIdle, Message: w.held[t.session].String()}})
	if err != nil {
		return err
	}
	t.resting = true
	err = t.owner.Close(ctx)
	t.owner = nil
	return err
}

// appendOwn appends events of the run itself. It fails with [errEarly] if another process has written there, such as the
// listener of the session's hooks: what that was is known then.
func (w *Watcher) appendOwn(ctx context.Context, t *tale, events ...*wire.Event) (err error) {
	if t.owner == nil || t.owner.Err() != nil {
		t.owner, err = history.Claim(ctx, w.log, t.run, wire.RunNode, eventlog.Claim{Runner: w.cfg.ID})
		if errors.Is(err, eventlog.ErrFenced) {
			return errEarly
		} else if err != nil {
			return err
		}
		begun, resting := t.begun, t.resting
		if err := w.findBeginning(ctx, t); err != nil {
			return err
		}
		if begun != t.begun || resting != t.resting {
			return errEarly
		}
	}
	if _, err = t.owner.Append(ctx, events...); errors.Is(err, eventlog.ErrFenced) {
		return cmp.Or(w.findBeginning(ctx, t), errEarly)
	}
	return err
}

// compareHooks tells whether the files of a session have the results of calls that its hooks have told of, if these told of some since it
// was last asked.
func (w *Watcher) compareHooks(ctx context.Context, t *tale) error {
	last, heard, err := w.log.Last(ctx, t.run, wire.HooksNode)
	if err != nil || !heard || last.Pos == t.compared {
		return err
	}
	hooks, files := completeness.NewFeed(t.session), completeness.NewFeed(t.session)
	for e, err := range history.ReadSession(ctx, w.log, eventlog.Query{Run: t.run, Kinds: []wire.Kind{wire.TypeHookFired.Kind(), wire.TypeAgentTool.Kind(), wire.TypeTranscriptRead.Kind()}}) {
		switch {
		case err != nil:
			return err
		case e.Err != nil:
		case e.NodeID == wire.HooksNode:
			hooks.AddHook(e.Event, e.Pos)
		case session.IsPrinted(e.Event.Payload):
			files.MarkPrinted(e.Event.Epoch)
		default:
			files.AddEvent(e.Event, e.Pos)
		}
	}
	v, ok := completeness.CompareHooks(*hooks, *files)
	if ok {
		if err := w.appendOwn(ctx, t, &wire.Event{SessionID: t.session, Payload: v.Event()}); err != nil {
			return err
		}
	}
	t.compared = last.Pos
	return nil
}
