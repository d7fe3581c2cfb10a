package oracle

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	_ "modernc.org/sqlite" // the recorder's file

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/replay"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// History is all that an installation has stored.
type History struct {
	Incarnation string
	Names       subjects.Names
	Events      []eventlog.Entry // of the whole stream, in its order
	Replayed    []eventlog.Entry // as a replay of each run shows them
	Blobs       map[string][]byte
	Snapshots   map[string][]byte // encoded states by run
	Bookmarks   []Bookmark
	Alerts      []Alert
	Commands    []Message
	DeadLetters []wire.Poison
	Recorded    []Row
	Index       Index
	Registered  []string // keys
}

// Bookmark is a labelled state.
type Bookmark struct {
	Run, Label string
	State      []byte
}

// Message is a message of a stream.
type Message struct {
	Position uint64
	Time     time.Time
	Subject  string
	Data     []byte
}

// Alert is an alert that is stored.
type Alert struct {
	Subject string
	wire.Alert
}

// Row is an event as the recorder has it.
type Row struct {
	Position  uint64
	Run, Node string
	Mark      string
	Data      []byte
}

// Index is what the recorder says of all it has.
type Index struct {
	Position            uint64
	Void, Refused, Gaps int
}

// Load reads all that is stored.
func Load(ctx context.Context, log *eventlog.Log, o Options) (*History, error) {
	h := &History{Incarnation: log.Incarnation(), Names: log.Names(), Snapshots: map[string][]byte{}}
	js, n := log.JetStream(), log.Names()
	messages, err := read(ctx, js, n.EventsStream())
	if err != nil {
		return nil, err
	}
	runs := map[string]bool{}
	for _, m := range messages {
		e := entry(n, m)
		h.Events = append(h.Events, e)
		runs[e.RunID] = runs[e.RunID] || e.Err == nil
		if err := h.blobs(ctx, log, e); err != nil {
			return nil, err
		}
	}
	for _, id := range sorted(runs) {
		if !runs[id] {
			continue
		}
		for e, err := range replay.Play(ctx, log.Read(ctx, eventlog.Query{Run: id}), replay.Options{}) {
			if err != nil {
				return nil, err
			}
			h.Replayed = append(h.Replayed, e)
		}
	}
	if h.Commands, err = read(ctx, js, n.CommandsStream()); err != nil {
		return nil, err
	}
	return h, errors.Join(h.loadAlerts(ctx, js), h.loadLetters(ctx, js), h.loadStates(ctx, log), h.loadKeys(ctx, js), h.loadRecord(ctx, o))
}

// read reads a stream, message by message.
func read(ctx context.Context, js jetstream.JetStream, name string) ([]Message, error) {
	s, err := js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	state := s.CachedInfo().State
	var all []Message
	for pos := max(state.FirstSeq, 1); pos <= state.LastSeq; pos++ {
		m, err := s.GetMsg(ctx, pos)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("stream %s at %d: %w", name, pos, err)
		}
		all = append(all, Message{m.Sequence, m.Time, m.Subject, m.Data})
	}
	return all, nil
}

// entry reads an event without the help of the log's own reader.
func entry(n subjects.Names, m Message) eventlog.Entry {
	e := eventlog.Entry{Pos: m.Position, Time: m.Time, Subject: m.Subject, Data: m.Data}
	id, node, kind, err := n.ParseEvent(m.Subject)
	if err != nil && !errors.Is(err, subjects.ErrHashed) {
		e.Err = err
		return e
	}
	e.RunID, e.NodeID, e.Kind = id, node, wire.Kind(kind)
	if e.Event, e.Err = wire.Decode(m.Data); e.Err != nil {
		return e
	}
	if errors.Is(err, subjects.ErrHashed) {
		e.RunID, e.NodeID = e.Event.RunID, e.Event.NodeID
	}
	return e
}

// blobs loads what an event has in the object store.
func (h *History) blobs(ctx context.Context, log *eventlog.Log, e eventlog.Entry) error {
	if e.Event == nil {
		return nil
	}
	for _, b := range e.Event.Blobs {
		if err := h.blob(ctx, log, b.SHA256); err != nil {
			return err
		}
	}
	return nil
}

func (h *History) blob(ctx context.Context, log *eventlog.Log, sum string) error {
	if h.Blobs == nil {
		h.Blobs = map[string][]byte{}
	}
	if _, known := h.Blobs[sum]; known {
		return nil
	}
	data, err := log.Blob(ctx, sum)
	if err != nil && !errors.Is(err, eventlog.ErrBlobMissing) {
		return err
	}
	if err == nil {
		h.Blobs[sum] = data
	}
	return nil
}

func (h *History) fetch(sum string) ([]byte, error) {
	if data, ok := h.Blobs[sum]; ok {
		return data, nil
	}
	return nil, fs.ErrNotExist
}

// whole puts back what an event has in the object store.
func (h *History) whole(e *wire.Event) (*wire.Event, error) {
	data, err := wire.Encode(e)
	if err != nil {
		return nil, err
	}
	if data, err = wire.Inline(data, h.fetch); err != nil {
		return nil, err
	}
	return wire.Decode(data)
}

// apply folds an event.
func (h *History) apply(s *wire.State, e eventlog.Entry) error {
	event := e.Event
	if run.NeedsInline(event) {
		var err error
		if event, err = h.whole(event); err != nil {
			return err
		}
	}
	return run.Apply(s, wire.Position{Incarnation: h.Incarnation, Seq: e.Pos}, event)
}

func (h *History) loadAlerts(ctx context.Context, js jetstream.JetStream) error {
	messages, err := read(ctx, js, h.Names.AlertsStream())
	if err != nil {
		return err
	}
	for _, m := range messages {
		a := Alert{Subject: m.Subject}
		if err := wire.Unmarshal(m.Data, &a.Alert); err != nil {
			return fmt.Errorf("alert %s: %w", m.Subject, err)
		}
		h.Alerts = append(h.Alerts, a)
	}
	return nil
}

func (h *History) loadLetters(ctx context.Context, js jetstream.JetStream) error {
	messages, err := read(ctx, js, h.Names.DeadLetterStream())
	if err != nil {
		return err
	}
	for _, m := range messages {
		var p wire.Poison
		if err := wire.Unmarshal(m.Data, &p); err != nil {
			return fmt.Errorf("dead letter %d: %w", m.Position, err)
		}
		h.DeadLetters = append(h.DeadLetters, p)
	}
	return nil
}

// loadStates reads snapshots and bookmarks, as bytes of states.
func (h *History) loadStates(ctx context.Context, log *eventlog.Log) error {
	snapshots, err := values(ctx, log.JetStream(), h.Names.SnapshotsBucket())
	if err != nil {
		return err
	}
	for _, v := range snapshots {
		data, err := h.referred(ctx, log, v.value)
		if err != nil {
			return fmt.Errorf("snapshot %s: %w", v.key, err)
		}
		id, err := h.Names.ParseSnapshotKey(v.key)
		if err != nil {
			return fmt.Errorf("snapshot %s: %w", v.key, err)
		}
		h.Snapshots[id] = data
	}
	bookmarks, err := values(ctx, log.JetStream(), h.Names.BookmarksBucket())
	if err != nil {
		return err
	}
	for _, v := range bookmarks {
		data, err := h.referred(ctx, log, v.value)
		if err != nil {
			return fmt.Errorf("bookmark %s: %w", v.key, err)
		}
		var kept struct {
			Label string   `json:"label"`
			State wire.Raw `json:"state"`
		}
		id, _, err := h.Names.ParseBookmarkKey(v.key)
		if err = errors.Join(err, wire.Unmarshal(data, &kept)); err != nil {
			return fmt.Errorf("bookmark %s: %w", v.key, err)
		}
		h.Bookmarks = append(h.Bookmarks, Bookmark{id, kept.Label, kept.State})
	}
	return nil
}

// referred returns the value, or the object that it refers to.
func (h *History) referred(ctx context.Context, log *eventlog.Log, value []byte) ([]byte, error) {
	var ref struct {
		Blob *struct {
			SHA256 string `json:"sha256"`
		} `json:"$blob"`
	}
	if wire.Unmarshal(value, &ref) != nil || ref.Blob == nil {
		return value, nil //nolint:nilerr // it is no reference, whatever it is
	}
	return log.Blob(ctx, ref.Blob.SHA256)
}

type keyed struct {
	key   string
	value []byte
}

func values(ctx context.Context, js jetstream.JetStream, bucket string) ([]keyed, error) {
	kv, err := js.KeyValue(ctx, bucket)
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", bucket, err)
	}
	keys, err := kv.Keys(ctx)
	if errors.Is(err, jetstream.ErrNoKeysFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", bucket, err)
	}
	var all []keyed
	for _, key := range keys {
		e, err := kv.Get(ctx, key)
		if errors.Is(err, jetstream.ErrKeyNotFound) { // expired
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("bucket %s: %s: %w", bucket, key, err)
		}
		all = append(all, keyed{key, e.Value()})
	}
	return all, nil
}

// loadKeys reads which runs are registered.
func (h *History) loadKeys(ctx context.Context, js jetstream.JetStream) error {
	states, err := values(ctx, js, h.Names.StateBucket())
	if err != nil {
		return err
	}
	for _, v := range states {
		if service, _, err := h.Names.ParseStateKey(v.key); err == nil && service == "runner" {
			h.Registered = append(h.Registered, v.key)
		}
	}
	return nil
}

// loadRecord reads the recorder's file.
func (h *History) loadRecord(ctx context.Context, o Options) error {
	if o.Recorder == "" {
		return nil
	}
	dsn := (&url.URL{Scheme: "file", Path: o.Recorder}).String() + "?mode=ro&_pragma=busy_timeout(5000)"
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	defer db.Close() //nolint:errcheck // nothing was written
	const index = `SELECT (SELECT coalesce(max(position), 0) FROM streams), coalesce(sum(void), 0), coalesce(sum(refused), 0), coalesce(sum(gaps), 0) FROM runs`
	if err := db.QueryRowContext(ctx, index).Scan(&h.Index.Position, &h.Index.Void, &h.Index.Refused, &h.Index.Gaps); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	store, err := recorder.OpenReadOnly(ctx, o.Recorder)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	defer store.Close() //nolint:errcheck // nothing was written
	for e, err := range store.Answers.Read(ctx, recorder.Query{Marked: true}) {
		if err != nil {
			return fmt.Errorf("record: %w", err)
		}
		r := Row{Position: e.Pos, Run: e.Run, Mark: e.Mark, Data: e.Data}
		if e.Mark == "" || e.Mark == "void" {
			r.Node = wire.Raw(e.Data).TextAt("nodeId")
		}
		h.Recorded = append(h.Recorded, r)
	}
	return nil
}
