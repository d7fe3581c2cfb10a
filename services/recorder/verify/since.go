package verify

import (
	"context"
	"encoding/hex"
	"fmt"

	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// Heads are the ends of the hash chains of runs that were found to be as they were recorded, derived rows included.
type Heads struct {
	Incarnation string `json:"incarnation"` // of the stream
	Runs        []Head `json:"runs"`
}

// Head is the end of a run's chain.
type Head struct {
	AnchorLink

	Derivation int64 `json:"derivation"` // the version that has derived the run's rows
}

// VerifySince is [Checker.Verify] of all runs but those in which nothing has happened since heads were returned: these
// aren't read, and what is of no single run is left out. It returns the heads to go on from; if something is damaged, they lack it.
func (c *Checker) VerifySince(ctx context.Context, known Heads) (Verification, Heads, error) {
	v := c.newVerifier()
	v.known = map[string]Head{}
	for _, h := range known.Runs {
		v.known[h.Run] = h
	}
	v.incremental = len(known.Runs) > 0
	v.knownOf = known.Incarnation
	if err := v.checkStore(ctx, ""); err != nil {
		return Verification{}, Heads{}, request.Wrap("verify", err)
	}
	return v.Verification, Heads{v.Position.Incarnation, v.heads}, nil
}

// isKnown reports whether nothing has happened in a run since it was checked.
func (v *verifier) isKnown(r *runCheck) bool {
	h, ok := v.known[r.RunID]
	return ok && v.knownOf == v.Position.Incarnation && h == headOf(r)
}

// headOf is what a run says of itself.
func headOf(r *runCheck) Head {
	return Head{AnchorLink{r.RunID, r.Events, r.LastPos, hex.EncodeToString(r.Head)}, r.Derivation}
}

// checkCount checks that as many events are missing as were removed. Where some were lost, the positions tell, which are of a whole check.
func (v *verifier) checkCount(ctx context.Context) error {
	var events, lost, retired uint64
	var partial bool
	err := v.t.Row(ctx, `SELECT (SELECT coalesce(sum(events), 0) FROM runs WHERE run NOT IN (SELECT run FROM retired)), (SELECT coalesce(sum(lost), 0) FROM streams),
		(SELECT coalesce(sum(events), 0) FROM retired), EXISTS (SELECT 1 FROM retired WHERE run = ?1)`, archive.OtherRuns).Scan(&events, &lost, &retired, &partial)
	if err := v.noteFailure(ctx, Damage{Table: "streams"}, err); err != nil || partial || lost > 0 {
		return err
	}
	if events+retired != v.Position.Seq {
		v.addDamage(Damage{Table: "runs", Column: "events", Problem: fmt.Sprintf("runs have %d events, deleted ones had %d, but %d are recorded", events, retired, v.Position.Seq)})
	}
	return nil
}
