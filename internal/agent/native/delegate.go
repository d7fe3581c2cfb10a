package native

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/schema"
	"code.wake.dev/wake/pkg/wire"
)

// maxSubAgents is how many agents an execution may start.
const maxSubAgents = 100

// delegateTools returns those of the tools that the request has.
func (s *session) delegateTools() ([]*tool, error) {
	var tools []*tool
	if r := s.request; r.Delegate != nil && !slices.Contains(r.Options.DisallowedTools, agent.ToolAgent) {
		tools = append(tools, agentTool(r.Delegate))
	}
	if r := s.request; r.RunFlow != nil && len(r.Flows) > 0 && !slices.Contains(r.Options.DisallowedTools, agent.ToolRunFlow) {
		for _, f := range r.Flows {
			if err := schema.Check(f.Input); err != nil {
				return nil, fmt.Errorf("input of flow %s: %w", f.Name, err)
			}
		}
		tools = append(tools, flowTool(r.Flows, r.RunFlow))
	}
	return tools, nil
}

// agentTool returns the tool that starts another agent, which may do what this one may.
// Called again, it waits for the agent that the call has started, as all of these do.
func agentTool(ask func(ctx context.Context, call, prompt string) (agent.Part, error)) *tool {
	t := defineTool(agent.ToolAgent, "Has another agent work on a part of the task, in the same folder and with the same tools, and returns its answer. "+
		"It knows nothing of this conversation: tell it all that it needs. Several can work at once.",
		`{"type":"object","properties":{"prompt":{"type":"string"}},"required":["prompt"]}`,
		true, func(ctx context.Context, call string, in delegateInput) (result, error) {
			if strings.TrimSpace(in.Prompt) == "" {
				return result{}, errors.New("prompt is required")
			}
			return partResult(ask(ctx, call, in.Prompt))
		})
	t.timeout, t.joins = 0, true
	return t
}

type delegateInput struct{ Prompt string }

// flowTool returns the tool that starts a flow. What the flow may do is its author's
// decision, so that an agent that may only read can't start one.
func flowTool(known []flow.Child, start func(ctx context.Context, call, name string, input wire.Raw) (agent.Part, error)) *tool {
	var about strings.Builder
	about.WriteString("Runs a flow, waits until it has ended, and returns its outcome: its status and the outputs of its nodes. Several can run at once. The flows:")
	names := make([]any, 0, len(known))
	for _, f := range known {
		names = append(names, f.Name)
		fmt.Fprintf(&about, "\n- %s", f.Name)
		if text := f.About(); text != "" {
			about.WriteString(": " + text)
		}
		if len(f.Input) > 0 {
			fmt.Fprintf(&about, " Its input, as JSON Schema: %s", jsonOf(f.Input))
		}
	}
	t := &tool{
		name: agent.ToolRunFlow, description: toValidUTF8(about.String()), joins: true,
		schema: wire.RawOf(map[string]any{
			"type": "object", "required": []any{"flow"},
			"properties": map[string]any{
				"flow":  map[string]any{"type": "string", "enum": names},
				"input": map[string]any{"description": "what the flow is to work on, as its description says"},
			},
		}),
	}
	t.run = func(ctx context.Context, call string, input wire.Raw) (result, error) {
		name := input.TextAt("flow")
		i := slices.IndexFunc(known, func(f flow.Child) bool { return f.Name == name })
		if i < 0 {
			return result{}, fmt.Errorf("there is no flow %q; there are %s", name, joinNames(names))
		}
		given := input.Get("input")
		if len(known[i].Input) > 0 {
			if len(given) == 0 {
				given = wire.Null
			}
			if err := schema.Validate(given, known[i].Input); err != nil {
				return result{}, fmt.Errorf("input of flow %s: %w", name, err)
			}
		}
		return partResult(start(ctx, call, name, given))
	}
	return t
}

func joinNames(names []any) string {
	texts := make([]string, len(names))
	for i, n := range names {
		texts[i] = fmt.Sprint(n)
	}
	return strings.Join(texts, ", ")
}

// partResult is the result of a call that has had a run of its own do something.
func partResult(p agent.Part, err error) (result, error) {
	if err != nil {
		return result{}, err
	}
	r := result{child: p.Run, childCost: p.CostUsd, childTokens: p.Tokens}
	switch answer, isText := p.Output.Text(); {
	case p.Failed != "":
		r.output, r.failed = wire.RawString(toValidUTF8(p.Failed)), true
	case isText:
		r.output = wire.RawString(toValidUTF8(answer))
	default:
		r.output, r.structured = wire.RawString(toValidUTF8(string(jsonOf(p.Output)))), p.Output
	}
	return r, nil
}

// startTarget names what a call starts; "" for calls that start nothing.
func startTarget(tool string, input wire.Raw) string {
	switch tool {
	case agent.ToolAgent:
		return agent.ToolAgent
	case agent.ToolRunFlow:
		return agent.ToolRunFlow + " " + input.TextAt("flow")
	}
	return ""
}

// tooMany says why a call may not start what it is to start.
func (s *session) tooMany(k call) string {
	if k.tool == agent.ToolAgent && k.nth > maxSubAgents {
		return fmt.Sprintf("%d agents have been started, which is as many as may be. Do the rest yourself.", maxSubAgents)
	}
	if k.tool != agent.ToolRunFlow {
		return ""
	}
	for _, f := range s.request.Flows {
		if f.Name == k.input.TextAt("flow") && k.nth > f.Most() {
			return fmt.Sprintf("Flow %s has been asked for %d times, which is as often as may be (maxRuns).", f.Name, f.Most())
		}
	}
	return ""
}
