package native

import (
	"context"
	"errors"
	"strings"
)

// subAgent is the tool that has another agent do a part of the work.
const subAgent = "agent"

// delegate returns that tool. It may be called again: then it waits for the agent that
// the call has started. What that agent may do is what this one may.
func delegate(ask func(ctx context.Context, call, prompt string) (string, error)) *tool {
	t := define(subAgent, "Has another agent work on a part of the task, in the same folder and with the same tools, and returns its answer. "+
		"It knows nothing of this conversation: tell it all that it needs. Several can work at once.",
		`{"type":"object","properties":{"prompt":{"type":"string"}},"required":["prompt"]}`,
		true, func(ctx context.Context, call string, in delegateInput) (result, error) {
			if strings.TrimSpace(in.Prompt) == "" {
				return result{}, errors.New("prompt is required")
			}
			answer, err := ask(ctx, call, in.Prompt)
			if err != nil {
				return result{}, err
			}
			return text(answer), nil
		})
	t.timeout = 0
	return t
}

type delegateInput struct{ Prompt string }
