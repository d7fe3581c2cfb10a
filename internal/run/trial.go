package run

import "code.wake.dev/wake/pkg/wire"

// countTrials counts the processes in a row that have claimed the open execution of a node, and had nothing to show for
// it: a node that ends whatever executes it is known by that, on whichever machines it does. A claim of the process that
// has claimed it already begins nothing new, nor does one that names none: that is an anchor. It also notes whether the
// execution's command is known not to have begun.
func (f *fold) countTrials() {
	id := f.e.NodeID
	n := f.s.Nodes[id]
	if id == wire.RunNode || !n.Open() || f.e.ExecID != n.Exec {
		return
	}
	switch p := f.e.Payload.(type) {
	case *wire.NodeClaimed:
		if n.Unbegun = p.Unbegun || n.Unbegun && p.Process == ""; n.Unbegun != f.s.Nodes[id].Unbegun {
			f.s.Nodes[id] = n
		}
		if p.Process == "" || p.Process == n.Process {
			return
		}
		n.Process, n.Trials = p.Process, n.Trials+1
	default:
		if !getsOn(p) {
			return
		}
		n.Trials = 0
	}
	f.s.Nodes[id] = n
}

// getsOn reports whether an event shows that its process lived with an execution: something has come to its end in it.
// What only begins shows nothing, since that is done anew by each process that takes the execution over.
func getsOn(p wire.Payload) bool {
	switch p := p.(type) {
	case *wire.AgentTool:
		return p.Error != wire.CallInterrupted
	case *wire.NodeTried, *wire.TurnEnd, *wire.AgentPaused, *wire.PermissionDecided:
		return true
	}
	return false
}

// forgetTrials begins the counts of all nodes again.
func (f *fold) forgetTrials() {
	for id, n := range f.s.Nodes {
		if n.Trials > 0 {
			n.Process, n.Trials = "", 0
			f.s.Nodes[id] = n
		}
	}
}
