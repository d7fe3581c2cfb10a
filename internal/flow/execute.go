package flow

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/internal/schema"
	"code.wake.dev/wake/pkg/wire"
)

// executeNode goes on with an open execution that is the owner's. What workers
// execute is theirs.
func (p *planner) executeNode(v *vertex, id string) {
	n := p.s.Nodes[id]
	switch v.Type {
	case TypeSet, TypeAsk, TypeSleep, TypeAt, TypeFlow:
	default:
		return
	}
	if n.Started < n.Scheduled {
		p.emit(n.Exec, &wire.NodeStart{
			Target: id, NodeType: string(v.Type), Attempt: n.Attempt, Iteration: n.Iteration,
		})
		return
	}
	if v.Type == TypeSet {
		p.executeSet(id, n)
		return
	}
	if v.Type == TypeAsk && p.executeAsk(id, n) {
		return
	}
	if _, isWait := waitFields[v.Type]; isWait && p.executeWait(v, id, n) {
		return
	}
	p.checkTimeout(v, id, n)
}

// checkTimeout ends an execution that waits for longer than its policy allows, pauses of the run left out.
func (p *planner) checkTimeout(v *vertex, id string, n wire.NodeState) {
	if v.Policy == nil || v.Policy.TimeoutMs == 0 {
		return
	}
	due := n.StartedAt + v.Policy.TimeoutMs + p.s.PausedMs - n.PausedBefore
	if p.now < due {
		p.wakeAt(due)
		return
	}
	p.emit(n.Exec, &wire.NodeError{
		Target: id, Error: fmt.Sprintf("timed out after %d ms", v.Policy.TimeoutMs), ErrorType: wire.ErrorTimeout,
		DurationMs: p.now - n.StartedAt,
	})
}

// executeSet changes the user's state: set and merge hold dotted paths and values. The
// output is what the node says, else what it has set.
func (p *planner) executeSet(id string, n wire.NodeState) {
	patches := patchesOf(n.Input)
	state := p.s.State
	for _, patch := range patches {
		var err error
		if state, err = run.Patch(state, patch); err != nil {
			p.emit(n.Exec, &wire.NodeError{Target: id, Error: err.Error(), ErrorType: "state"})
			return
		}
	}
	for _, patch := range patches {
		p.emit(n.Exec, &wire.StatePatch{Patch: patch})
	}
	output := n.Input.Get("output")
	if output == nil {
		output = firstRaw(n.Input.Get("set"), n.Input.Get("merge"), emptyObject)
	}
	p.emit(n.Exec, &wire.NodeComplete{Target: id, Output: output, DurationMs: p.now - n.StartedAt})
}

var emptyObject = wire.Raw{0x80}

func firstRaw(values ...wire.Raw) wire.Raw {
	for _, v := range values {
		if v != nil {
			return v
		}
	}
	return nil
}

// patchesOf are the changes of a set node: set before merge, by path.
func patchesOf(input wire.Raw) []wire.Patch {
	var out []wire.Patch
	for _, op := range []wire.PatchOp{wire.PatchSet, wire.PatchMerge} {
		var values map[string]wire.Raw
		if wire.Unmarshal(firstRaw(input.Get(string(op)), emptyObject), &values) != nil {
			continue
		}
		for path, value := range values {
			out = append(out, wire.Patch{Op: op, Path: path, Value: value})
		}
	}
	slices.SortStableFunc(out, func(a, b wire.Patch) int {
		if a.Op != b.Op {
			return strings.Compare(string(b.Op), string(a.Op))
		}
		return strings.Compare(a.Path, b.Path)
	})
	return out
}

// executeAsk asks a human, and completes the node with the answer. It reports whether
// there was something to do. An answer that isn't acceptable is asked for again.
func (p *planner) executeAsk(id string, n wire.NodeState) bool {
	if n.PromptID == "" && n.Answer == nil {
		if err := schema.Check(n.Input.Get("schema")); err != nil {
			p.emit(n.Exec, &wire.NodeError{Target: id, Error: "schema: " + err.Error(), ErrorType: wire.ErrorInput})
			return true
		}
		p.requestInput(id, n, nil)
		return true
	}
	if n.Answer != nil {
		answer, err := AcceptAnswer(n.Input, n.Answer)
		switch {
		case err == nil:
			p.emit(n.Exec, &wire.NodeComplete{
				Target: id, Output: wire.RawOf(map[string]any{"answer": answer}), DurationMs: p.now - n.StartedAt,
			})
			return true
		case n.PromptID == "":
			p.requestInput(id, n, err)
			return true
		}
	}
	for _, c := range p.s.Inbox {
		if prompt := c.Command.TextAt("promptId"); prompt == n.PromptID && textOf(c.Command, "type") == "reply" {
			p.emit(n.Exec, &wire.InputReceived{
				Target: id, PromptID: n.PromptID, Content: firstRaw(c.Command.Get("content"), c.Command.Get("message"), wire.Null), By: textOf(c.Command, "by"),
			})
			return true
		}
	}
	return false
}

// requestInput asks for input, again if there was an answer that isn't acceptable.
func (p *planner) requestInput(id string, n wire.NodeState, fault error) {
	prompt := textOf(n.Input, "prompt")
	if fault != nil {
		prompt = fmt.Sprintf("%s (The answer was %s.)", prompt, fault)
	}
	p.emit(n.Exec, &wire.InputRequested{
		Target: id, PromptID: fmt.Sprintf("p%d", p.s.PromptCount+1),
		Prompt: prompt, Choices: plainTexts(elementsOf(n.Input.Get("choices"))), Schema: n.Input.Get("schema"),
	})
}

// numberedChoice returns the index of the choice that has a number from 1; -1: there is none, or they are numbers themselves.
func numberedChoice(choices []wire.Raw, answer string) int {
	for _, c := range choices {
		if _, err := strconv.ParseFloat(c.Plain(), 64); err == nil {
			return -1
		}
	}
	if n, err := strconv.Atoi(answer); err == nil && n >= 1 && n <= len(choices) {
		return n - 1
	}
	return -1
}

// AcceptAnswer returns an answer to an ask node as the node takes it, or says why it doesn't: the choice with that text, or that number from 1, of the type
// that it has in the node's input, as the text 1 may be sent as a number; or what its schema asks for, for which a text may be
// sent as the value that it reads as, and a number, true or null as a text. With neither in the input, any answer will do as it is.
func AcceptAnswer(input, answer wire.Raw) (wire.Raw, error) {
	if choices := elementsOf(input.Get("choices")); len(choices) > 0 {
		i := slices.IndexFunc(choices, func(c wire.Raw) bool { return c.Plain() == answer.Plain() })
		if i < 0 {
			i = numberedChoice(choices, answer.Plain())
		}
		if i < 0 {
			return nil, fmt.Errorf("none of the choices (%s)", strings.Join(plainTexts(choices), ", "))
		}
		answer = choices[i]
	}
	rule := input.Get("schema")
	fault := schema.Validate(answer, rule)
	if fault == nil {
		return answer, nil
	}
	other := wire.RawString(answer.Plain())
	switch text, isText := answer.Text(); {
	case isText:
		var err error
		if other, err = wire.RawFromJSON([]byte(text)); err != nil {
			return nil, fault
		}
	case answer.IsMap() || len(answer.Items()) > 0: // nobody who gives one means its text
		return nil, fault
	}
	if schema.Validate(other, rule) != nil {
		return nil, fault
	}
	return other, nil
}

func plainTexts(values []wire.Raw) []string {
	var out []string
	for _, v := range values {
		out = append(out, v.Plain())
	}
	return out
}
func textOf(v wire.Raw, name string) string { return v.Get(name).Plain() }
