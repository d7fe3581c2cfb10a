// Package verify checks a store: that its events are as they were recorded, and what is
// derived from them what recording them again makes.
package verify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"code.wake.dev/wake/internal/chain"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/index"
	"code.wake.dev/wake/services/recorder/internal/database"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/table"
	"code.wake.dev/wake/services/recorder/queries"
)

// Damage is something in a store that isn't as it was recorded.
type Damage struct {
	Table   string `json:"table,omitempty"`
	Run     string `json:"run,omitempty"`
	Segment int64  `json:"segment,omitempty"` // 0: none
	From    uint64 `json:"from,omitempty"`    // first position concerned; 0: none is known
	To      uint64 `json:"to,omitempty"`      // last one; 0: From
	Row     string `json:"row,omitempty"`     // what its table knows it by, besides its run
	Column  string `json:"column,omitempty"`
	Problem string `json:"problem"`
}

// String is for people.
func (d Damage) String() string {
	s := ""
	add := func(format string, args ...any) {
		if s != "" {
			s += ", "
		}
		s += fmt.Sprintf(format, args...)
	}
	if d.Run != "" {
		add("run %s", d.Run)
	}
	if d.Segment > 0 {
		add("segment %d", d.Segment)
	}
	switch {
	case d.To > d.From:
		add("positions %d to %d", d.From, d.To)
	case d.From > 0:
		add("position %d", d.From)
	}
	if d.Table != "" {
		add("table %s", d.Table)
	}
	if d.Row != "" {
		add("row %s", d.Row)
	}
	if d.Column != "" {
		add("column %s", d.Column)
	}
	if s == "" {
		return d.Problem
	}
	return s + ": " + d.Problem
}

// Verification is what a check of a store came to.
type Verification struct {
	Position wire.Position `json:"position"` // up to here everything is recorded
	Derived  uint64        `json:"derived"`  // up to here what follows from the events is derived, and compared
	Runs     int           `json:"runs"`     // that were checked, what is of no run included
	Segments int           `json:"segments"`
	Events   int64         `json:"events"`
	Void     int64         `json:"void"`               // of those: by fenced writers, or in a place that was taken
	Gaps     int64         `json:"gaps"`               // events that were missing already when they were recorded
	Deleted  int           `json:"deleted,omitempty"`  // runs without their events: removed, or being removed
	Anchored int64         `json:"anchored,omitempty"` // runs with the same chain as in an anchor
	Compared int64         `json:"compared,omitempty"` // with what the stream still has
	Known    int           `json:"known,omitempty"`    // of the runs: these had been checked before, and nothing has happened in them since
	Other    int           `json:"other,omitempty"`    // runs whose rows another version has derived: these aren't compared
	Damages  []Damage      `json:"damages"`            // none: all is as it was recorded
	Omitted  int           `json:"omitted,omitempty"`
}

// Remedy says what to do about the damages.
func (v Verification) Remedy() string {
	if v.Omitted == 0 && !slices.ContainsFunc(v.Damages, func(d Damage) bool { return d.Table != bucket }) {
		return "`wake rebuild snapshotter` makes the snapshots anew, of the events"
	}
	return "restore a copy of the store; or empty it, and what the stream still holds is recorded anew"
}

// maxDamages bounds the list of damages.
const maxDamages = 1000

// Checker checks a store.
type Checker struct {
	answers *queries.Answers
	turn    sync.Mutex // of checks: each takes most of the store's connections
	// Progress is called with what is being checked, and now and then with how much of it was, of how much, if that is known. It may be nil.
	Progress func(part string, done, of int64)
}

// New returns the checker of the store that answers are from.
func New(answers *queries.Answers) *Checker { return &Checker{answers: answers} }

func (c *Checker) newVerifier() *verifier {
	progress := c.Progress
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	return &verifier{s: c.answers, turn: &c.turn, derived: derivationsOf(c.answers.D.Tables), progress: progress, Verification: Verification{Damages: []Damage{}}}
}

// Verify checks the events of a run, or of all if run is empty, and whatever is
// derived from them: the database itself and its schema, the hash chains, positions
// and numbers of the events, and all rows that recording them again would make
// otherwise. It sees the store as of one moment. It fails only if it couldn't
// check; what is damaged is in the answer.
func (c *Checker) Verify(ctx context.Context, run string) (Verification, error) {
	v := c.newVerifier()
	if err := v.checkStore(ctx, run); err != nil {
		return Verification{}, request.Wrap("verify", err)
	}
	return v.Verification, nil
}

// verifier is a check under way.
type verifier struct {
	Verification
	s       *queries.Answers
	turn    *sync.Mutex
	t       *archive.Tx
	scratch *index.Index
	replay  *replay
	derived []derivation
	chain   chain.Linker
	sound   []replayed            // events of the part of a run that is being checked
	anchors map[string]AnchorLink // that haven't been come to, by run
	seen    *positions            // of all runs; nil: only one run is checked
	gone    map[string]bool       // runs without their events: they were removed
	bad     int64
	lost    int64

	incremental bool            // known runs aren't checked again, nor what is of no single run
	known       map[string]Head // by run
	knownOf     string          // the incarnation that they are of
	heads       []Head          // of the runs that are as they were recorded

	progress  func(part string, done, of int64)
	done, all int64 // events
	stored    int64 // events of all runs, those that aren't checked too
}

// partEvents are the events, and what is derived from them.
const partEvents = "events"

func (v *verifier) addDamage(d Damage) {
	if len(v.Damages) == maxDamages {
		v.Omitted++
		return
	}
	v.Damages = append(v.Damages, d)
}

// takeDamages takes what another part of the check has found.
func (v *verifier) takeDamages(o *verifier) {
	for _, d := range o.Damages {
		v.addDamage(d)
	}
	v.Omitted += o.Omitted
}

// damageCount is how many damages were found.
type damageCount struct{ listed, omitted int }

func (v *verifier) countDamages() damageCount { return damageCount{len(v.Damages), v.Omitted} }

// dropSince drops the damages that were found since: each run is checked again by itself.
func (v *verifier) dropSince(n damageCount) { v.Damages, v.Omitted = v.Damages[:n.listed], n.omitted }

// noteFailure takes an error of the database as damage, unless the check was ended.
func (v *verifier) noteFailure(ctx context.Context, d Damage, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.Problem = err.Error()
	v.addDamage(d)
	return nil
}

func (v *verifier) checkStore(ctx context.Context, run string) (err error) {
	v.turn.Lock()
	defer v.turn.Unlock()
	if err := v.openViews(ctx); err != nil {
		return err
	}
	defer v.t.Rollback()        //nolint:errcheck // nothing was written
	defer v.replay.t.Rollback() //nolint:errcheck // nothing was written
	if v.gone, err = retiredRuns(ctx, v.t); err != nil {
		return err
	}
	v.Deleted = len(v.gone)
	where, args := " WHERE run NOT IN (SELECT run FROM retired)", database.Params{}
	if run != "" {
		found, err := request.Resolve(ctx, v.t, run, "", "")
		if err != nil {
			return err
		}
		where, v.Deleted, run = " WHERE id = "+args.Add(found.ID), 0, found.Run
	} else if !v.incremental {
		v.seen = new(positions)
	}
	dir, err := os.MkdirTemp("", "wake-verify-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a folder for temporary files
	if v.scratch, err = index.Scratch(ctx, filepath.Join(dir, "scratch.db")); err != nil {
		return err
	}
	v.replay.scratch = v.scratch
	file := &verifier{s: v.s, Verification: Verification{Damages: []Damage{}}}
	beside := startPart(ctx, func(ctx context.Context) error {
		if v.incremental {
			return nil
		}
		if err := file.checkIntegrity(ctx); err != nil || run != "" {
			return err
		}
		return file.checkWords(ctx, dir)
	})
	err = v.checkRooms(ctx, run, where, args)
	if err == nil {
		v.progress("database", 0, 0)
	}
	err = beside.awaitEnd(err)
	file.takeDamages(v) // what is wrong with the database comes first, and may be the cause of all else
	v.Damages, v.Omitted = file.Damages, file.Omitted
	return errors.Join(err, v.scratch.Close(), v.scratch.Archive.Close())
}

// part is a check that goes on beside another one, with damages of its own.
type part struct {
	over   <-chan struct{} // closed with the part
	cause  func() error    // of that
	cancel context.CancelCauseFunc
	done   chan error
}

func startPart(ctx context.Context, check func(context.Context) error) *part {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &part{ctx.Done(), func() error { return context.Cause(ctx) }, cancel, make(chan error, 1)}
	go func() {
		err := check(ctx)
		cancel(err)
		p.done <- err
	}()
	return p
}

// awaitEnd waits for the end of the part, or ends it if the other one has failed with err.
func (p *part) awaitEnd(err error) error {
	if err != nil {
		p.cancel(err)
		<-p.done //nolint:errcheck // it was ended
		return err
	}
	return <-p.done
}

// checkRooms checks the schema, a run, or all if run is empty, and what is of no single one.
func (v *verifier) checkRooms(ctx context.Context, run, where string, args database.Params) error {
	err := v.checkSchema(ctx)
	if err == nil {
		err = v.checkRuns(ctx, where, args)
	}
	if err != nil {
		return err
	}
	if v.incremental {
		return v.checkCount(ctx)
	}
	v.progress("alerts", 0, 0)
	if err = v.checkAlerts(ctx, run); err == nil && run == "" {
		v.progress("all runs", 0, 0)
		err = v.checkAcrossRuns(ctx)
	}
	return err
}

// openViews begins two views of the store as of the same moment: of the events, and of what follows from them.
func (v *verifier) openViews(ctx context.Context) (err error) {
	p := &replay{verifier: verifier{s: v.s, derived: v.derived}}
	v.replay = p
	if v.t, p.t, err = v.s.TwoViews(ctx); err != nil {
		return err
	}
	v.Position, v.Derived, err = v.t.Reached(ctx)
	p.Position, p.Derived = v.Position, v.Derived
	return v.noteFailure(ctx, Damage{Table: "streams"}, err)
}

// checkSchema compares what the database enforces and shows with what a new store has. To
// have more tables, indexes and views is no damage, but a trigger may do anything.
func (v *verifier) checkSchema(ctx context.Context) error {
	if v.s.Path == "" {
		return nil // PostgreSQL, which has a schema of its own
	}
	begun, err := v.scratch.Begin(ctx)
	if err != nil {
		return err
	}
	defer begun.Rollback() //nolint:errcheck // nothing was written
	want, err := schemaObjects(ctx, begun)
	if err != nil {
		return err
	}
	got, err := schemaObjects(ctx, v.t)
	if err != nil {
		return v.noteFailure(ctx, Damage{Table: "sqlite_schema"}, err)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if found, ok := got[name]; !ok {
			v.addDamage(Damage{Table: "sqlite_schema", Row: name, Problem: "it isn't there"})
		} else if found != want[name] {
			v.addDamage(Damage{Table: "sqlite_schema", Row: name, Problem: "it is another one"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok && strings.HasPrefix(name, "trigger ") {
			v.addDamage(Damage{Table: "sqlite_schema", Row: name, Problem: "it isn't the recorder's"})
		}
	}
	return nil
}

// schemaObjects are the definitions of what is in a database file, by kind and name.
func schemaObjects(ctx context.Context, t *archive.Tx) (map[string]string, error) {
	defined := map[string]string{}
	var name, text string
	for err := range t.Each(ctx, `SELECT type || ' ' || name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT GLOB 'sqlite_*'`, nil, &name, &text) {
		if err != nil {
			return nil, err
		}
		defined[name] = text
	}
	return defined, nil
}

// checkIntegrity asks the database whether it is sound, in a view of its own.
func (v *verifier) checkIntegrity(ctx context.Context) error {
	if v.s.D.Integrity == "" {
		return nil
	}
	t, err := v.s.View(ctx)
	if err != nil {
		return err
	}
	defer t.Rollback() //nolint:errcheck // nothing was written
	if t.D.Lags {      // a connection that has read the full text before goes by its old segments, unless a question has it look
		var n int
		if err := t.Row(ctx, `SELECT count(*) FROM lines_fts WHERE rowid = 0`).Scan(&n); err != nil {
			return v.noteFailure(ctx, Damage{Table: "lines_fts"}, err)
		}
	}
	var problem string
	for err := range t.Each(ctx, t.D.Integrity, nil, &problem) {
		if err != nil {
			return v.noteFailure(ctx, Damage{}, err)
		}
		if problem != "ok" {
			v.addDamage(Damage{Problem: "the database is damaged: " + problem})
		}
	}
	return nil
}

// checkRuns checks one run after the other, and beside it what follows from their events.
func (v *verifier) checkRuns(ctx context.Context, where string, args database.Params) error {
	list, err := v.listRuns(ctx, where, args)
	if err != nil {
		return err
	}
	v.progress(partEvents, 0, v.all)
	p := v.replay
	p.startReplay(ctx)
	if err = v.checkList(ctx, list); err == nil {
		err = p.sendRest()
	}
	close(p.parts)
	if err := p.beside.awaitEnd(err); err != nil {
		return err
	}
	v.Other += p.Other
	v.takeDamages(&p.verifier)
	places := map[string]int{}
	for i, r := range list {
		places[r.RunID] = i
		if !r.isHarmed() && r.LastPos <= v.Derived && !r.isOther() {
			v.heads = append(v.heads, headOf(r))
		}
	}
	slices.SortStableFunc(v.Damages, func(a, b Damage) int { return cmp.Compare(places[a.Run], places[b.Run]) })
	return nil
}

// listRuns returns the runs to check.
func (v *verifier) listRuns(ctx context.Context, where string, args database.Params) (list []*runCheck, err error) {
	var row table.Run
	for err := range v.t.Each(ctx, v.t.Whole("runs")+where+` ORDER BY id`, args, table.Fields(&row)...) {
		if err != nil {
			return nil, v.noteFailure(ctx, Damage{Table: "runs"}, err)
		}
		r := &runCheck{Run: row}
		if v.isKnown(r) {
			v.Runs, v.Known = v.Runs+1, v.Known+1
			v.heads = append(v.heads, v.known[r.RunID])
			continue
		}
		list = append(list, r)
		v.all += row.Events
	}
	err = v.t.Row(ctx, `SELECT CAST(coalesce(sum(events), 0) AS BIGINT) FROM runs`).Scan(&v.replay.stored)
	return list, v.noteFailure(ctx, Damage{Table: "runs"}, err)
}

// checkList checks the events of the runs.
func (v *verifier) checkList(ctx context.Context, list []*runCheck) error {
	for rest := list; len(rest) > 0; {
		some := rest[:numberedTogether(rest)]
		rest = rest[len(some):]
		if err := v.findParts(ctx, some); err != nil {
			return err
		}
		for _, r := range some {
			if err := v.checkRun(ctx, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// The verifier asks together for runs with numbers that are close, and passes over the runs between them that it doesn't check.
const (
	maxTogether = 1000
	maxApart    = 64
)

// numberedTogether is how many of the first runs have numbers that are close.
func numberedTogether(list []*runCheck) (n int) {
	for n = 1; n < min(len(list), maxTogether) && list[n].ID-list[n-1].ID <= maxApart; n++ {
	}
	return n
}

// checkAcrossRuns checks what isn't of a single run.
func (v *verifier) checkAcrossRuns(ctx context.Context) error {
	var partial bool
	var retired, bad, lost int64
	err := v.t.Row(ctx, `SELECT EXISTS (SELECT 1 FROM retired WHERE run = ?1), (SELECT coalesce(sum(events), 0) FROM retired),
		(SELECT coalesce(sum(bad), 0) FROM streams), (SELECT coalesce(sum(lost), 0) FROM streams)`, archive.OtherRuns).Scan(&partial, &retired, &bad, &lost)
	if err := v.noteFailure(ctx, Damage{Table: "streams"}, err); err != nil {
		return err
	}
	if !partial {
		v.checkGaps(retired)
		if bad != v.bad {
			v.addDamage(Damage{Table: "streams", Column: "bad", Problem: fmt.Sprintf("it is %d, there are %d", bad, v.bad)})
		}
		if lost != v.lost {
			v.addDamage(Damage{Table: "streams", Column: "lost", Problem: fmt.Sprintf("it is %d, the events say %d", lost, v.lost)})
		}
	}
	if v.seen.last > v.Position.Seq {
		v.addDamage(Damage{Table: "streams", Column: "position", From: v.seen.last, Problem: fmt.Sprintf("it is %d, there are events beyond it", v.Position.Seq)})
	}
	if v.Derived > v.Position.Seq {
		v.addDamage(Damage{Table: "streams", Column: "derived", From: v.Derived, Problem: fmt.Sprintf("it is beyond the position, %d", v.Position.Seq)})
	}
	for _, t := range v.t.D.Tables {
		if !t.OfRun() {
			continue
		}
		var strays int64
		err := v.t.Row(ctx, `SELECT count(*) FROM `+t.Name+` WHERE run NOT IN (SELECT id FROM runs)`).Scan(&strays)
		if err := v.noteFailure(ctx, Damage{Table: t.Name}, err); err != nil {
			return err
		}
		if strays > 0 {
			v.addDamage(Damage{Table: t.Name, Problem: fmt.Sprintf("rows of runs that table runs doesn't have: %d", strays)})
		}
	}
	return v.checkBlobs(ctx)
}

// checkGaps checks that a position has no event exactly where its event was removed.
func (v *verifier) checkGaps(retired int64) {
	var gaps []Damage
	n := int64(0)
	v.seen.reportGaps(v.Position.Seq, func(from, to uint64) {
		n += int64(to - from + 1)
		gaps = append(gaps, Damage{From: from, To: to, Problem: "the store says that everything is recorded, but there is nothing"})
	})
	switch {
	case n == retired:
	case retired == 0:
		for _, d := range gaps {
			v.addDamage(d)
		}
	default:
		v.addDamage(Damage{Table: "retired", Column: "events", Problem: fmt.Sprintf("the runs that were deleted had %d events, but %d are missing", retired, n)})
	}
}

// retiredRuns returns the runs without their events: removed, or being removed.
func retiredRuns(ctx context.Context, t *archive.Tx) (map[string]bool, error) {
	gone := map[string]bool{}
	var run string
	for err := range t.Each(ctx, `SELECT run FROM retired WHERE run <> ?1`, []any{archive.OtherRuns}, &run) {
		if err != nil {
			return nil, err
		}
		gone[run] = true
	}
	return gone, nil
}

// checkBlobs checks that large fields are what they are called.
func (v *verifier) checkBlobs(ctx context.Context) error {
	var name string
	var size int64
	var data sql.RawBytes
	for err := range v.t.Each(ctx, `SELECT sha256, size, data FROM blobs ORDER BY sha256`, nil, &name, &size, &data) {
		if err != nil {
			return v.noteFailure(ctx, Damage{Table: "blobs"}, err)
		}
		if data == nil {
			continue
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != name {
			v.addDamage(Damage{Table: "blobs", Row: name, Column: "data", Problem: "the content has another hash"})
		} else if size != int64(len(data)) {
			v.addDamage(Damage{Table: "blobs", Row: name, Column: "size", Problem: fmt.Sprintf("it is %d, there are %d bytes", size, len(data))})
		}
	}
	return nil
}

// positions is a set of positions.
type positions struct {
	bits []uint64
	last uint64 // the highest
}

// maxPosition bounds the memory that a damaged position can take.
const maxPosition = 1 << 33

// add adds a position and reports whether it is new.
func (p *positions) add(pos uint64) bool {
	if pos > maxPosition {
		return true
	}
	for word := pos / 64; word >= uint64(len(p.bits)); {
		p.bits = append(p.bits, make([]uint64, 1+len(p.bits)/4)...)
	}
	if p.bits[pos/64]&(1<<(pos%64)) != 0 {
		return false
	}
	p.bits[pos/64] |= 1 << (pos % 64)
	p.last = max(p.last, pos)
	return true
}

// reportGaps reports what isn't there of 1 to end.
func (p *positions) reportGaps(end uint64, report func(from, to uint64)) {
	from := uint64(0)
	for pos := uint64(1); pos <= min(end, p.last); pos++ {
		there := p.bits[pos/64]&(1<<(pos%64)) != 0
		switch {
		case there && from > 0:
			report(from, pos-1)
			from = 0
		case !there && from == 0:
			from = pos
		}
	}
	if from == 0 && end > p.last {
		from = p.last + 1
	}
	if from > 0 {
		report(from, end)
	}
}
