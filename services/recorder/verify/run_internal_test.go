package verify

import (
	"testing"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
)

// A forged loss of more events than there can be doesn't keep the check from its end.
func TestLossOfTooMany(t *testing.T) {
	t.Parallel()
	const far = 1 << 62
	e := &wire.Event{RunID: "r", NodeID: wire.RunNode, Seq: 1, Epoch: 1, Timestamp: 1, Payload: &wire.LogTruncated{AtSeq: 1, Reason: "lost", Lost: far}}
	data, err := wire.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	v := &verifier{seen: new(positions)}
	v.markPosition(&archive.Event{Pos: 2 * far, Mark: archive.Recorder, Data: data}, Damage{})
	if v.lost != far || v.seen.last != 0 {
		t.Errorf("%d are lost, the last position that counts is %d; damages %v", v.lost, v.seen.last, v.Damages)
	}
}
