package session

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Holder is a process that holds a session: it is where a person, or a program, goes on with it.
type Holder struct {
	PID      int    `json:"pid"`
	Session  string `json:"sessionId"`
	Cwd      string `json:"cwd"`
	Kind     string `json:"kind"`   // interactive …
	Status   string `json:"status"` // idle, busy, waiting …; empty: it doesn't say
	Waiting  string `json:"waitingFor"`
	Started  string `json:"procStart"` // tells it from another process that got its number
	Terminal string `json:"-"`
}

// The statuses of a holder that works, and of one that shows a dialog.
const (
	Busy    = "busy"
	waiting = "waiting"
)

// String names the holder: "process 4711 on /dev/pts/3, waiting (permission prompt)".
func (h Holder) String() string {
	if h.PID == 0 {
		return "no process holds the session"
	}
	text := "process " + strconv.Itoa(h.PID)
	if h.Terminal != "" {
		text += " on " + h.Terminal
	}
	if h.Status != "" {
		text += ", " + h.Status
	}
	if h.Waiting != "" {
		text += " (" + h.Waiting + ")"
	}
	return text
}

// maxHolder bounds what is read of a file that a process left.
const maxHolder = 64 << 10

// Holders returns the processes that hold sessions of a folder of settings, as they say themselves, by session. Older
// versions of Claude Code don't.
func Holders(config string) map[string]Holder {
	held := map[string]Holder{}
	names, _ := fs.Glob(os.DirFS(config), "sessions/*.json") // the pattern is one
	for _, name := range names {
		file := filepath.Join(config, name)
		info, err := os.Lstat(file)
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxHolder {
			continue
		}
		content, err := os.ReadFile(file)
		var h Holder
		if err != nil || json.Unmarshal(content, &h) != nil || h.Session == "" || !h.isAlive() {
			continue
		}
		h.Terminal = terminalOf(h.PID)
		held[h.Session] = h
	}
	return held
}

// isAlive reports whether the process is there. Its number may be another one's by now.
func (h Holder) isAlive() bool {
	if h.PID <= 0 {
		return false
	}
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(h.PID), "stat"))
	if err != nil {
		return !isProcThere() && isRunning(h.PID)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const state, start = 0, 19 // of those behind the name
	return len(fields) > start && fields[state] != "Z" && (h.Started == "" || fields[start] == h.Started)
}

func isProcThere() bool {
	_, err := os.Stat("/proc/self/stat")
	return err == nil
}

// terminalOf returns the terminal of a process, "" if it has none or that can't be told.
func terminalOf(pid int) string {
	target, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "fd", "0"))
	if err != nil || !strings.HasPrefix(target, "/dev/pts/") && !strings.HasPrefix(target, "/dev/tty") {
		return ""
	}
	return target
}

// Folders returns the folders of settings that are meant: each has a folder projects, or is one.
func Folders(named []string, lookup func(string) (string, bool)) ([]string, error) {
	if len(named) == 0 {
		config, ok := lookup("CLAUDE_CONFIG_DIR")
		if !ok || config == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return nil, err
			}
			config = filepath.Join(home, ".claude")
		}
		named = []string{config}
	}
	var all []string
	for _, dir := range named {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		if filepath.Base(dir) == "projects" {
			dir = filepath.Dir(dir)
		}
		if info, err := os.Stat(dir); err == nil && !info.IsDir() {
			return nil, &fs.PathError{Op: "watch", Path: dir, Err: fs.ErrInvalid}
		}
		all = append(all, dir)
	}
	return all, nil
}
