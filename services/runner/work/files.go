package work

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/fsnotify/fsnotify"

	"code.wake.dev/wake/pkg/wire"
)

// files watches the files of its folder that an agent has read or written, and
// tells when anything else changes one: what the agent knows of it is out of
// date. What changes while a tool of the agent runs is taken for the agent's
// doing.
type files struct {
	root    string // of the folder, links resolved
	watcher *fsnotify.Watcher
	changed func(path, change string)
	done    chan struct{}

	mu    sync.Mutex
	known map[string]fileMark // by path
	open  map[string]bool     // calls that are under way
}

// fileMark tells two contents of a file apart. The zero mark is no file.
type fileMark struct {
	size    int64
	changed int64 // Unix ns
}

// maxWatched bounds the files that are watched for an agent, maxFolders their
// folders, of which the system has few to watch.
const (
	maxWatched = 1000
	maxFolders = 100
)

// watchFiles watches in dir until close is called. changed is called by one
// goroutine, with the path as the agent named it.
func watchFiles(dir string, changed func(path, change string)) (*files, error) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	f := &files{
		root: root, watcher: watcher, changed: changed, done: make(chan struct{}),
		known: map[string]fileMark{}, open: map[string]bool{},
	}
	go f.followChanges()
	return f, nil
}

// close ends the watching and waits until nothing is told any more.
func (f *files) close() {
	_ = f.watcher.Close()
	<-f.done
}

// observeEvent takes an event of the agent: the calls that it makes name the files.
func (f *files) observeEvent(e *wire.Event) {
	switch p := e.Payload.(type) {
	case *wire.ToolIntent:
		f.beginCall(e.CallID, p.ToolInput)
	case *wire.AgentTool:
		f.endCall(e.CallID, p.ToolInput)
	case *wire.ToolSealed:
		f.endCall(e.CallID, nil)
	}
}

func (f *files) beginCall(call string, input wire.Raw) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open[call] = true
	f.watchNamed(input)
}

// endCall looks at all files anew: what differs now is the agent's doing.
func (f *files) endCall(call string, input wire.Raw) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, call)
	f.watchNamed(input)
	if len(f.open) > 0 {
		return
	}
	for path := range f.known {
		f.known[path] = markOf(path)
	}
}

// watchNamed watches the file that a call names, if it is in the folder.
func (f *files) watchNamed(input wire.Raw) {
	for _, field := range []string{"file_path", "notebook_path", "path"} {
		path, ok := input.Get(field).Text()
		if !ok || path == "" || len(f.known) >= maxWatched {
			continue
		}
		if path, ok = f.resolveInside(path); !ok {
			continue
		}
		if _, known := f.known[path]; known {
			continue
		}
		dir := filepath.Dir(path)
		if len(f.watcher.WatchList()) >= maxFolders || f.watcher.Add(dir) != nil {
			continue // it isn't there, or the system watches enough
		}
		f.known[path] = markOf(path)
	}
}

// resolveInside returns where a path leads, and whether that is a file in the folder or
// could become one.
func (f *files) resolveInside(path string) (string, bool) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(f.root, path)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", false
	}
	path = filepath.Join(dir, filepath.Base(path))
	if rel, err := filepath.Rel(f.root, path); err != nil || !filepath.IsLocal(rel) || strings.HasPrefix(rel, ".git"+string(filepath.Separator)) {
		return "", false
	}
	info, err := os.Lstat(path)
	return path, err != nil || info.Mode().IsRegular()
}

func markOf(path string) fileMark {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.FileMode(0) {
		return fileMark{}
	}
	return fileMark{info.Size(), info.ModTime().UnixNano()}
}

// followChanges tells of changes until the watcher is closed.
func (f *files) followChanges() {
	defer close(f.done)
	for {
		select {
		case e, ok := <-f.watcher.Events:
			if !ok {
				return
			}
			if path, change := f.changeOf(e.Name); change != "" {
				f.changed(path, change)
			}
		case _, ok := <-f.watcher.Errors:
			if !ok {
				return
			}
		}
	}
}

// changeOf says what has become of a file since the agent looked, if anything.
func (f *files) changeOf(path string) (name, change string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, known := f.known[path]
	if !known || len(f.open) > 0 {
		return "", ""
	}
	now := markOf(path)
	f.known[path] = now
	switch {
	case now == before:
		return "", ""
	case before == fileMark{}:
		return path, "created"
	case now == fileMark{}:
		return path, "deleted"
	}
	return path, "modified"
}
