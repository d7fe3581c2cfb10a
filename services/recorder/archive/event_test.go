package archive_test

import (
	"errors"
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

// A segment of a codec that this program doesn't know isn't read as one that it knows, and one that was cut off isn't whole.
func TestSegmentsOfOthers(t *testing.T) {
	z, err := archive.NewCodec()
	if err != nil {
		t.Fatal(err)
	}
	packed := z.Pack([]archive.Event{{Pos: 1, Time: 1, Data: []byte("one")}, {Pos: 2, Time: 1, Data: []byte("two")}})
	if list, err := z.Unpack(nil, archive.Columns, packed); err != nil || len(list) != 2 || string(list[1].Data) != "two" {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := z.Unpack(nil, archive.Columns+1, packed); !errors.Is(err, archive.ErrSegment) {
		t.Errorf("of another codec: %v", err)
	}
	if _, err := z.Unpack(nil, archive.Columns, packed[:len(packed)/2]); !errors.Is(err, archive.ErrSegment) {
		t.Errorf("of a half: %v", err)
	}
}
