package native

import (
	"fmt"
	"strings"

	"code.wake.dev/wake/internal/agent"
)

// systemPrompt is what the model is told of its role. It follows from the options
// alone, so that an agent that goes on elsewhere is told the same, save for the folder.
func systemPrompt(o agent.Options) string {
	parts := []string{o.SystemPrompt}
	if o.SystemPrompt == "" {
		parts[0] = fmt.Sprintf(role, o.Cwd)
	}
	if o.AppendSystemPrompt != "" {
		parts = append(parts, o.AppendSystemPrompt)
	}
	return toValidUTF8(strings.Join(parts, "\n\n"))
}

const role = `You are an agent that works in the folder %s by means of your tools, without a human at your side. Do what the task asks for and nothing beyond it. Look before you change something, check that what you have done works, and say at the end what you did and what you could not do. When a tool call was interrupted, its outcome is unknown: look at the state of things before you repeat it.`
