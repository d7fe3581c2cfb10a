package retention

import (
	"context"
	"time"

	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
	"code.wake.dev/wake/services/recorder/internal/table"
)

// What a run leaves on the server.
const (
	RunRemains     = "run"     // its state, its labelled points, its alerts, the snapshots of its folder
	SessionRemains = "session" // a kept session file
	FieldRemains   = "field"   // a large field, to which other runs may refer
)

// noteRemains notes what a run that is being removed may have left on the server, but large fields.
func noteRemains(ctx context.Context, t *archive.Tx, of request.Target, now time.Time) error {
	const text = `INSERT INTO remains (kind, name, run, at, dropped) `
	if _, err := t.Do(ctx, text+`SELECT ?1, run, run, ?2, 0 FROM (SELECT run FROM runs WHERE id = ?3) r`+again, RunRemains, now.UnixMilli(), of.ID); err != nil {
		return err
	}
	_, err := t.Do(ctx, text+`SELECT ?1, session, ?2, ?3, 0 FROM (SELECT DISTINCT session FROM bindings WHERE run = ?4 AND session <> '') s`+again, SessionRemains, of.Run, now.UnixMilli(), of.ID)
	return err
}

// noteFields notes some of the large fields of a run that is being removed. The stream's events may refer to them until it has dropped them, so
// they aren't looked for before.
func noteFields(ctx context.Context, t *archive.Tx, of request.Target, some string) error {
	_, err := t.Do(ctx, `INSERT INTO remains (kind, name, run, at, dropped)
		SELECT ?1, sha256, ?2, (SELECT at FROM retired WHERE run = ?2), 1 FROM (SELECT sha256 FROM blob_uses WHERE run = ?3`+some+`) uses`+again, FieldRemains, of.Run, of.ID)
	return err
}

// again has what was noted before noted anew: several runs may have had the same.
const again = ` WHERE true ON CONFLICT (kind, name) DO UPDATE SET run = excluded.run, at = excluded.at, dropped = excluded.dropped`

// Remains returns some of what removed runs may have left on the server: what hasn't been looked for yet and, of what has, that of runs which were
// removed before a time, the oldest first. What begins behind skip is left out.
func (d *Deleter) Remains(ctx context.Context, before time.Time, skip int) (some []table.Remains, err error) {
	return archive.Ask(ctx, d.kept, func(t *archive.Tx) (some []table.Remains, err error) {
		var r table.Remains
		for err := range t.Each(ctx, `SELECT kind, name, run, at, dropped FROM remains WHERE dropped = 0 OR at < ?1 ORDER BY at, kind, name LIMIT 256 OFFSET ?2`,
			[]any{before.UnixMilli(), skip}, &r.Kind, &r.Name, &r.Run, &r.At, &r.Dropped) {
			if err != nil {
				return nil, err
			}
			some = append(some, r)
		}
		return some, nil
	})
}

// IsUsed reports whether a run of the store has what a removed one has left.
func (d *Deleter) IsUsed(ctx context.Context, r table.Remains) (used bool, err error) {
	text := map[string]string{
		SessionRemains: `SELECT count(*) > 0 FROM bindings b JOIN runs r ON r.id = b.run WHERE b.session = ?1 AND r.run <> ?2`,
		FieldRemains:   `SELECT count(*) > 0 FROM blob_uses u JOIN runs r ON r.id = u.run WHERE u.sha256 = ?1 AND r.run <> ?2`,
	}[r.Kind]
	if text == "" {
		return false, nil
	}
	return archive.Ask(ctx, d.kept, func(t *archive.Tx) (used bool, err error) {
		err = t.Row(ctx, text, r.Name, r.Run).Scan(&used)
		return used, err
	})
}

// SetDropped notes that what a run may have left is gone, for now or for good.
func (d *Deleter) SetDropped(ctx context.Context, r table.Remains, forGood bool) error {
	text := `UPDATE remains SET dropped = 1 WHERE kind = ?1 AND name = ?2 AND at = ?3`
	if forGood {
		text = `DELETE FROM remains WHERE kind = ?1 AND name = ?2 AND at = ?3`
	}
	return d.kept.Change(ctx, func(t *archive.Tx) error {
		_, err := t.Do(ctx, text, r.Kind, r.Name, r.At)
		return err
	})
}
