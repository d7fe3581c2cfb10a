package archive_test

import (
	"testing"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder/archive"
)

// What was recorded as bad stays so when it is derived again, though its bytes may be read.
func TestEntryOfBad(t *testing.T) {
	data, err := wire.Encode(&wire.Event{RunID: "r1", NodeID: "coder", Seq: 1, Epoch: 1, Timestamp: 1, Payload: &wire.AgentText{Content: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	s := archive.Event{Pos: 7, Mark: archive.Bad, Note: "it ended its process", Data: data}
	if e := s.Entry(); e.Err == nil || e.Err.Error() != s.Note || e.Event != nil || e.Pos != 7 {
		t.Errorf("of a bad one: %+v", e)
	}
	s.Mark = ""
	if e := s.Entry(); e.Err != nil || e.Event == nil || e.NodeID != "coder" || e.RunID != "r1" {
		t.Errorf("of a good one: %+v", e)
	}
}
