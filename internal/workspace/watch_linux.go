package workspace

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// watch says which folders have changed since they were read. The system has told of a change before the program that made it goes on, but
// for writes to memory that a file is mapped to: of those it tells when the file is opened, grown and closed. It doesn't tell of a hard
// link that is made from outside of the folder, nor of writes by that name: they are found when anything else changes beside the file, or
// after fullPause.
type watch struct {
	fd   int
	most int // folders that are watched at once

	mu    sync.Mutex
	marks map[int32]*mark
}

// watched are the changes that matter.
const watched = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_CLOSE_WRITE |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// openWatch returns a watch, nil if the system has none to give. It ends when nothing refers to it any more.
func openWatch() *watch {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil
	}
	w := &watch{fd: fd, most: 1000, marks: map[int32]*mark{}}
	runtime.AddCleanup(w, func(fd int) { _ = unix.Close(fd) }, fd)
	if text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_watches"); err == nil {
		if n, err := strconv.Atoi(string(bytes.TrimSpace(text))); err == nil {
			w.most = n / 8 // others watch, too
		}
	}
	return w
}

// addFolder watches a folder that is open and about to be read, below another one. It returns nil if it can't.
func (w *watch) addFolder(dir int, above *mark) *mark {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.marks) >= w.most {
		return nil
	}
	wd, err := unix.InotifyAddWatch(w.fd, fmt.Sprint("/proc/self/fd/", dir), watched)
	if err != nil {
		return nil
	}
	m := &mark{above: above}
	w.marks[int32(wd)] = m // the system counts in 32 bits
	return m
}

// readChanges marks what has changed. It reports false if that isn't known.
func (w *watch) readChanges() bool {
	if w == nil {
		return false
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(w.fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return true
		case err != nil:
			return false
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			e := (*unix.InotifyEvent)(unsafe.Pointer(&rest[0])) // as the system writes it
			rest = rest[unix.SizeofInotifyEvent+int(e.Len):]
			if e.Mask&unix.IN_Q_OVERFLOW != 0 {
				return false
			}
			m := w.marks[e.Wd]
			m.markChanged()
			if m != nil && e.Mask&unix.IN_IGNORED != 0 {
				m.gone = true
				delete(w.marks, e.Wd)
			}
		}
	}
}
