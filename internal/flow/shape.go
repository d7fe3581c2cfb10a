package flow

import (
	"maps"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/document"
)

// valueShape is the fields that a value is known to have. That of a list is the one of its items, as in
// expressions; nil is a value of which nothing is known.
type valueShape map[string]valueShape

// withFields adds fields of which nothing is known.
func (s valueShape) withFields(names ...string) valueShape {
	out := maps.Clone(s)
	if out == nil {
		out = valueShape{}
	}
	for _, name := range names {
		out[name] = nil
	}
	return out
}

// The fields of outputs, as documented in docs/flows.md.
var (
	endFields   = []string{"error", "skipped", "reason"} // of a node that has failed or was skipped
	agentOutput = []string{
		"text", "structuredOutput", "usage", "modelUsage", "totalCostUsd", "durationMs", "numTurns", "sessionId", "stopReason",
		"permissionDenials", "paused",
	}
	execOutput = []string{
		"exitCode", "stdout", "stderr", "stdoutTruncated", "stderrTruncated", "stdoutBytes", "stderrBytes", "durationMs", "timedOut", "signal",
	}
	flowOutput = []string{"runId", "status", "outputs", "state"}
)

// nodeShapes are those of the outputs of nodes, as far as they are known before anything has run.
func nodeShapes(d *Definition) map[string]valueShape {
	out := map[string]valueShape{}
	for _, n := range d.Nodes {
		s := outputShape(&n)
		if s == nil {
			continue
		}
		for _, e := range d.Edges {
			if e.To == n.ID && e.ForEach != nil {
				s = s.withFields("iterations")
			}
		}
		out[n.ID] = s.withFields(endFields...)
	}
	return out
}

func outputShape(n *Node) valueShape {
	switch n.Type {
	case TypeAsk:
		s := valueShape{}.withFields("answer")
		s["answer"] = schemaShape(n.Input.Get("schema").Any())
		return s
	case TypeSleep, TypeAt:
		return valueShape{}.withFields("at", "lateMs")
	case TypeExec:
		return valueShape{}.withFields(execOutput...)
	case TypeFlow:
		return valueShape{}.withFields(flowOutput...)
	case TypeSet: // what it sets may be anything
	case TypeAgent:
		if answer := schemaShape(n.Input.Get("outputSchema").Any()); answer != nil {
			s := valueShape{}.withFields(agentOutput...)
			s["structuredOutput"] = answer
			return s
		}
	}
	return nil
}

// openKeywords of JSON Schema let a value have fields that aren't among its properties.
var openKeywords = []string{"additionalProperties", "patternProperties", "unevaluatedProperties", "anyOf", "oneOf", "allOf", "if", "$ref", "$dynamicRef"}

// schemaShape is the shape of what a JSON Schema describes.
func schemaShape(v any) valueShape {
	schema, _ := v.(map[string]any)
	if items, ok := schema["items"]; ok {
		return schemaShape(items)
	}
	properties, ok := schema["properties"].(map[string]any)
	if !ok {
		return nil
	}
	for _, keyword := range openKeywords {
		if v, there := schema[keyword]; there && v != false {
			return nil
		}
	}
	out := valueShape{}
	for name, property := range properties {
		out[name] = schemaShape(property)
	}
	return out
}

// checkFields checks the fields of a path that begins with a node.
func (c *checker) checkFields(path []string) {
	if path[0] == "outputs" {
		path = path[1:]
	}
	if len(path) == 0 || slices.Contains(reservedNames, path[0]) {
		return
	}
	s, known := c.known.shapes[path[0]]
	for i := 1; i < len(path) && known && s != nil; i++ {
		next, there := s[path[i]]
		if !there {
			names := slices.Sorted(maps.Keys(s))
			c.fail("%s has no field %q, only %s%s", strings.Join(path[:i], "."), path[i], strings.Join(names, ", "), document.SuggestName(path[i], names))
			return
		}
		s = next
	}
}
