package verify

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"code.wake.dev/wake/services/recorder/archive"
	"code.wake.dev/wake/services/recorder/internal/request"
)

// Anchor says which link of its hash chain each run had at a time, signed. Kept elsewhere, it shows that
// events were changed and their chain computed anew: only the key's holder can make another anchor.
type Anchor struct {
	V           int          `json:"v"`
	At          time.Time    `json:"at"`
	Incarnation string       `json:"incarnation"` // of the stream
	Position    uint64       `json:"position"`    // up to here everything was recorded
	Runs        []AnchorLink `json:"runs"`
	PublicKey   string       `json:"publicKey"` // of Ed25519, in hex
	Signature   string       `json:"signature"` // of all other fields, see [Anchor.body]
}

// AnchorLink is the last link of a run's chain.
type AnchorLink struct {
	Run      string `json:"run"`
	Events   int64  `json:"events"`
	Position uint64 `json:"position"` // of the last of them
	Head     string `json:"head"`     // SHA-256 in hex
}

// errAnchor says that an anchor is none that the key has signed.
var errAnchor = errors.New("recorder: the anchor isn't as it was signed")

// signedBody is what is signed: the anchor without its signature, in Go's compact JSON.
func (a Anchor) signedBody() ([]byte, error) {
	a.Signature = ""
	b, err := json.Marshal(a)
	return append([]byte("wake anchor\n"), b...), err
}

// MakeAnchor signs the heads of the chains of a run, or of all if run is empty.
func (c *Checker) MakeAnchor(ctx context.Context, run string, key ed25519.PrivateKey, now time.Time) (Anchor, error) {
	public, _ := key.Public().(ed25519.PublicKey)
	a := Anchor{V: 1, At: now.UTC().Truncate(time.Second), Runs: []AnchorLink{}, PublicKey: hex.EncodeToString(public)}
	body, err := archive.Ask(ctx, c.answers.Archive, func(t *archive.Tx) ([]byte, error) {
		if err := a.readHeads(ctx, t, run); err != nil {
			return nil, err
		}
		return a.signedBody()
	})
	if err != nil {
		return a, request.Wrap("anchor", err)
	}
	a.Signature = hex.EncodeToString(ed25519.Sign(key, body))
	return a, nil
}

// readHeads reads the last links of the chains.
func (a *Anchor) readHeads(ctx context.Context, t *archive.Tx, run string) error {
	at, _, err := t.Reached(ctx)
	if err != nil {
		return err
	}
	a.Incarnation, a.Position = at.Incarnation, at.Seq
	if run != "" {
		found, err := request.Resolve(ctx, t, run, "", "")
		if err != nil {
			return err
		}
		run = found.Run
	}
	text := `SELECT run, events, last_pos, head FROM runs WHERE run NOT IN (SELECT run FROM retired) ORDER BY first_pos`
	var l AnchorLink
	var head []byte
	for err := range t.Each(ctx, text, nil, &l.Run, &l.Events, &l.Position, &head) {
		if err != nil {
			return err
		}
		if l.Head = hex.EncodeToString(head); run == "" || l.Run == run {
			a.Runs = append(a.Runs, l)
		}
	}
	return nil
}

// Check fails unless the anchor is signed by the key. It needs no store.
func (a Anchor) Check(key ed25519.PublicKey) error {
	body, err := a.signedBody()
	if err != nil {
		return err
	}
	signature, err := hex.DecodeString(a.Signature)
	if err != nil || a.V != 1 || a.PublicKey != hex.EncodeToString(key) || !ed25519.Verify(key, body, signature) {
		return errAnchor
	}
	return nil
}

// VerifyAnchored is [Checker.Verify], and requires besides that each run that the anchor names has the
// events that it had then. Runs that were deleted since have none.
func (c *Checker) VerifyAnchored(ctx context.Context, run string, a Anchor) (Verification, error) {
	v := c.newVerifier()
	v.anchors = map[string]AnchorLink{}
	for _, l := range a.Runs {
		v.anchors[l.Run] = l
	}
	err := v.checkStore(ctx, run)
	if err == nil && a.Incarnation != v.Position.Incarnation {
		v.addDamage(Damage{Problem: fmt.Sprintf("the store is of another stream than the anchor, which is of %q", a.Incarnation)})
	}
	if err == nil && run != "" {
		run, err = c.answers.Find(ctx, run)
	}
	if err != nil {
		return Verification{}, request.Wrap("verify", err)
	}
	for _, l := range a.Runs {
		if _, open := v.anchors[l.Run]; open && !v.gone[l.Run] && (run == "" || l.Run == run) {
			v.addDamage(Damage{Run: l.Run, From: l.Position, Problem: "the anchor has an event here, the store doesn't"})
		}
	}
	return v.Verification, nil
}

// checkAnchor compares the link after an event with that of the anchor.
func (v *verifier) checkAnchor(r *runCheck, s *archive.Event, at Damage) {
	l, ok := v.anchors[r.RunID]
	if !ok || l.Position != s.Pos {
		return
	}
	delete(v.anchors, r.RunID)
	v.Anchored++
	if l.Head != hex.EncodeToString(r.link[:]) {
		at.Problem = "the chain up to here isn't the one that was anchored: events were changed, and their chain was computed anew"
		v.addDamage(at)
	}
}
