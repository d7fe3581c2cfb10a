package work

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/shell"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// auditTimeout bounds an audit that names no time limit of its own.
const auditTimeout = 10 * time.Minute

// runAudits runs the audits of a node once its execution is complete, and puts them on
// record before its end is: the next worker finds the execution
// open, and audits what comes of it. An audit that fails doesn't fail the node.
// What an audit that the end of the execution's time cut short has found counts as
// failed.
func (x *execution) runAudits(ctx context.Context, events []*wire.Event, err error) ([]*wire.Event, error) {
	if err != nil || len(x.node.Audits) == 0 || !slices.ContainsFunc(events, isCompletion) {
		return events, err
	}
	for _, a := range x.node.Audits {
		if ctx.Err() == nil {
			if err := x.log.mayBegin(ctx); err != nil && ctx.Err() == nil {
				return nil, err
			}
		}
		p := x.runAudit(ctx, a)
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errTimeLimit) {
			return nil, cause // it has no end either
		}
		e := &wire.Event{Payload: p}
		if x.node.Type == flow.TypeAgent && !a.Run {
			e.AgentID = x.offer.NodeID
		}
		if err := x.log.recordEvents(context.WithoutCancel(ctx), e); err != nil {
			return nil, err
		}
	}
	return events, nil
}

func isCompletion(e *wire.Event) bool {
	_, ok := e.Payload.(*wire.NodeComplete)
	return ok
}

// runAudit runs the command of an audit in the folder of its node.
func (x *execution) runAudit(ctx context.Context, a flow.Audit) *wire.AuditCheckpoint {
	var in struct {
		Cwd string            `json:"cwd"`
		Env map[string]string `json:"env"`
	}
	p := &wire.AuditCheckpoint{CheckpointID: a.ID, Result: wire.AuditFail, Command: a.Command}
	if ctx.Err() != nil {
		p.Evidence = evidenceOf(map[string]any{"error": "not begun: " + errTimeLimit.Error()})
		return p
	}
	if err := wire.Unmarshal(x.entry.Input, &in); err != nil && x.entry.Input != nil {
		p.Evidence = evidenceOf(map[string]any{"error": err.Error()})
		return p
	}
	env, err := x.withSecrets(in.Env, x.node.Input.Get("env"))
	if err != nil {
		p.Evidence = evidenceOf(map[string]any{"error": "env: " + err.Error()})
		return p
	}
	c := shell.Command{
		Host: x.processHost(), ExecID: x.offer.ExecID, Command: a.Command, Cwd: x.resolveDir(in.Cwd), Env: agent.Environment(os.Environ(), env),
		Timeout: cmp.Or(time.Duration(a.TimeoutMs)*time.Millisecond, auditTimeout),
	}
	var outcome shell.Outcome
	begin := time.Now()
	for e, err := range c.Run(ctx) {
		if err != nil {
			p.Evidence = evidenceOf(map[string]any{"error": err.Error()})
			return p
		}
		outcome.Observe(e)
	}
	p.DurationMs = time.Since(begin).Milliseconds()
	output, err := outcome.Output()
	if err != nil {
		p.Evidence = evidenceOf(map[string]any{"error": err.Error()})
		return p
	}
	problem := outcome.Problem()
	if problem == "" {
		p.Result = wire.AuditPass
	}
	p.Evidence = commandEvidence(output, problem)
	return p
}

// auditTail is how much of the output of an audit that failed without a word of JSON
// is evidence, in bytes.
const auditTail = 4096

// commandEvidence is what a command has shown: the JSON that it printed, an object as it
// is; else, if it failed, why and the end of what it printed.
func commandEvidence(output wire.Raw, problem string) wire.Raw {
	stdout := output.TextAt("stdout")
	truncated, _ := output.Get("stdoutTruncated").Any().(bool)
	if text := bytes.TrimSpace([]byte(stdout)); len(text) > 0 && !truncated {
		if v, err := wire.RawFromJSON(text); err == nil {
			if v.IsMap() {
				return v
			}
			return evidenceOf(map[string]any{"value": v})
		}
	}
	if problem == "" {
		return nil
	}
	stderr := output.TextAt("stderr")
	return evidenceOf(map[string]any{"error": problem, "output": textEnd(cmp.Or(stderr, stdout), auditTail)})
}

// textEnd returns the end of a text, whole characters only.
func textEnd(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	s = s[len(s)-limit:]
	for len(s) > 0 && s[0]&0xc0 == 0x80 {
		s = s[1:]
	}
	return s
}

func evidenceOf(fields map[string]any) wire.Raw {
	raw, err := wire.Marshal(fields)
	if err != nil {
		return nil
	}
	return raw
}
