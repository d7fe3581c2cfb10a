package eventlog

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
	writers  map[writerKey]*writerState // of the frames on disk
}

// newQueue returns a queue. Its spool may hold what an earlier process left.
func newQueue(disk *spool, memLimit int64) queue {
	q := queue{memLimit: memLimit, disk: disk, writers: map[writerKey]*writerState{}}
	q.spooling = disk != nil && len(disk.segments) > 0
	return q
}

// isEmpty reports whether no frame is left.
func (q *queue) isEmpty() bool { return len(q.window) == 0 && !q.isBehind() }

// isBehind reports whether there are frames on disk that aren't in the window.
func (q *queue) isBehind() bool { return q.spooling && !q.disk.allRead() }

// putUnit adds frames that belong together. It reports false if there is no room;
// droppable frames leave the last tenth of it to the other frames.
func (q *queue) putUnit(unit []*frame, droppable bool) (bool, error) {
	size := sizeOf(unit)
	inMemory := !q.spooling && (q.disk == nil || !q.durable)
	if inMemory && (q.bytes+size <= allowedShare(q.memLimit, droppable && q.disk == nil) || q.isEmpty()) {
		q.keepUnit(unit, size)
		return true, nil
	}
	if q.disk == nil || q.heldBytes()+size > allowedShare(q.disk.limit, droppable) && !q.isEmpty() {
		return false, nil
	}
	if err := q.spillWindow(); err != nil {
		return false, err
	}
	err := q.writeUnit(unit, size)
	return err == nil, err
}

// heldBytes is what counts against the limit of the spool.
func (q *queue) heldBytes() int64 {
	if q.spooling {
		return q.disk.size
	}
	return q.bytes
}

func allowedShare(limit int64, droppable bool) int64 {
	if droppable {
		return limit / 10 * 9
	}
	return limit
}

func (q *queue) keepUnit(unit []*frame, size int64) {
	q.window = append(q.window, unit...)
	q.bytes += size
}

// writeUnit appends frames to the spool, and to the window if it reaches that far.
func (q *queue) writeUnit(unit []*frame, size int64) error {
	behind := q.isBehind()
	for _, f := range unit {
		q.noteFrame(f)
	}
	if err := q.disk.appendUnit(unit); err != nil {
		return err
	}
	if behind || q.bytes+size > q.memLimit {
		return nil
	}
	q.keepUnit(unit, size)
	q.disk.skipWritten()
	return nil
}

// noteFrame writes down the event that the frame follows, and its writer.
func (q *queue) noteFrame(f *frame) {
	if f.w != nil {
		f.afterSeq, f.afterPos = f.w.Last()
		q.writers[f.writerKey()] = f.w
	}
}

// spillWindow writes the window to disk, unless it is there.
func (q *queue) spillWindow() error {
	if q.spooling || q.disk == nil {
		return nil
	}
	for unit := range splitUnits(q.window) {
		for _, f := range unit {
			q.noteFrame(f)
		}
		if err := q.disk.appendUnit(unit); err != nil {
			q.disk.removeAll()
			return err
		}
	}
	q.disk.skipWritten()
	q.spooling = true
	return nil
}

// fillWindow makes sure that the window isn't empty unless the queue is.
func (q *queue) fillWindow() error {
	if len(q.window) > 0 || !q.isBehind() {
		return nil
	}
	loaded, err := q.disk.loadUnits()
	if err != nil {
		return err
	}
	for _, unit := range loaded {
		for _, f := range unit {
			f.w = q.writers[f.writerKey()]
		}
		q.keepUnit(unit, sizeOf(unit))
	}
	if q.isEmpty() {
		q.endSpooling()
	}
	return nil
}

// resolveOldest removes the n oldest frames.
func (q *queue) resolveOldest(n int) {
	q.bytes -= sizeOf(q.window[:n])
	clear(q.window[:n])
	q.window = q.window[n:]
	switch {
	case !q.spooling:
	case q.isEmpty():
		q.endSpooling()
	default:
		q.disk.resolveOldest(n)
	}
}

func (q *queue) endSpooling() {
	q.spooling = false
	clear(q.writers)
	q.disk.removeAll()
}

// splitUnits yields runs of frames that were appended together.
func splitUnits(frames []*frame) func(yield func([]*frame) bool) {
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

// frameCount returns how many frames wait, as far as that is known: an earlier
// process's are counted when they are read.
func (q *queue) frameCount() (n int) {
	if !q.spooling {
		return len(q.window)
	}
	for _, g := range q.disk.segments {
		n += g.frames
	}
	return n
}
