package watcher

import (
	"context"

	"code.wake.dev/wake/internal/completeness"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/wire"
)

// compareHooks tells whether the files of a session have the results of calls that its hooks have told of, if these told of some since it
// was last asked.
func (w *Watcher) compareHooks(ctx context.Context, t *tale) error {
	last, heard, err := w.log.Last(ctx, t.run, wire.HooksNode)
	if err != nil || !heard || last.Pos == t.compared {
		return err
	}
	hooks, files := completeness.NewFeed(t.session), completeness.NewFeed(t.session)
	for e, err := range w.log.Read(ctx, eventlog.Query{Run: t.run, Kinds: []wire.Kind{wire.TypeHookFired.Kind(), wire.TypeAgentTool.Kind(), wire.TypeTranscriptRead.Kind()}}) {
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
