package hook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// hookQuestion is what a hook is asked, as JSON; see schemas/hook.schema.json.
type hookQuestion struct {
	Event     string   `json:"event"`
	RunID     string   `json:"runId"`
	NodeID    string   `json:"nodeId"`
	ExecID    string   `json:"execId"`
	Cwd       string   `json:"cwd"`
	AgentID   string   `json:"agentId,omitempty"`
	Turn      int      `json:"turn,omitempty"`
	Resumed   bool     `json:"resumed,omitempty"`
	Task      string   `json:"task,omitempty"`
	ToolName  string   `json:"toolName,omitempty"`
	ToolUseID string   `json:"toolUseId,omitempty"`
	ToolInput wire.Raw `json:"toolInput,omitempty"`
	Result    wire.Raw `json:"result,omitempty"`
	Error     string   `json:"error,omitempty"`
}

// encodeQuestion returns the question about an event: one line.
func (s *Set) encodeQuestion(e Event) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(hookQuestion{
		Event: e.Name, RunID: s.cfg.RunID, NodeID: s.cfg.NodeID, ExecID: s.cfg.ExecID, Cwd: s.cfg.Dir,
		AgentID: e.AgentID, Turn: e.Turn, Resumed: e.Resumed, Task: e.Task,
		ToolName: e.Tool, ToolUseID: e.ToolUseID, ToolInput: e.Input, Result: e.Result, Error: e.Error,
	})
	return b.Bytes(), err
}

// answer is what a hook says.
type answer struct {
	Decision Decision        `json:"decision"`
	Reason   string          `json:"reason"`
	Message  string          `json:"message"`
	Input    json.RawMessage `json:"input"`
}

// parseAnswer reads the answer to a question about an event. An empty one goes on. One that
// isn't understood whole is an error: half a refusal must not look like none.
func parseAnswer(event string, text []byte) (Outcome, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return Outcome{}, nil
	}
	var a answer
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return Outcome{}, fmt.Errorf("its answer: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Outcome{}, errors.New("its answer is more than one JSON object")
	}
	if a.Decision == "continue" {
		a.Decision = Continue
	}
	if allowed := decisionsOf(event); !slices.Contains(allowed, a.Decision) {
		return Outcome{}, fmt.Errorf("its decision is %q, which is none for %s: it is one of %scontinue", a.Decision, event, joinDecisions(allowed))
	}
	return a.toOutcome()
}

func joinDecisions(list []Decision) string {
	var b strings.Builder
	for _, d := range list {
		if d != Continue {
			b.WriteString(string(d) + ", ")
		}
	}
	return b.String()
}

// toOutcome checks that the answer has what its decision needs and nothing else.
func (a answer) toOutcome() (Outcome, error) {
	o := Outcome{Decision: a.Decision, Reason: cleanText(a.Reason), Message: cleanText(a.Message)}
	told := a.Decision == System || a.Decision == Context
	switch {
	case told && strings.TrimSpace(a.Message) == "":
		return Outcome{}, fmt.Errorf("its decision is %q, which wants a message", a.Decision)
	case len(o.Message) > maxMessage, len(o.Reason) > maxMessage:
		return Outcome{}, fmt.Errorf("its message or reason is longer than %d bytes", maxMessage)
	case !told && a.Message != "":
		return Outcome{}, fmt.Errorf("it has a message, which only %q and %q have", System, Context)
	case a.Decision != Modify && a.Input != nil:
		return Outcome{}, fmt.Errorf("it has an input, which only %q has", Modify)
	case a.Decision != Modify:
		return o, nil
	}
	input, err := wire.RawFromJSON(a.Input)
	if err != nil {
		return Outcome{}, fmt.Errorf("the input it wants: %w", err)
	}
	if _, ok := input.Any().(map[string]any); !ok {
		return Outcome{}, errors.New("the input it wants is no object")
	}
	o.Input = input
	return o, nil
}

// maxMessage bounds what a hook has for the model, in bytes.
const maxMessage = 32 << 10

// cleanText makes a text one that is valid everywhere: on the log and on a command line.
func cleanText(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// exitDeny is the exit code by which a command refuses a call without JSON: what it
// says on stderr is the reason.
const exitDeny = 2

// refusalOutcome is the answer of a command that has ended with an exit code other than 0.
func refusalOutcome(event string, code int64, words string) (Outcome, error) {
	words = strings.TrimSpace(words)
	if event == flow.HookPreToolUse && code == exitDeny {
		return Outcome{Decision: Deny, Reason: cleanText(cutText(words, maxOutput))}, nil
	}
	if words == "" {
		return Outcome{}, fmt.Errorf("exit code %d", code)
	}
	return Outcome{}, fmt.Errorf("exit code %d: %s", code, cutText(words, maxOutput))
}
