package feed

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/subjects"
)

const (
	tailBytes = 16 << 20    // of the newest messages that are held in memory
	idleAfter = time.Minute // without readers a stream isn't followed
)

// tail has the newest messages of a stream in memory, while readers wait for more:
// however many do, the stream is followed once.
type tail struct {
	log    *eventlog.Log
	logger *slog.Logger
	stream string
	room   string // what all subjects of the stream begin with
	all    string // subject of all messages

	wanted chan struct{} // a reader waits, and the stream isn't followed
	idle   *time.Timer   // ends the following when no reader waits; nil: the stream isn't followed

	mu      sync.Mutex
	first   uint64 // from there on all messages are in recent; 0: the stream isn't followed
	last    uint64 // position of the last message
	recent  []eventlog.Message
	size    int
	waiters map[string][]*waiter // by the run's token; "": of all runs
}

// waiter waits for a message.
type waiter struct {
	subjects []string
	come     chan struct{} // closed when there is one, or the stream isn't followed any more
}

func newTail(log *eventlog.Log, logger *slog.Logger, stream, room, all string) *tail {
	return &tail{
		log: log, logger: logger, stream: stream, room: room, all: all,
		wanted: make(chan struct{}, 1), waiters: map[string][]*waiter{},
	}
}

// run follows the stream while readers wait, until ctx ends.
func (t *tail) run(ctx context.Context) {
	for {
		select {
		case <-t.wanted:
			t.followStream(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// followStream follows the stream from its end until no reader has waited for a while.
func (t *tail) followStream(ctx context.Context) {
	_, last, err := t.log.BoundsOf(ctx, t.stream)
	if err != nil {
		t.logger.InfoContext(ctx, "feed can't begin", "stream", t.stream, "error", err)
		return // readers that wait ask again
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	t.beginFollowing(last, time.AfterFunc(idleAfter, stop))
	defer t.endFollowing()
	selected := eventlog.Selection{Stream: t.stream, Subjects: []string{t.all}, From: last + 1}
	for m, err := range t.log.FollowMessages(ctx, selected) {
		if err != nil {
			t.logger.WarnContext(ctx, "feed begins again", "stream", t.stream, "error", err)
			return
		}
		t.addMessage(m)
	}
}

func (t *tail) beginFollowing(last uint64, idle *time.Timer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.first, t.last, t.idle = last+1, last, idle
	t.wakeAll()
}

func (t *tail) endFollowing() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idle.Stop()
	t.first, t.last, t.idle, t.recent, t.size = 0, 0, nil, nil, 0
	t.wakeAll()
}

func (t *tail) wakeAll() {
	for _, list := range t.waiters {
		for _, w := range list {
			close(w.come)
		}
	}
	clear(t.waiters)
}

// addMessage takes the next message of the stream.
func (t *tail) addMessage(m eventlog.Message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = m.Pos
	t.recent = append(t.recent, m)
	t.size += sizeOf(m)
	dropped := 0
	for t.size > tailBytes {
		t.first = t.recent[dropped].Pos + 1
		t.size -= sizeOf(t.recent[dropped])
		t.recent[dropped] = eventlog.Message{}
		dropped++
	}
	t.recent = t.recent[dropped:]
	for _, key := range []string{t.runOf(m.Subject), ""} {
		left := t.waiters[key][:0]
		for _, w := range t.waiters[key] {
			if matchesAny(w.subjects, m.Subject) {
				close(w.come)
			} else {
				left = append(left, w)
			}
		}
		t.keepWaiters(key, left)
	}
}

func (t *tail) keepWaiters(key string, list []*waiter) {
	if len(list) == 0 {
		delete(t.waiters, key)
		return
	}
	t.waiters[key] = list
}

// runOf returns the run's token of a subject, "" if it may be of any.
func (t *tail) runOf(subject string) string {
	token, _, _ := strings.Cut(strings.TrimPrefix(subject, t.room), ".")
	if token == "*" || token == ">" {
		return ""
	}
	return token
}

// heldMessages is a tail's answer to a reader that asks for messages from a position on.
type heldMessages struct {
	messages []eventlog.Message
	next     uint64 // position to go on from
	last     uint64
	before   bool    // the position is before what is in memory
	w        *waiter // if there are none
}

// takeMessages returns the messages of subjects from a position on that are in memory, of at
// most so many bytes, or else a waiter for the first; the stream is followed from now on.
func (t *tail) takeMessages(subjects []string, from uint64, limit int) heldMessages {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.idle == nil {
		select {
		case t.wanted <- struct{}{}:
		default: // that is known
		}
		return heldMessages{before: true, next: from, last: t.last, w: t.addWaiter(subjects)}
	}
	t.idle.Reset(idleAfter)
	if from < t.first {
		return heldMessages{before: true, next: from, last: t.last}
	}
	h := heldMessages{next: max(from, t.last+1), last: t.last}
	begin, _ := slices.BinarySearchFunc(t.recent, from, func(m eventlog.Message, pos uint64) int {
		if m.Pos < pos {
			return -1
		}
		return 1
	})
	for _, m := range t.recent[begin:] {
		if !matchesAny(subjects, m.Subject) {
			continue
		}
		if limit -= sizeOf(m); limit < 0 && len(h.messages) > 0 {
			h.next = m.Pos
			break
		}
		h.messages = append(h.messages, m)
	}
	if len(h.messages) == 0 {
		h.w = t.addWaiter(subjects)
	}
	return h
}

func (t *tail) addWaiter(subjects []string) *waiter {
	w := &waiter{subjects, make(chan struct{})}
	key := t.keyOf(subjects)
	t.waiters[key] = append(t.waiters[key], w)
	return w
}

// keyOf returns the token of the run that all subjects are of, "" if there is none.
func (t *tail) keyOf(subjects []string) string {
	run := t.runOf(subjects[0])
	for _, s := range subjects[1:] {
		if t.runOf(s) != run {
			return ""
		}
	}
	return run
}

// removeWaiter forgets a waiter that doesn't wait any more.
func (t *tail) removeWaiter(w *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := t.keyOf(w.subjects)
	t.keepWaiters(key, slices.DeleteFunc(t.waiters[key], func(x *waiter) bool { return x == w }))
}

// sizeOf is at least what a message takes in an answer.
func sizeOf(m eventlog.Message) int { return len(m.Data) + len(m.Subject) + len(m.Trace) + 100 }

// matchesAny reports whether a subject is one of those that patterns select.
func matchesAny(patterns []string, subject string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return subjects.Matches(p, subject) })
}
