package native

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// toValidUTF8 returns s in UTF-8.
func toValidUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// jsonOf returns a value as JSON, "null" of an absent one.
func jsonOf(r wire.Raw) json.RawMessage {
	b, err := wire.AppendJSON(nil, r)
	if err != nil || len(b) == 0 {
		return json.RawMessage("null")
	}
	return b
}

func textBlock(s string) wire.Raw {
	return wire.RawOf(map[string]any{"type": "text", "text": s})
}

// resultBlock is the result of a call as the model is told it. Output that is neither a
// text nor a list of blocks is told as JSON.
func resultBlock(id string, output wire.Raw, failed bool) wire.Raw {
	block := map[string]any{"type": "tool_result", "tool_use_id": id}
	if text, ok := output.Text(); ok {
		block["content"] = text
	} else if isBlocks(output) {
		block["content"] = output
	} else {
		block["content"] = string(jsonOf(output))
	}
	if failed {
		block["is_error"] = true
	}
	return wire.RawOf(block)
}

func isBlocks(r wire.Raw) bool {
	blocks := r.Items()
	for _, b := range blocks {
		if t := b.TextAt("type"); t != "text" && t != "image" {
			return false
		}
	}
	return len(blocks) > 0
}

// blocksOf returns the content of a prompt: a text, content blocks, or messages, one's
// content after another's. Null, and a text without a word, which the API refuses, have none.
func blocksOf(prompt wire.Raw) []wire.Raw {
	if s, ok := prompt.Text(); ok {
		if strings.TrimSpace(s) == "" {
			return nil
		}
		return []wire.Raw{textBlock(s)}
	}
	var blocks []wire.Raw
	for _, item := range prompt.Items() {
		switch content := item.Get("content"); {
		case item.TextAt("type") == "text" && strings.TrimSpace(item.TextAt("text")) == "":
		case item.TextAt("type") != "" && item.TextAt("role") == "":
			blocks = append(blocks, item)
		case len(content) > 0:
			blocks = append(blocks, blocksOf(content)...)
		default:
			blocks = append(blocks, blocksOf(item)...)
		}
	}
	return blocks
}

// hashOf is the SHA-256 of a value, lower-case hex.
func hashOf(r wire.Raw) string {
	sum := sha256.Sum256(r)
	return hex.EncodeToString(sum[:])
}

// textOf is the text of content blocks.
func textOf(blocks []wire.Raw) string {
	var text strings.Builder
	for _, b := range blocks {
		if b.TextAt("type") == "text" {
			text.WriteString(b.TextAt("text"))
		}
	}
	return text.String()
}

// saysSomething reports whether a message of the model says something. The API doesn't take
// back one that only thinks.
func saysSomething(blocks []wire.Raw) bool {
	return slices.ContainsFunc(blocks, func(b wire.Raw) bool {
		t := b.TextAt("type")
		return t != "thinking" && t != "redacted_thinking"
	})
}
