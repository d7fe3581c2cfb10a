package export

import (
	"bufio"
	"encoding/json"
	"io"
	"strconv"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// openHarness are the events of the agent observability specification (§3 and
// §6.1) and their fields, in its order and under its names; of flow:*, node:*,
// edge:* and others the fields of the runtime that it belongs to.
var openHarness = map[wire.Type][]string{
	wire.TypeFlowStart:       {"flowName"},
	wire.TypeFlowComplete:    {"flowName", "status"},
	wire.TypeFlowPaused:      nil,
	wire.TypeFlowResumed:     nil,
	wire.TypeFlowAborted:     nil,
	wire.TypeNodeStart:       nil,
	wire.TypeNodeComplete:    {"output"},
	wire.TypeNodeError:       {"error"},
	wire.TypeNodeSkipped:     {"reason"},
	wire.TypeEdgeFire:        {"edgeId", "from", "to"},
	wire.TypeLoopIterate:     {"edgeId", "iteration"},
	wire.TypeStatePatch:      {"patch"},
	wire.TypeCommandReceived: {"command"},

	wire.TypeAgentStart:         {"sessionId", "model", "prompt"},
	wire.TypeAgentThinkingDelta: {"content", "tokenCount"},
	wire.TypeAgentThinking:      {"content", "tokenCount"},
	wire.TypeAgentTextDelta:     {"content"},
	wire.TypeAgentText:          {"content"},
	wire.TypeAgentTool:          {"toolName", "toolInput", "toolOutput", "durationMs", "error"},
	wire.TypeAgentError:         {"errorType", "message", "details"},
	wire.TypeAgentComplete:      {"result", "structuredOutput", "usage", "modelUsage", "totalCostUsd", "durationMs", "numTurns"},
	wire.TypeAgentPaused:        {"sessionId", "numTurns"},
	wire.TypeAgentAborted:       {"reason"},
}

// The fields that the specification names of usage and of modelUsage.
var (
	usageFields = []string{"inputTokens", "outputTokens", "cacheCreationInputTokens", "cacheReadInputTokens"}
	modelFields = []string{"inputTokens", "outputTokens"}
)

// OpenHarness writes the events that the agent observability specification
// knows, one JSON object per line, as it spells them: runId is the execution of
// the node there. Events of sub-agents that would begin or end the node's agent
// a second time are left out, and so are types and fields that it doesn't know, and what agents have taken
// back: it has no word for that. What that is, first says, which are the same events; nil, since they aren't all there yet:
// it is told.
func OpenHarness(w io.Writer, run Run, events, first Events) (Result, error) {
	out := bufio.NewWriter(w)
	r := Result{RunID: run.ID}
	back, err := truncationsOf(first)
	if err != nil {
		return r, err
	}
	var buf []byte
	err = eachVisible(&r, events, func(e *eventlog.Entry) error {
		fields, known := openHarness[e.Event.Type()]
		if !known || e.Event.Parent != "" && isOncePerExec(e.Event.Type()) || back[e.NodeID].isHidden(e.Event) {
			return nil
		}
		line, err := appendSpelled(buf[:0], e.Event, fields)
		if err != nil {
			return err
		}
		buf = line
		r.Written++
		_, err = out.Write(line)
		return err
	})
	if err != nil {
		return r, err
	}
	return r, out.Flush()
}

// isOncePerExec reports whether a node's execution has one event of the type.
func isOncePerExec(t wire.Type) bool {
	return t == wire.TypeAgentStart || t == wire.TypeAgentComplete
}

func appendSpelled(b []byte, e *wire.Event, fields []string) ([]byte, error) {
	data, err := wire.Encode(e)
	if err != nil {
		return nil, err
	}
	raw := wire.Raw(data)
	b = append(b, `{"type":`...)
	b = appendText(b, string(e.Type()))
	if ofNode(e.Type()) {
		b = append(b, `,"nodeId":`...)
		b = appendText(b, e.Node())
		b = append(b, `,"runId":`...)
		b = appendText(b, execOf(e))
	}
	b = append(b, `,"timestamp":`...)
	b = strconv.AppendInt(b, e.Timestamp, 10)
	for _, name := range fields {
		value := raw.Get(name)
		if value.IsZero() {
			continue
		}
		b = append(b, ',')
		b = append(appendText(b, name), ':')
		if b, err = appendValue(b, e.Type(), name, value); err != nil {
			return nil, err
		}
	}
	return append(b, '}', '\n'), nil
}

// ofNode reports whether events of the type name the node and its execution.
func ofNode(t wire.Type) bool {
	switch t {
	case wire.TypeNodeStart, wire.TypeNodeComplete, wire.TypeNodeError, wire.TypeNodeSkipped:
		return true
	}
	return t.Kind() != wire.KindFlow
}

func appendValue(b []byte, t wire.Type, name string, value wire.Raw) ([]byte, error) {
	switch {
	case t == wire.TypeAgentComplete && name == "usage":
		return appendOnly(b, value, usageFields)
	case t == wire.TypeAgentComplete && name == "modelUsage":
		return appendModels(b, value)
	case t == wire.TypeStatePatch && name == "patch":
		return appendOnly(b, value, []string{"op", "path", "value"})
	}
	return wire.AppendJSON(b, value)
}

// appendOnly appends an object with the given fields of value only.
func appendOnly(b []byte, value wire.Raw, fields []string) ([]byte, error) {
	b = append(b, '{')
	first := true
	for _, name := range fields {
		v := value.Get(name)
		if v.IsZero() {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(appendText(b, name), ':')
		var err error
		if b, err = wire.AppendJSON(b, v); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func appendModels(b []byte, value wire.Raw) ([]byte, error) {
	var models map[string]wire.Raw
	if err := wire.Unmarshal(value, &models); err != nil {
		return nil, err
	}
	b = append(b, '{')
	for i, name := range sortedKeys(models) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendText(b, name), ':')
		var err error
		if b, err = appendOnly(b, models[name], modelFields); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

// appendText appends s as a JSON string that is safe on a terminal.
func appendText(b []byte, s string) []byte {
	out, err := wire.AppendJSON(b, wire.RawString(s))
	if err != nil { // it isn't UTF-8
		text, _ := json.Marshal(s) // a string
		return append(b, text...)
	}
	return out
}
