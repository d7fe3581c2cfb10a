package mirror

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/completeness"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// file is a transcript.
type file struct {
	s        *shelf
	rec      transcriptRecord
	revision uint64 // of its record; 0: there is none
	untold   bool   // there may be lines that weren't told
	state    *fileState
	writer   *eventlog.Writer
}

// fileState is what is needed to append on.
type fileState struct {
	size   int64
	whole  []byte          // what was kept, until it is written once more: so this process takes it over
	digest hash.Hash       // of all lines
	ids    map[string]bool // uuids of lines
	sums   [][16]byte      // of all lines, in their order
	lines  *session.Index
	events *claude.Normalizer

	pending []*lineChunk    // what is to be told
	lacks   []string        // lines that are named and aren't there
	missed  map[string]bool // lines that were among them
	log     told
}

// told is what the log has of a transcript.
type told struct {
	any     bool
	lines   map[string]bool // by their keys
	counted map[string]bool // messages, by their ids
	rested  bool            // what waited for another line was told last
}

// lineChunk is what is told at once, up to a line.
type lineChunk struct {
	events []*wire.Event
	mark   wire.TranscriptRead
}

// node is the one that tells of the transcript.
func (f *file) node() string {
	if f.rec.Subpath == "" {
		return session.MainNode
	}
	if name, ok := strings.CutPrefix(f.rec.Subpath, "subagents/"); ok && strings.HasPrefix(name, "agent-") && subjects.CheckID(name) == nil {
		return name
	}
	return "agent-" + f.rec.key()[:8]
}

// source is what a [wire.TranscriptRead] calls the transcript.
func (f *file) source() string {
	return strings.ToValidUTF8(strings.TrimSuffix(session.StoreFile+f.rec.Project+"/"+f.rec.Session+"/"+f.rec.Subpath, "/"), "?")
}

// openFile reads what is kept and what was told of it.
func (f *file) openFile(ctx context.Context) error {
	if f.state != nil {
		return nil
	}
	if err := f.s.checkRun(ctx); err != nil {
		return err
	}
	content, err := f.s.m.kept.Load(ctx, f.rec.object())
	if err != nil {
		return err
	}
	log, err := f.readLog(ctx)
	if err != nil {
		return err
	}
	r := &fileState{
		whole: content, digest: sha256.New(), ids: map[string]bool{}, missed: map[string]bool{}, lines: session.NewIndex(log.lines), log: log,
		events: claude.NewNormalizer(claude.NormalizerOptions{Format: claude.Transcript, Provider: "sdk", PriceOf: f.s.m.cfg.Prices.Of}),
	}
	f.state = r
	for line := range bytes.Lines(content) {
		f.addLine(bytes.TrimRight(line, "\n"))
	}
	r.lacks = nil // which was told when they came
	return nil
}

// readLog finds what the log has of the transcript.
func (f *file) readLog(ctx context.Context) (log told, err error) {
	log.lines, log.counted = map[string]bool{}, map[string]bool{}
	for e, err := range history.ReadSession(ctx, f.s.m.log, eventlog.Query{Run: f.s.run, Node: f.node(), Kinds: []wire.Kind{wire.TypeTranscriptRead.Kind()}}) {
		if err != nil {
			return log, err
		}
		if e.Err != nil {
			continue
		}
		switch p := e.Event.Payload.(type) {
		case *wire.Usage:
			log.counted[p.MessageID] = true
		case *wire.TranscriptRead:
			log.any, log.rested = true, len(p.Lines)+len(p.Removed) == 0
			for _, key := range p.Lines {
				log.lines[key] = true
			}
			for _, key := range p.Removed {
				delete(log.lines, key)
			}
		}
	}
	return log, nil
}

// untoldRest returns what waits for another line, and what the log lacks of it.
func (r *fileState) untoldRest() []*wire.Event {
	return slices.DeleteFunc(r.events.Rest(), func(e *wire.Event) bool {
		p, is := e.Payload.(*wire.Usage)
		return is && p.MessageID != "" && r.log.counted[p.MessageID]
	})
}

// tellRest tells what waits for another line, which hasn't come for a while.
func (f *file) tellRest(ctx context.Context) error {
	if err := f.openFile(ctx); err != nil {
		return err
	}
	rest := f.state.untoldRest()
	if len(rest) == 0 {
		return nil
	}
	if err := f.claim(ctx); err != nil {
		return err
	}
	c := &lineChunk{}
	f.state.sealChunk(c)
	if err := f.tellChunk(ctx, rest, c); err != nil {
		return err
	}
	f.state.log.rested = true
	return nil
}

// storeEntries stores the entries that aren't kept, and then the record.
func (f *file) storeEntries(ctx context.Context, q programRequest, next transcriptRecord) error {
	r := f.state
	lines := f.freshLines(q)
	var added bytes.Buffer
	for _, l := range lines {
		added.Write(l.text)
		added.WriteByte('\n')
	}
	if len(lines) > 0 {
		offset, data := r.size, added.Bytes()
		if r.whole != nil || r.size == 0 {
			offset, data = 0, append(r.whole, data...)
		}
		if err := f.s.m.kept.Save(ctx, f.rec.object(), offset, data); err != nil {
			return err
		}
		r.whole = nil
	}
	revision, err := f.s.m.saveRecord(ctx, next, f.revision)
	if err != nil {
		return err
	}
	f.rec, f.revision = next, revision
	for _, l := range lines { // a line may refer to one that comes later
		r.ids[l.uuid] = l.uuid != ""
	}
	for _, l := range lines {
		f.addLine(l.text)
		if l.parent != "" && !r.ids[l.parent] && !r.missed[l.parent] {
			r.lacks = append(r.lacks, l.parent)
			r.missed[l.parent] = true // it is told once
		}
	}
	return nil
}

// transcriptLine is an entry.
type transcriptLine struct {
	text         []byte // JSON in one line
	uuid, parent string
}

// freshLines returns the entries that aren't kept. One without a uuid is always fresh, unless the whole batch is one that
// the program tries again, and that was kept.
func (f *file) freshLines(q programRequest) (fresh []transcriptLine) {
	r := f.state
	if q.Again && r.hasLanded(q.lines) {
		return nil
	}
	seen := map[string]bool{}
	for _, l := range q.lines {
		if l.uuid != "" && (r.ids[l.uuid] || seen[l.uuid]) {
			continue
		}
		seen[l.uuid] = true
		fresh = append(fresh, l)
	}
	return fresh
}

// hasLanded reports whether the last lines are those of a batch, less such as had been there before.
func (r *fileState) hasLanded(batch []transcriptLine) bool {
	at, landed := len(r.sums), false
	for _, b := range slices.Backward(batch) {
		sum := sumOf(b.text)
		switch {
		case at > 0 && r.sums[at-1] == sum:
			at, landed = at-1, true
		case b.uuid == "" || !r.ids[b.uuid]:
			return false
		}
	}
	return landed
}

func sumOf(text []byte) (sum [16]byte) {
	whole := sha256.Sum256(text)
	copy(sum[:], whole[:])
	return sum
}

// addLine takes a line that is kept, and what is to be told of it.
func (f *file) addLine(text []byte) {
	r := f.state
	r.digest.Write(text)
	r.digest.Write([]byte{'\n'})
	r.size += int64(len(text)) + 1
	r.sums = append(r.sums, sumOf(text))
	var named struct {
		UUID string `json:"uuid"`
	}
	if json.Unmarshal(text, &named) == nil && named.UUID != "" {
		r.ids[named.UUID] = true
	}
	if f.rec.Subpath == "" {
		f.s.about.Note(text)
	}
	l := r.lines.Add(text)
	c := r.lastChunk()
	if l.Omitted {
		c.mark.Omitted++
		return
	}
	if l.Fresh && r.log.rested { // the normalizer has it still
		c.events, r.log.rested = append(c.events, r.untoldRest()...), false
	}
	events := r.events.Line(time.Now().UnixMilli(), text)
	if l.Fresh {
		c.mark.Lines = append(c.mark.Lines, l.Key)
		c.events = append(c.events, events...)
	}
	if len(c.events) >= maxEvents {
		r.sealChunk(c)
	}
}

// maxEvents is how many events close a chunk.
const maxEvents = 200

// lastChunk returns the chunk that is open.
func (r *fileState) lastChunk() *lineChunk {
	if n := len(r.pending); n > 0 && r.pending[n-1].mark.Digest == "" {
		return r.pending[n-1]
	}
	c := &lineChunk{}
	r.pending = append(r.pending, c)
	return c
}

// sealChunk has a chunk go up to here.
func (r *fileState) sealChunk(c *lineChunk) {
	c.mark.Offset, c.mark.Digest = r.size, hex.EncodeToString(r.digest.Sum(nil))
}

// tellChunks tells what is to be told: each chunk, and how far it goes, as one.
func (f *file) tellChunks(ctx context.Context) error {
	r := f.state
	if c := r.lastChunk(); len(c.mark.Lines) > 0 {
		r.sealChunk(c)
	} else {
		r.pending = r.pending[:len(r.pending)-1]
	}
	for len(r.pending) > 0 {
		c := r.pending[0]
		if err := f.claim(ctx); err != nil {
			return err
		}
		if err := f.tellChunk(ctx, c.events, c); err != nil {
			return err
		}
		r.pending = r.pending[1:]
	}
	if r.lacks = slices.DeleteFunc(r.lacks, func(uuid string) bool { return r.ids[uuid] }); len(r.lacks) == 0 {
		return nil
	}
	if err := f.claim(ctx); err != nil {
		return err
	}
	_, err := f.writer.Append(ctx, lackEvent(run.ExecID(f.node(), 1), r.lacks, len(r.lacks), ", which another one refers to"))
	if err == nil {
		r.lacks = nil
	}
	return err
}

// tellChunk stores events, and how far they go, as one.
func (f *file) tellChunk(ctx context.Context, events []*wire.Event, c *lineChunk) error {
	r, exec, at := f.state, run.ExecID(f.node(), 1), int64(0)
	if !r.log.any {
		events = append([]*wire.Event{{Payload: &wire.NodeStart{NodeType: "agent", Attempt: 1}}}, events...)
	}
	for _, e := range events {
		e.ExecID, at = exec, max(at, e.Timestamp)
	}
	c.mark.File = f.source()
	_, err := f.writer.Append(ctx, append(events, &wire.Event{Timestamp: at, ExecID: exec, Payload: &c.mark})...)
	r.log.any = r.log.any || err == nil
	return err
}

// claim has the node written here, and the run go on.
func (f *file) claim(ctx context.Context) error {
	if err := f.s.wakeRun(ctx); err != nil || f.writer != nil {
		return err
	}
	claimed, err := history.Claim(ctx, f.s.m.log, f.s.run, f.node(), eventlog.Claim{Runner: f.s.m.cfg.ID, ExecID: run.ExecID(f.node(), 1)})
	if err != nil {
		return err
	}
	f.writer = claimed
	log, err := f.readLog(ctx)
	if err == nil && log.any != f.state.log.any {
		err = fmt.Errorf("mirror: node %s: %w", f.node(), errElsewhere)
	}
	return err
}

// lackEvent says that the log lacks entries of a session.
func lackEvent(exec string, ids []string, n int, why string) *wire.Event {
	v := &wire.SessionCompared{Verdict: completeness.StreamShort, StreamShort: n}
	for _, id := range ids[:min(len(ids), completeness.MaxEvidence)] {
		v.StreamLacks = append(v.StreamLacks, strings.ToValidUTF8("entry "+id+why, "?"))
	}
	return &wire.Event{ExecID: exec, Payload: v}
}

// tellTrouble tells that a program has lost entries that it couldn't append.
func (f *file) tellTrouble(ctx context.Context, q programRequest) error {
	if err := f.openFile(ctx); err != nil {
		return err
	}
	if err := f.claim(ctx); err != nil {
		return err
	}
	exec := run.ExecID(f.node(), 1)
	data, err := wire.Marshal(map[string]any{"type": "system", "subtype": "mirror_error", "error": q.Error, "session_id": f.rec.Session, "entries": q.Lost, "uuids": q.UUIDs})
	if err != nil {
		return err
	}
	lack := lackEvent(exec, q.UUIDs, max(q.Lost, 1), ", which the program couldn't append")
	_, err = f.writer.Append(ctx, &wire.Event{ExecID: exec, Payload: &wire.RawMessage{Source: "transcript", Name: wire.MirrorError, Data: data}}, lack)
	return err
}

// tellRemoved tells that the lines aren't kept any more, so that they are told again if they come again.
func (f *file) tellRemoved(ctx context.Context) error {
	log, err := f.readLog(ctx)
	if err != nil || !log.any {
		return err
	}
	f.close(ctx)
	w, err := history.Claim(ctx, f.s.m.log, f.s.run, f.node(), eventlog.Claim{Runner: f.s.m.cfg.ID, ExecID: run.ExecID(f.node(), 1)})
	if err != nil {
		return err
	}
	defer func() { _ = w.Close(ctx) }() // what was appended is stored
	sum := sha256.Sum256(nil)
	mark := &wire.TranscriptRead{File: f.source(), Digest: hex.EncodeToString(sum[:])}
	for key := range log.lines {
		mark.Removed = append(mark.Removed, key)
	}
	_, err = w.Append(ctx, &wire.Event{ExecID: run.ExecID(f.node(), 1), Payload: mark})
	return err
}

// remove removes what is kept, the record last.
func (f *file) remove(ctx context.Context) error {
	f.close(ctx)
	if err := f.s.m.kept.Remove(ctx, f.rec.object()); err != nil {
		return err
	}
	if err := f.s.m.records.Purge(ctx, f.s.m.log.Names().StateKey(name, f.rec.key())); err != nil {
		return err
	}
	delete(f.s.files, f.rec.Subpath)
	return nil
}

// close lets go of what is needed to append on.
func (f *file) close(ctx context.Context) {
	if f.writer != nil {
		_ = f.writer.Close(ctx) // what was appended is stored
	}
	f.writer, f.state = nil, nil
}
