package view

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	"github.com/klauspost/compress/s2"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// packed is a state as its bytes, which take a tenth of the room and are compressed. Views of a run share it.
type packed struct {
	position   wire.Position
	bytes      []byte   // without the definition
	definition wire.Raw // which all runs of a flow share
}

// PackAfter is for how long nothing has happened in a run when those that wait pack its state.
const PackAfter = 2 * time.Second

// Pack keeps the state as its bytes until it is asked for. What [View.State] returned before must not be used any more.
func (v *View) Pack() {
	if v.state == nil {
		return
	}
	p := v.sub.packedAt(v.state.Position)
	if p == nil {
		v.runs.shareDefinition(v.state)
		if p = packState(v.state); p == nil {
			return
		}
	}
	v.sub.sharePacked(p)
	v.state, v.packed = nil, p
}

// shareDefinition replaces the definition of a state by that of the others of its flow.
func (r *Runs) shareDefinition(s *wire.State) {
	if len(s.Definition) == 0 {
		return
	}
	if d, err := r.flows.Read(s.Definition); err == nil && bytes.Equal(d.Raw(), s.Definition) {
		s.Definition = d.Raw()
	}
}

// packState packs a state, which it leaves as it is; nil if it can't be read again.
func packState(s *wire.State) *packed {
	bare := *s
	bare.Definition = nil
	b, err := wire.Marshal(&bare)
	if err != nil {
		return nil
	}
	p := &packed{position: s.Position, bytes: bytes.Clone(usualTexts().Encode(nil, b)), definition: s.Definition}
	if _, err := p.unpackState(); err != nil {
		return nil
	}
	return p
}

func (p *packed) unpackState() (*wire.State, error) {
	b, err := usualTexts().Decode(nil, p.bytes)
	if err != nil {
		return nil, fmt.Errorf("view: unpack a state: %w", err)
	}
	s, err := run.Decode(b)
	if err != nil {
		return nil, err
	}
	s.Definition = p.definition
	return s, nil
}

// usualTexts are what states have in common: the names of their fields, above all.
var usualTexts = sync.OnceValue(func() *s2.Dict { // made once, and not changed
	s := run.New("run")
	s.Status, s.StartedAt, s.UpdatedAt, s.EventCount, s.ForkPoints = wire.RunRunning, 1, 1, 1, 1
	s.FlowName, s.DefinitionHash, s.Workspace, s.Folder = "flow", "0", "/workspaces/", &wire.FolderSnapshot{}
	s.Nodes[wire.RunNode] = wire.NodeState{Epoch: 1, Seq: 1, Runner: "runner", Holder: "process"}
	s.Nodes["node"] = wire.NodeState{
		Epoch: 1, Seq: 1, Runner: "runner", Holder: "process", Process: "process", Trials: 1, Exec: "node#1", Execs: 1, Type: string(flow.TypeAgent),
		Attempt: 1, Pool: "at-runner", Scheduled: 1, Started: 1, StartedAt: 1, Session: "session", Breakpoint: "READY", Input: wire.RawString("prompt"),
	}
	s.NodeStatus["node"], s.AgentSessions["node"], s.ExecSessions["node#1"] = wire.NodeRunning, "session", "session"
	b, err := wire.Marshal(s)
	if err != nil {
		panic(err) // it has no values of others
	}
	return s2.MakeDict(b, nil)
})
