package recorder

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"wake/pkg/wire"
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
	Deleted  int           `json:"deleted,omitempty"`  // runs whose events were removed, or are being removed
	Compared int64         `json:"compared,omitempty"` // with what the stream still has
	Damages  []Damage      `json:"damages"`            // none: all is as it was recorded
	Omitted  int           `json:"omitted,omitempty"`
}

// maxDamages bounds the list of damages.
const maxDamages = 1000

// Verify checks the events of a run, or of all if run is empty, and whatever is
// derived from them: the database itself and its schema, the hash chains, positions
// and numbers of the events, and all rows that recording them again would make
// otherwise. It sees the store as of one moment. It fails only if it couldn't
// check; what is damaged is in the answer.
func (s *Store) Verify(ctx context.Context, run string) (Verification, error) {
	v := &verifier{s: s, Verification: Verification{Damages: []Damage{}}}
	if err := v.verify(ctx, run); err != nil {
		return Verification{}, wrap("verify", err)
	}
	return v.Verification, nil
}

// verifier is a check under way.
type verifier struct {
	Verification
	s       *Store
	t       *tx
	fields  *tx // for large fields, while rows are read in t
	scratch *Store
	chain   chain
	seen    *positions      // of all runs; nil: only one run is checked
	gone    map[string]bool // runs whose events were removed
	bad     int64
	lost    int64
}

func (v *verifier) damage(d Damage) {
	if len(v.Damages) == maxDamages {
		v.Omitted++
		return
	}
	v.Damages = append(v.Damages, d)
}

// failed takes an error of the database as damage, unless the check was ended.
func (v *verifier) failed(ctx context.Context, d Damage, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.Problem = err.Error()
	v.damage(d)
	return nil
}

func (v *verifier) verify(ctx context.Context, run string) (err error) {
	if v.t, err = v.s.view(ctx); err != nil {
		return err
	}
	defer v.t.Rollback() //nolint:errcheck // nothing was written
	if v.fields, err = v.s.view(ctx); err != nil {
		return err
	}
	defer v.fields.Rollback() //nolint:errcheck // nothing was written
	if err := v.integrity(ctx); err != nil {
		return err
	}
	v.Position, v.Derived, err = v.t.reached(ctx)
	if err := v.failed(ctx, Damage{Table: "streams"}, err); err != nil {
		return err
	}
	if v.gone, err = retiredRuns(ctx, v.t); err != nil {
		return err
	}
	v.Deleted = len(v.gone)
	where, args := " WHERE run NOT IN (SELECT run FROM retired)", params{}
	if run != "" {
		found, err := resolve(ctx, v.t, run, "", "")
		if err != nil {
			return err
		}
		where, v.Deleted = " WHERE id = "+args.add(found.id), 0
	} else {
		v.seen = new(positions)
	}
	dir, err := os.MkdirTemp("", "wake-verify-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a folder for temporary files
	if v.scratch, err = openScratch(ctx, dir); err != nil {
		return err
	}
	err = v.schema(ctx)
	if err == nil {
		err = v.runs(ctx, where, args)
	}
	if err == nil && run == "" {
		err = v.whole(ctx)
	}
	if err == nil && run == "" {
		err = v.words(ctx, dir)
	}
	return errors.Join(err, v.scratch.close())
}

// schema compares what the database enforces and shows with what a new store has. To
// have more tables, indexes and views is no damage, but a trigger may do anything.
func (v *verifier) schema(ctx context.Context) error {
	if v.s.path == "" {
		return nil // PostgreSQL, which has a schema of its own
	}
	begun, err := v.scratch.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer begun.Rollback() //nolint:errcheck // nothing was written
	want, err := objects(ctx, &tx{begun, v.scratch.d, v.scratch.zip})
	if err != nil {
		return err
	}
	got, err := objects(ctx, v.t)
	if err != nil {
		return v.failed(ctx, Damage{Table: "sqlite_schema"}, err)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if found, ok := got[name]; !ok {
			v.damage(Damage{Table: "sqlite_schema", Row: name, Problem: "it isn't there"})
		} else if found != want[name] {
			v.damage(Damage{Table: "sqlite_schema", Row: name, Problem: "it is another one"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok && strings.HasPrefix(name, "trigger ") {
			v.damage(Damage{Table: "sqlite_schema", Row: name, Problem: "it isn't the recorder's"})
		}
	}
	return nil
}

// objects are the definitions of what is in a database file, by kind and name.
func objects(ctx context.Context, t *tx) (map[string]string, error) {
	defined := map[string]string{}
	for rows, err := range t.query(ctx, `SELECT type || ' ' || name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT GLOB 'sqlite_*'`) {
		var name, text string
		if err == nil {
			err = rows.Scan(&name, &text)
		}
		if err != nil {
			return nil, err
		}
		defined[name] = text
	}
	return defined, nil
}

// integrity asks the database whether it is sound.
func (v *verifier) integrity(ctx context.Context) error {
	if v.t.d.integrity == "" {
		return nil
	}
	for rows, err := range v.t.query(ctx, v.t.d.integrity) {
		var problem string
		if err == nil {
			err = rows.Scan(&problem)
		}
		if err != nil {
			return v.failed(ctx, Damage{}, err)
		}
		if problem != "ok" {
			v.damage(Damage{Problem: "the database is damaged: " + problem})
		}
	}
	return nil
}

// runs checks one run after the other.
func (v *verifier) runs(ctx context.Context, where string, args params) error {
	var list []*runCheck
	all := v.t.query(ctx, `SELECT id, run, events, head, segments, tail_events, tail_bytes, gaps FROM runs`+where+` ORDER BY first_pos`, args...)
	for rows, err := range all {
		r := new(runCheck)
		if err == nil {
			err = rows.Scan(&r.id, &r.run, &r.events, &r.head, &r.segments, &r.tailEvents, &r.tailBytes, &r.gaps)
		}
		if err != nil {
			return v.failed(ctx, Damage{Table: "runs"}, err)
		}
		list = append(list, r)
	}
	for _, r := range list {
		if err := v.run(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// whole checks what isn't of a single run.
func (v *verifier) whole(ctx context.Context) error {
	var partial bool
	var retired, bad, lost int64
	err := v.t.row(ctx, `SELECT EXISTS (SELECT 1 FROM retired WHERE run = ?1), (SELECT coalesce(sum(events), 0) FROM retired),
		(SELECT coalesce(sum(bad), 0) FROM streams), (SELECT coalesce(sum(lost), 0) FROM streams)`, otherRuns).Scan(&partial, &retired, &bad, &lost)
	if err := v.failed(ctx, Damage{Table: "streams"}, err); err != nil {
		return err
	}
	if !partial {
		v.missing(retired)
		if bad != v.bad {
			v.damage(Damage{Table: "streams", Column: "bad", Problem: fmt.Sprintf("it is %d, there are %d", bad, v.bad)})
		}
		if lost != v.lost {
			v.damage(Damage{Table: "streams", Column: "lost", Problem: fmt.Sprintf("it is %d, the events say %d", lost, v.lost)})
		}
	}
	if v.seen.last > v.Position.Seq {
		v.damage(Damage{Table: "streams", Column: "position", From: v.seen.last, Problem: fmt.Sprintf("it is %d, there are events beyond it", v.Position.Seq)})
	}
	if v.Derived > v.Position.Seq {
		v.damage(Damage{Table: "streams", Column: "derived", From: v.Derived, Problem: fmt.Sprintf("it is beyond the position, %d", v.Position.Seq)})
	}
	for _, table := range []string{"segments", "tail", "nodes", "labels", "bindings", "lines", "folds", "keyframes", "tool_calls", "spend", "usage_seen", "chat_messages", "chat_errors", "chat_checkpoints"} {
		var strays int64
		err := v.t.row(ctx, `SELECT count(*) FROM `+table+` WHERE run NOT IN (SELECT id FROM runs)`).Scan(&strays)
		if err := v.failed(ctx, Damage{Table: table}, err); err != nil {
			return err
		}
		if strays > 0 {
			v.damage(Damage{Table: table, Problem: fmt.Sprintf("rows of runs that table runs doesn't have: %d", strays)})
		}
	}
	if err := v.alerts(ctx); err != nil {
		return err
	}
	return v.blobs(ctx)
}

// missing checks that exactly those positions have no event whose events were
// removed.
func (v *verifier) missing(retired int64) {
	var gaps []Damage
	n := int64(0)
	v.seen.missing(v.Position.Seq, func(from, to uint64) {
		n += int64(to - from + 1)
		gaps = append(gaps, Damage{From: from, To: to, Problem: "the store says that everything is recorded, but there is nothing"})
	})
	switch {
	case n == retired:
	case retired == 0:
		for _, d := range gaps {
			v.damage(d)
		}
	default:
		v.damage(Damage{Table: "retired", Column: "events", Problem: fmt.Sprintf("the runs that were deleted had %d events, but %d are missing", retired, n)})
	}
}

// retiredRuns returns the runs whose events were removed, or are being removed.
func retiredRuns(ctx context.Context, t *tx) (map[string]bool, error) {
	gone := map[string]bool{}
	for rows, err := range t.query(ctx, `SELECT run FROM retired WHERE run <> ?1`, otherRuns) {
		var run string
		if err == nil {
			err = rows.Scan(&run)
		}
		if err != nil {
			return nil, err
		}
		gone[run] = true
	}
	return gone, nil
}

// blobs checks that large fields are what they are called.
func (v *verifier) blobs(ctx context.Context) error {
	for rows, err := range v.t.query(ctx, `SELECT sha256, size, data FROM blobs ORDER BY sha256`) {
		var name string
		var size int64
		var data sql.RawBytes
		if err == nil {
			err = rows.Scan(&name, &size, &data)
		}
		if err != nil {
			return v.failed(ctx, Damage{Table: "blobs"}, err)
		}
		if data == nil {
			continue
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != name {
			v.damage(Damage{Table: "blobs", Row: name, Column: "data", Problem: "the content has another hash"})
		} else if size != int64(len(data)) {
			v.damage(Damage{Table: "blobs", Row: name, Column: "size", Problem: fmt.Sprintf("it is %d, there are %d bytes", size, len(data))})
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

// missing reports what isn't there of 1 to end.
func (p *positions) missing(end uint64, report func(from, to uint64)) {
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
