// Package watcher follows the session files of agents that wake doesn't drive: each session becomes a run, line by line,
// while it is written.
//
// What was read is in the log alone. Behind the events of some lines, in the same commit, stands a [wire.TranscriptRead]
// that says how far the file was read and which lines these were. A watcher that begins again reads the file up to there
// without telling it, and goes on; if what it reads isn't what was read then, the file was rewritten, and its lines are
// matched with those that were told. One file is one node; its claim keeps a second watcher out.
package watcher

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/wire"
)

// Config are the settings of a watcher.
type Config struct {
	ID      string        // of the process, in claims; required
	Folders []string      // of settings of Claude Code: each has a folder projects; required
	Since   time.Duration // of older files only what is added from now on makes them runs; default 30 days
	Idle    time.Duration // after which a session that no process holds is paused; default 2 min
	Prices  agent.Prices  // of models, before the known ones of Anthropic's
	// Progress is told how far the history is, now and then and at its end. It may be nil.
	Progress func(Progress)
	// Begun is told each run that begins. It may be nil.
	Begun func(run string, labels map[string]string)
}

// Progress is how far the history is.
type Progress struct {
	Files, DoneFiles int
	Bytes, DoneBytes int64
	Elapsed          time.Duration
}

// The watcher's times.
const (
	lullTime   = 40 * time.Millisecond  // lines that are written together are told together
	settleTime = 400 * time.Millisecond // in which a runner keeps the file of a session of its own
	folderTime = 3 * time.Second        // in which a session that has begun names its folder
	scanTime   = 15 * time.Second       // between two looks at all folders, where the system tells of changes
	pollTime   = 500 * time.Millisecond // where it doesn't
	checkTime  = 5 * time.Second        // between two looks at which processes hold sessions
	retryTime  = 2 * time.Second
)

// maxDepth bounds how deep session files are in a folder projects.
const maxDepth = 6

// Watcher is the service.
type Watcher struct {
	cfg    Config
	log    *eventlog.Log
	logger *slog.Logger
	kept   jetstream.ObjectStore // sessions of agents that runners drive

	notices  *fsnotify.Watcher  // nil: the system doesn't tell
	blind    bool               // it doesn't tell of all folders
	files    map[string]*file   // by path
	live     map[*file]struct{} // that are to be read, each when it is due
	history  []*file            // that are to be read when there is nothing else, the newest last
	tales    map[string]*tale   // by run
	held     map[string]session.Holder
	sessions map[int]string    // by process
	before   map[string]string // the session that the process of a session held before
	begun    time.Time
	past     Progress // of the history
}

// New returns a watcher that writes to a log. The log's Run must be running.
func New(cfg Config, log *eventlog.Log, logger *slog.Logger) (*Watcher, error) {
	if cfg.ID == "" || len(cfg.Folders) == 0 {
		return nil, errors.New("watcher: an id and folders are required")
	}
	cfg.Since, cfg.Idle = cmp.Or(cfg.Since, 30*24*time.Hour), cmp.Or(cfg.Idle, 2*time.Minute)
	return &Watcher{cfg: cfg, log: log, logger: logger}, nil
}

// Run follows the files until ctx ends. If it fails it may be called again.
func (w *Watcher) Run(ctx context.Context) (err error) {
	w.files, w.live, w.history, w.tales = map[string]*file{}, map[*file]struct{}{}, nil, map[string]*tale{}
	w.sessions, w.before = map[int]string{}, map[string]string{}
	w.begun, w.past, w.blind = time.Now(), Progress{}, false
	if w.kept, err = w.log.JetStream().ObjectStore(ctx, w.log.Names().SessionsBucket()); err != nil {
		return unlessStopped(ctx, err)
	}
	if w.notices, err = fsnotify.NewWatcher(); err != nil {
		w.turnBlind(err)
	} else {
		defer func() { _ = w.notices.Close() }() // nothing is lost by it
	}
	w.checkHolders()
	w.scanFolders(true)
	return unlessStopped(ctx, w.followFiles(ctx))
}

// unlessStopped is no error where the context has ended.
func unlessStopped(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}

// turnBlind says once that changes are found by looking.
func (w *Watcher) turnBlind(err error) {
	if !w.blind {
		w.blind = true
		w.logger.Warn("the system doesn't tell of changes in all folders: they are looked at again and again", "error", err, "every", pollTime,
			"hint", "raise fs.inotify.max_user_watches")
	}
}

func (w *Watcher) followFiles(ctx context.Context) error {
	scan, check := time.NewTimer(w.scanPause(0)), time.NewTicker(checkTime)
	defer scan.Stop()
	defer check.Stop()
	var changes <-chan fsnotify.Event
	var failures <-chan error
	if w.notices != nil {
		changes, failures = w.notices.Events, w.notices.Errors
	}
	for {
		next, wait := w.nextFile()
		due := make(<-chan time.Time)
		switch {
		case next != nil && wait <= 0:
			ready := make(chan time.Time)
			close(ready)
			due = ready
		case next != nil:
			due = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return nil
		case e := <-changes:
			w.noteChange(e)
			continue
		default:
		}
		select {
		case <-ctx.Done():
			return nil
		case e := <-changes:
			w.noteChange(e)
		case err := <-failures: // an overflow: changes were missed
			w.logger.Warn("changes of files were missed", "error", err)
			scan.Reset(0)
		case <-scan.C:
			began := time.Now()
			w.scanFolders(false)
			scan.Reset(w.scanPause(time.Since(began)))
		case <-check.C:
			w.checkHolders()
			if err := w.restTales(ctx); err != nil {
				return err
			}
		case <-due:
			w.readFile(ctx, next)
		}
	}
}

// scanPause is the time until the next look at all folders, which takes a tenth of the time at most.
func (w *Watcher) scanPause(took time.Duration) time.Duration {
	if w.blind {
		return max(pollTime, 10*took)
	}
	return max(scanTime, 10*took)
}

// nextFile returns the file to be read next, and in how long: what is written now comes before the history.
func (w *Watcher) nextFile() (next *file, wait time.Duration) {
	for f := range w.live {
		if next == nil || f.due.Before(next.due) {
			next = f
		}
	}
	if next != nil {
		wait = time.Until(next.due)
	}
	if len(w.history) > 0 && (next == nil || wait > 0) {
		return w.history[len(w.history)-1], 0
	}
	return next, wait
}

// look has a file looked at in a while.
func (w *Watcher) look(f *file, in time.Duration) {
	if _, due := w.live[f]; !due {
		f.due = time.Now().Add(in)
		w.live[f] = struct{}{}
	}
}

// noteChange looks at what has changed, if it is in a folder projects.
func (w *Watcher) noteChange(e fsnotify.Event) {
	root := w.rootOf(e.Name)
	if root == "" {
		return
	}
	info, err := os.Lstat(e.Name)
	switch {
	case err != nil:
		if f := w.files[e.Name]; f != nil { // it may be written anew
			w.look(f, lullTime)
		}
	case info.IsDir():
		w.scanFolder(root, e.Name, false)
	default:
		w.noteFile(root, e.Name, info, false)
	}
}

// rootOf returns the folder projects that a path is in, "" if it is in none.
func (w *Watcher) rootOf(path string) string {
	for _, dir := range w.cfg.Folders {
		if root := projectsOf(dir); path == root || strings.HasPrefix(path, root+string(filepath.Separator)) {
			return root
		}
	}
	return ""
}

// projectsOf returns the folder of sessions, links resolved.
func projectsOf(config string) string {
	root := filepath.Join(config, "projects")
	if resolved, err := filepath.EvalSymlinks(root); err == nil {
		return resolved
	}
	return root
}

// scanFolders looks at all folders. The first time, old files are left alone.
func (w *Watcher) scanFolders(first bool) {
	for _, dir := range w.cfg.Folders {
		root := projectsOf(dir)
		if w.notices != nil {
			_ = w.notices.Add(dir) // where projects may be made; a folder that isn't there is looked for again
		}
		w.scanFolder(root, root, first)
	}
	if first {
		slices.SortFunc(w.history, func(a, b *file) int { return a.changed.Compare(b.changed) })
		w.tellProgress()
	}
}

// scanFolder looks at a folder and those in it. Links aren't followed.
func (w *Watcher) scanFolder(root, dir string, first bool) {
	depth := strings.Count(strings.TrimPrefix(dir, root), string(filepath.Separator))
	entries, err := os.ReadDir(dir)
	if err != nil || depth > maxDepth {
		return
	}
	if w.notices != nil {
		if err := w.notices.Add(dir); err != nil {
			w.turnBlind(err)
		}
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() {
			w.scanFolder(root, path, first)
		} else if info, err := e.Info(); err == nil {
			w.noteFile(root, path, info, first)
		}
	}
}

// noteFile notes that a file may have changed.
func (w *Watcher) noteFile(root, path string, info os.FileInfo, first bool) {
	if !info.Mode().IsRegular() || filepath.Ext(path) != ".jsonl" || filepath.Dir(path) == root {
		return
	}
	f := w.files[path]
	if f == nil {
		name, err := filepath.Rel(root, path)
		if err != nil {
			return
		}
		f = &file{path: path, name: filepath.ToSlash(name), size: -1}
		w.files[path] = f
	}
	if f.size == info.Size() && f.changed.Equal(info.ModTime()) && !f.troubled { // one that couldn't be read may be by now
		return
	}
	f.size, f.changed = info.Size(), info.ModTime()
	if first && time.Since(f.changed) > w.cfg.Since {
		return
	}
	if first {
		w.history = append(w.history, f)
		w.past.Files++
		w.past.Bytes += info.Size()
		return
	}
	w.look(f, lullTime)
}

// tellProgress tells how far the history is.
func (w *Watcher) tellProgress() {
	if w.cfg.Progress != nil {
		w.past.Elapsed = time.Since(w.begun)
		w.cfg.Progress(w.past)
	}
}

// checkHolders looks at which processes hold sessions, and notes which one each held before: a cleared conversation goes on
// in another session of the same process.
func (w *Watcher) checkHolders() {
	held := map[string]session.Holder{}
	for _, dir := range w.cfg.Folders {
		for id, h := range session.Holders(dir) {
			held[id] = h
			if last := w.sessions[h.PID]; last != "" && last != id && w.before[id] == "" {
				w.before[id] = last
			}
			w.sessions[h.PID] = id
		}
	}
	w.held = held
}

// tellHolder tells which process holds the session of a run.
func (w *Watcher) tellHolder(ctx context.Context, t *tale) error {
	h := w.held[t.session]
	if !t.begun || t.resting || h.PID == t.holder.PID {
		return nil
	}
	data, err := wire.Marshal(map[string]any{"pid": h.PID, "terminal": h.Terminal, "kind": h.Kind, "cwd": h.Cwd})
	if err != nil {
		return err
	}
	if err = w.appendOwn(ctx, t, &wire.Event{Payload: &wire.RawMessage{Source: "watch", Name: "holder", Data: data}}); err == nil {
		t.holder = h
	}
	return err
}

// restTales pauses the runs of sessions in which nothing goes on, and lets go of what is needed to read on.
func (w *Watcher) restTales(ctx context.Context) error {
	for _, t := range w.tales {
		if t.foreign {
			continue
		}
		if err := w.tellHolder(ctx, t); errors.Is(err, errEarly) {
			continue // at the next look
		} else if err != nil {
			return err
		}
		if t.resting || time.Since(t.changed) < w.cfg.Idle || slices.ContainsFunc(t.files, w.isDue) {
			continue
		}
		for _, f := range t.files {
			if err := w.tellRest(ctx, f); err != nil {
				return err
			}
			f.close(ctx)
		}
		if w.held[t.session].Status == session.Busy {
			continue
		}
		if err := w.compareHooks(ctx, t); errors.Is(err, errEarly) {
			continue // at the next look
		} else if err != nil {
			return err
		}
		if err := w.restTale(ctx, t); err != nil && !errors.Is(err, errEarly) {
			return err
		}
	}
	return nil
}

func (w *Watcher) isDue(f *file) bool {
	_, due := w.live[f]
	return due
}
