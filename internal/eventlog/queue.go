package eventlog

import "errors"

// queue holds the frames of a lane in order: a window of them in memory, the
// rest on disk. It is guarded by the lane's mutex.
//
// Invariant: the spool either is empty or holds every frame of the queue. So a
// process that dies while spooling loses nothing that was queued, and a frame
// is never stored ahead of an older one of its node.
type queue struct {
	window   []*frame // the oldest frames
	bytes    int64    // of the window
	memLimit int64

	disk     *spool // nil: memory only
	durable  bool   // frames go to disk at once, if there is one
	spooling bool
	writers  map[writerKey]*Writer // of the frames on disk
}

// newQueue returns a queue whose spool may hold what an earlier process left.
func newQueue(disk *spool, memLimit int64) queue {
	q := queue{memLimit: memLimit, disk: disk, writers: map[writerKey]*Writer{}}
	q.spooling = disk != nil && len(disk.segments) > 0
	return q
}

// empty reports whether no frame is left.
func (q *queue) empty() bool { return len(q.window) == 0 && !q.behind() }

// behind reports whether there are frames on disk that aren't in the window.
func (q *queue) behind() bool { return q.spooling && !q.disk.allRead() }

// put adds frames that belong together. It reports false if there is no room;
// droppable frames leave the last tenth of it to others.
func (q *queue) put(unit []*frame, droppable bool) (bool, error) {
	size := sizeOf(unit)
	inMemory := !q.spooling && (q.disk == nil || !q.durable)
	if inMemory && (q.bytes+size <= share(q.memLimit, droppable && q.disk == nil) || q.empty()) {
		q.keep(unit, size)
		return true, nil
	}
	if q.disk == nil || q.held()+size > share(q.disk.limit, droppable) && !q.empty() {
		return false, nil
	}
	if err := q.spill(); err != nil {
		return false, err
	}
	err := q.write(unit, size)
	return err == nil, err
}

// held is what counts against the limit of the spool.
func (q *queue) held() int64 {
	if q.spooling {
		return q.disk.size
	}
	return q.bytes
}

func share(limit int64, droppable bool) int64 {
	if droppable {
		return limit / 10 * 9
	}
	return limit
}

func (q *queue) keep(unit []*frame, size int64) {
	q.window = append(q.window, unit...)
	q.bytes += size
}

// write appends frames to the spool, and to the window if it reaches that far.
func (q *queue) write(unit []*frame, size int64) error {
	behind := q.behind()
	for _, f := range unit {
		q.note(f)
	}
	if err := q.disk.append(unit); err != nil {
		return err
	}
	if behind || q.bytes+size > q.memLimit {
		return nil
	}
	q.keep(unit, size)
	q.disk.skip()
	return nil
}

// note writes down what the frame follows and who its writer is.
func (q *queue) note(f *frame) {
	if f.w != nil {
		f.afterSeq, f.afterPos = f.w.Last()
		q.writers[f.key()] = f.w
	}
}

// spill writes the window to disk, unless it is there.
func (q *queue) spill() error {
	if q.spooling || q.disk == nil {
		return nil
	}
	for unit := range units(q.window) {
		for _, f := range unit {
			q.note(f)
		}
		if err := q.disk.append(unit); err != nil {
			return errors.Join(err, q.disk.clear())
		}
	}
	q.disk.skip()
	q.spooling = true
	return nil
}

// fill makes sure that the window isn't empty unless the queue is.
func (q *queue) fill() error {
	if len(q.window) > 0 || !q.behind() {
		return nil
	}
	loaded, err := q.disk.load()
	if err != nil {
		return err
	}
	for _, unit := range loaded {
		for _, f := range unit {
			f.w = q.writers[f.key()]
		}
		q.keep(unit, sizeOf(unit))
	}
	if q.empty() {
		return q.reset()
	}
	return nil
}

// resolve removes the n oldest frames.
func (q *queue) resolve(n int) error {
	q.bytes -= sizeOf(q.window[:n])
	clear(q.window[:n])
	q.window = q.window[n:]
	if !q.spooling {
		return nil
	}
	if q.empty() {
		return q.reset()
	}
	return q.disk.resolve(n)
}

// reset ends spooling.
func (q *queue) reset() error {
	q.spooling = false
	clear(q.writers)
	return q.disk.clear()
}

// units yields runs of frames that were appended together.
func units(frames []*frame) func(yield func([]*frame) bool) {
	return func(yield func([]*frame) bool) {
		start := 0
		for i, f := range frames {
			if f.more && i+1 < len(frames) {
				continue
			}
			if !yield(frames[start : i+1]) {
				return
			}
			start = i + 1
		}
	}
}
