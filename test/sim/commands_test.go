//go:build linux

package sim_test

import (
	"strconv"

	"code.wake.dev/wake/test/oracle"
)

// commandName is the program of exec nodes, which prints what an agent of its node would say. Its argument says whether
// it may run again.
const commandName = "command"

// playCommand plays the program of an exec node.
func (p *program) playCommand() (code int) {
	again, err := strconv.ParseBool(p.Argv[1])
	if err != nil {
		return 2
	}
	l := p.Label()
	p.Run, p.Node, p.Exec, p.fenced = l.Run, l.Node, l.Exec, true
	p.script = p.w.script(p.Node, p.Exec)
	if !p.Do(func() {
		p.acts()
		p.w.ledger.Ran(oracle.Command{Run: p.Run, Node: p.Node, Exec: p.Exec, Idempotent: again})
	}) {
		return 1
	}
	for _, step := range p.script.steps {
		if !p.wait(step.takes) || !p.print(step.text) {
			return 1
		}
	}
	switch p.script.ending {
	case fails, breaks:
		return 3
	case hangs:
		<-p.Done()
	case answers, ends:
	}
	return 0
}

// print prints a line, which the log is to show.
func (p *program) print(text string) bool {
	mark := p.mark()
	p.lines++
	said := p.Do(func() {
		p.acts()
		p.w.said.Add(1)
		p.w.ledger.Said(oracle.Saying{Run: p.Run, Exec: p.Exec, Agent: p.ID, Mark: mark})
	})
	return said && p.Say([]byte(mark+text+"\n"))
}
