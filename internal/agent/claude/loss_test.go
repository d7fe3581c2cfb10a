package claude_test

import (
	"bytes"
	"fmt"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// lost lists what stands in the lines and not in the events: texts, thinking,
// tool calls with their input, tool results, usage by message and results. It
// reads the lines in its own way: by walking all JSON, wherever it is.
func lost(lines [][]byte, events []*wire.Event) (missing []string) {
	said := index(events)
	ids := make(map[string]bool)
	for i, line := range lines {
		m, err := wire.RawFromJSON(line)
		if err != nil {
			if text := string(bytes.TrimSpace(line)); text != "" && !said.has(text) {
				missing = append(missing, fmt.Sprintf("line %d: malformed text", i+1))
			}
			continue
		}
		l := lineCheck{said: said, ids: ids, no: i + 1, line: m}
		missing = append(missing, l.check()...)
	}
	return missing
}

// statements are the strings and values that events hold.
type statements struct {
	strings map[string]bool
	values  map[string]bool
	joined  map[string]string // by block: its pieces
	intents map[string]*wire.ToolIntent
	results map[string]*wire.AgentTool
	usage   map[string]bool
	ends    []*wire.TurnEnd
}

func (s *statements) has(text string) bool {
	if s.strings[text] {
		return true
	}
	for _, whole := range s.joined {
		if strings.Contains(whole, text) {
			return true
		}
	}
	for whole := range s.strings {
		if strings.Contains(whole, text) {
			return true
		}
	}
	return false
}

func index(events []*wire.Event) *statements {
	s := &statements{
		strings: make(map[string]bool), values: make(map[string]bool), joined: make(map[string]string),
		intents: make(map[string]*wire.ToolIntent), results: make(map[string]*wire.AgentTool), usage: make(map[string]bool),
	}
	for _, e := range events {
		s.add(e)
	}
	return s
}

func (s *statements) add(e *wire.Event) {
	switch p := e.Payload.(type) {
	case *wire.AgentTextDelta:
		s.joined[fmt.Sprint(e.Parent, p.Block)] += p.Content
	case *wire.AgentThinkingDelta:
		s.joined[fmt.Sprint(e.Parent, p.Block)] += p.Content
	case *wire.AgentText:
		s.strings[p.Content] = true
	case *wire.AgentThinking:
		s.strings[p.Content] = true
	case *wire.UserMessage:
		s.strings[p.Content] = true
	case *wire.AgentStart:
		s.walk(p.Prompt)
	case *wire.AgentError:
		s.strings[p.Message] = true
		s.walk(p.Details)
	case *wire.ToolIntent:
		s.intents[e.CallID] = p
	case *wire.AgentTool:
		s.results[e.CallID] = p
		s.walk(p.ToolOutput)
	case *wire.Usage:
		s.usage[p.MessageID] = true
	case *wire.TurnEnd:
		s.ends = append(s.ends, p)
	case *wire.RawMessage:
		s.walk(p.Data)
	case *wire.Compaction:
		s.walk(p.Details)
	}
}

// walk notes all strings of a value.
func (s *statements) walk(r wire.Raw) {
	s.values[string(r)] = true
	walk(r.Any(), func(text string) { s.strings[text] = true })
}

func walk(v any, f func(string)) {
	switch v := v.(type) {
	case string:
		f(v)
	case []byte:
		f(string(v))
	case []any:
		for _, x := range v {
			walk(x, f)
		}
	case map[string]any:
		for _, x := range v {
			walk(x, f)
		}
	}
}

type lineCheck struct {
	said    *statements
	ids     map[string]bool
	no      int
	line    wire.Raw
	missing []string
}

func (l *lineCheck) fail(format string, args ...any) {
	l.missing = append(l.missing, fmt.Sprintf("line %d: ", l.no)+fmt.Sprintf(format, args...))
}

func (l *lineCheck) check() []string {
	m, _ := l.line.Any().(map[string]any)
	if m == nil {
		if !l.said.values[string(l.line)] {
			l.fail("value %v", l.line.Any())
		}
		return l.missing
	}
	message, _ := m["message"].(map[string]any)
	switch m["type"] {
	case "assistant", "user":
		l.content(message["content"], m["error"] != nil)
		if id, ok := message["id"].(string); ok && m["type"] == "assistant" && message["model"] != "<synthetic>" &&
			message["usage"] != nil && m["error"] == nil && !l.said.usage[id] {
			l.fail("usage of %s", id)
		}
	case "result":
		l.result(m)
	}
	return l.missing
}

func (l *lineCheck) content(content any, _ bool) {
	switch c := content.(type) {
	case string:
		l.text(c)
	case []any:
		for _, b := range c {
			if s, ok := b.(string); ok {
				l.text(s)
			}
			if m, ok := b.(map[string]any); ok {
				l.block(m)
			}
		}
	}
}

func (l *lineCheck) text(s string) {
	if s != "" && !l.said.has(s) {
		l.fail("text %.60q", s)
	}
}

func (l *lineCheck) block(b map[string]any) {
	switch kind, _ := b["type"].(string); kind {
	case "text":
		s, _ := b["text"].(string)
		l.text(s)
	case "thinking":
		s, _ := b["thinking"].(string)
		l.text(s)
	case "tool_use":
		id, _ := b["id"].(string)
		p := l.said.intents[id]
		input, _ := wire.Marshal(b["input"])
		if p == nil || p.ToolName != b["name"] || !bytes.Equal(p.ToolInput, input) {
			l.fail("call %s %v", id, b["name"])
		}
	case "tool_result":
		id, _ := b["tool_use_id"].(string)
		p := l.said.results[id]
		output, _ := wire.Marshal(b["content"])
		isError, _ := b["is_error"].(bool)
		if p == nil || !bytes.Equal(p.ToolOutput, output) || (p.Error != "") != isError {
			l.fail("result of %s", id)
		}
	default:
		walk(b, func(s string) {
			if !l.said.has(s) {
				l.fail("%s block", kind)
			}
		})
	}
}

func (l *lineCheck) result(m map[string]any) {
	if m["subtype"] == nil {
		return
	}
	for _, e := range l.said.ends {
		result, _ := m["result"].(string)
		ms, _ := m["duration_ms"].(int64)
		if e.Subtype == m["subtype"] && e.Result == result && e.DurationMs == ms {
			return
		}
	}
	l.fail("result %v", m["subtype"])
}
