package acp

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	acp "github.com/coder/acp-go-sdk"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// promptBlocks returns the blocks that a prompt stands for: a text, a list of content blocks, or a list of
// messages, one's content after another's.
func promptBlocks(prompt wire.Raw) ([]acp.ContentBlock, error) {
	if s, ok := prompt.Text(); ok {
		return []acp.ContentBlock{acp.TextBlock(s)}, nil
	}
	var items []wire.Raw
	var blocks []acp.ContentBlock
	if err := wire.Unmarshal(prompt, &items); err != nil || len(items) == 0 {
		return nil, errors.New("acp: the prompt must be a string or a list of messages")
	}
	for i, item := range items {
		if content := item.Get("content"); !isEmpty(content) {
			more, err := promptBlocks(content)
			if err != nil {
				return nil, fmt.Errorf("acp: message %d of the prompt: %w", i, err)
			}
			blocks = append(blocks, more...)
			continue
		}
		b, err := promptBlock(item)
		if err != nil {
			return nil, fmt.Errorf("acp: message %d of the prompt: %w", i, err)
		}
		blocks = append(blocks, b)
	}
	return blocks, nil
}

func promptBlock(item wire.Raw) (acp.ContentBlock, error) {
	if s, ok := item.Text(); ok {
		return acp.TextBlock(s), nil
	}
	switch kind := item.TextAt("type"); kind {
	case "text":
		return acp.TextBlock(item.TextAt("text")), nil
	case "image":
		if source := item.Get("source"); source.TextAt("type") == "base64" {
			return acp.ImageBlock(source.TextAt("data"), source.TextAt("media_type")), nil
		}
		return acp.ContentBlock{}, errors.New("only images with a base64 source can be given to the agent")
	default:
		return acp.ContentBlock{}, fmt.Errorf("a block of type %q can't be given to the agent", kind)
	}
}

// maxSummary bounds what a new session is told of the one before, in bytes.
const maxSummary = 32 << 10

// summarizePast is what a new session is told of one that the agent can't go on with: what the log has of it, the
// end rather than the beginning.
func summarizePast(r agent.Request) (string, error) {
	var said []string
	var text strings.Builder
	flush := func() {
		if text.Len() > 0 {
			said = append(said, "You said: "+text.String())
			text.Reset()
		}
	}
	if r.History != nil {
		for e, err := range r.History {
			if err != nil {
				return "", err
			}
			switch p := e.Payload.(type) {
			case *wire.AgentStart:
				flush()
				said = append(said, "You were asked: "+p.Prompt.Plain())
			case *wire.UserMessage:
				flush()
				said = append(said, "You were told: "+p.Content)
			case *wire.AgentTextDelta:
				text.WriteString(p.Content)
			case *wire.AgentTool:
				flush()
				said = append(said, fmt.Sprintf("You called %s %s; the result was: %s", p.ToolName, p.ToolInput.Plain(), cmp.Or(p.Error, p.ToolOutput.Plain())))
			}
		}
	}
	flush()
	var kept int
	for i, step := range slices.Backward(said) {
		if kept += len(step) + 1; kept > maxSummary {
			said = append([]string{fmt.Sprintf("[%d earlier steps are left out]", i+1)}, said[i+1:]...)
			break
		}
	}
	return "You have worked on this before, in a session that can't be continued. This is what is on record of it; files are as you left them.\n\n" +
		toValidUTF8(strings.Join(said, "\n")), nil
}
