package eventlog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"code.wake.dev/wake/pkg/wire"
)

// settleAtOnce is how many parts are read at once.
const settleAtOnce = 8

// settleFrames finds out, from the leader, what became of frames of unknown outcome.
// It reports whether the outcome of any is known now.
func (l *lane) settleFrames(ctx context.Context, frames []*frame) (progress bool, err error) {
	all := partsByWriter(frames)
	moved, errs := make([]bool, len(all)), make([]error, len(all))
	slots := make(chan struct{}, settleAtOnce)
	var reading sync.WaitGroup
	for i, p := range all {
		slots <- struct{}{}
		reading.Go(func() {
			moved[i], errs[i] = l.settlePart(ctx, p)
			<-slots
		})
	}
	reading.Wait()
	for i := range all {
		progress, err = progress || moved[i], cmp.Or(err, errs[i])
	}
	return progress, err
}

// settlePart compares what the node holds after the writer's last event with
// what the writer was about to store. Bytes decide: equal is ours, anything else
// has another author: the next writer, which claims the node and ends this one, or a
// stranger.
//
// If a deposed leader answers, it shows too little. Then too little is taken for
// stored, the rest is sent again with the expectation that follows from it, and
// the leader refuses that: nothing is stored twice.
func (l *lane) settlePart(ctx context.Context, p *writerPart) (progress bool, err error) {
	_, pos := p.w.Last()
	last, err := l.log.lastBy(ctx, p.w.expect)
	switch {
	case errors.Is(err, errNotFound) && pos == 0, err == nil && last.Pos == pos:
		return false, nil
	case errors.Is(err, errNotFound), err == nil && last.Pos < pos:
		return l.settleGone(ctx, p.w, pos)
	case err != nil:
		return false, err
	}
	return l.settleFrom(ctx, p, pos+1)
}

// settleFrom walks through what the node holds from position next on.
func (l *lane) settleFrom(ctx context.Context, p *writerPart, next uint64) (progress bool, err error) {
	seq, _ := p.w.Last()
	rest := p.frames
	for len(rest) > 0 && rest[0].seq <= seq { // its acknowledgement came while it went to the spool
		rest = rest[1:]
	}
	for ; len(rest) > 0; progress = true {
		m, err := l.log.nextBy(ctx, p.w.expect, next)
		if errors.Is(err, errNotFound) {
			return progress, nil
		}
		if err != nil {
			return progress, err
		}
		f, e := rest[0], l.log.storedEntry(m)
		switch {
		case m.Subject == f.subject && bytes.Equal(m.Data, f.data):
			l.noteStored(p.w, f.seq, m.Pos)
			rest = rest[1:]
		case p.w.isPredecessor(e, f):
			l.noteStored(p.w, e.Event.Seq, m.Pos)
		case p.w.isVoid(e):
			l.passVoid(p.w, e)
		default:
			l.fenceWriter(p.w, fencedBy(e))
			return true, nil
		}
		next = m.Pos + 1
	}
	return progress, nil
}

// passVoid lets a writer go on behind what is void.
func (l *lane) passVoid(w *writerState, e Entry) {
	l.log.noteStored(e.Pos)
	w.followPosition(e.Pos)
	l.log.metrics.void.Inc()
	l.log.logger.Warn("a stranger's message on a node's subject is void: its writer goes on behind it", slog.String("run_id", w.run), slog.String("node_id", w.node),
		slog.Uint64("epoch", w.epoch), slog.Uint64("position", e.Pos), slog.Any("error", e.Err))
}

// settleGone deals with a node that ends before the event its writer stored
// last. Either a deposed leader answered, or the event is gone.
func (l *lane) settleGone(ctx context.Context, w *writerState, pos uint64) (progress bool, err error) {
	b, err := l.log.eventBounds(ctx)
	switch {
	case err != nil:
		return false, err
	case b.incarnation != l.log.incarnation:
		l.fenceWriter(w, fmt.Errorf("%w: %w", ErrFenced, ErrIncarnation))
		return true, nil
	case b.first > pos:
		l.fenceWriter(w, ErrAged)
		return true, nil
	}
	return false, nil
}

// fenceWriter ends a writer; what it holds becomes dead letters.
func (l *lane) fenceWriter(w *writerState, err error) {
	w.failWith(err)
	l.log.metrics.fenced.Inc()
	l.log.logger.Warn("a writer is fenced", slog.String("run_id", w.run), slog.String("node_id", w.node),
		slog.Uint64("epoch", w.epoch), slog.Any("error", err))
}

// fencedBy says which writer wrote e where another one expected to write.
func fencedBy(e Entry) error {
	if e.Event == nil {
		return fmt.Errorf("%w: position %d holds what can't be read: %w", ErrFenced, e.Pos, e.Err)
	}
	runner := ""
	switch p := e.Event.Payload.(type) {
	case *wire.RunClaimed:
		runner = p.Runner
	case *wire.NodeClaimed:
		runner = p.Runner
	default:
		return fmt.Errorf("%w: epoch %d wrote seq %d at position %d", ErrFenced, e.Event.Epoch, e.Event.Seq, e.Pos)
	}
	return fmt.Errorf("%w: %q claimed it with epoch %d at position %d", ErrFenced, runner, e.Event.Epoch, e.Pos)
}

// adoptFrames gives the frames of a found spool a writer: the one they had, as of what
// it knew to be stored. The leader is asked what has become of them before any
// is sent.
func (l *lane) adoptFrames(ctx context.Context, frames []*frame) error {
	fresh := map[*writerState]bool{}
	for _, f := range frames {
		if f.w != nil || f.run == "" {
			continue
		}
		w := l.ghosts[f.writerKey()]
		if w == nil {
			w = newState(l.log.names, f.run, f.node, f.epoch, f.afterSeq, f.afterPos)
			l.ghosts[f.writerKey()], l.unsettled[w] = w, true
		}
		f.w = w
	}
	for _, f := range frames {
		if l.unsettled[f.w] {
			fresh[f.w] = true
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	return l.settleFresh(ctx, frames, fresh)
}

func (l *lane) settleFresh(ctx context.Context, frames []*frame, fresh map[*writerState]bool) error {
	var theirs []*frame
	for _, f := range frames {
		if fresh[f.w] {
			theirs = append(theirs, f)
		}
	}
	if _, err := l.settleFrames(ctx, theirs); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	for w := range fresh {
		delete(l.unsettled, w)
	}
	return nil
}
