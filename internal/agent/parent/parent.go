// Package parent is the tool by which an agent tells the supervisor of its run something: notify_parent, of a server of the Model Context
// Protocol that the agent's program starts. The server knows no supervisor and keeps nothing: that the agent has called it stands in what the program
// tells of its calls, and so in its journal and the log, whatever becomes of the server.
package parent

import (
	"context"
	"encoding/json"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"code.wake.dev/wake/pkg/wire"
)

// The server and its one tool.
const (
	Server = "parent"
	Tool   = "notify_parent"
)

// Description is what a model is told of the tool.
const Description = "Send a message to your supervisor, which started this task. Use it to ask a question, to report what blocks you, " +
	"to tell how a long task gets on, or when you need a decision. Not for routine progress, errors or the end of the task: those are seen. " +
	"It returns at once; an answer comes as a message to you."

// Schema is that of the tool's input.
func Schema() map[string]any {
	return map[string]any{
		"type": "object",
		"properties": map[string]any{
			"message": map[string]any{"type": "string", "description": "What to tell"},
			"priority": map[string]any{
				"type": "string", "enum": []string{"info", "question", "blocker"}, "default": "info",
				"description": "question: you need a decision; blocker: you can't go on without help",
			},
		},
		"required": []string{"message"},
	}
}

// Parse checks the input of a call. The problem is told to the agent.
func Parse(input wire.Raw) (p *wire.CCMessage, problem string) {
	message, ok := input.Get("message").Text()
	if !ok || strings.TrimSpace(message) == "" {
		return nil, "message is required and must be a string"
	}
	p = &wire.CCMessage{Text: message, Priority: wire.PriorityInfo}
	given := input.Get("priority")
	if len(given) == 0 || given.Any() == nil {
		return p, ""
	}
	switch priority, _ := given.Text(); wire.Priority(priority) {
	case wire.PriorityInfo, wire.PriorityQuestion, wire.PriorityBlocker:
		p.Priority = wire.Priority(priority)
		return p, ""
	default:
		return nil, "priority must be info, question or blocker"
	}
}

// Delivered is what the agent is told of a message that its parent gets.
func Delivered(p *wire.CCMessage, id string) string {
	text := "delivered"
	if id != "" {
		text += " as message " + id
	}
	if p.Priority != wire.PriorityInfo {
		text += ". The answer comes as a message. Go on with what doesn't depend on it, or end your turn and wait."
	}
	return text
}

// NewServer returns the server.
func NewServer() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: Server, Version: "1"}, &sdk.ServerOptions{Capabilities: &sdk.ServerCapabilities{}})
	s.AddTool(&sdk.Tool{Name: Tool, Description: Description, InputSchema: Schema()}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return callResult(r.Params.Arguments), nil
	})
	return s
}

func callResult(arguments json.RawMessage) *sdk.CallToolResult {
	input, err := wire.RawFromJSON(arguments)
	if err != nil {
		input = wire.Null
	}
	p, problem := Parse(input)
	if problem != "" {
		return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: "invalid input: " + problem}}}
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: Delivered(p, "")}}}
}
