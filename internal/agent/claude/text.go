package claude

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"code.wake.dev/wake/pkg/wire"
)

// toValidUTF8 returns s in UTF-8.
func toValidUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func trimLine(line []byte) []byte { return bytes.TrimSpace(line) }

// lineValue returns the value of a line: a string, or bytes if it isn't UTF-8.
func lineValue(line []byte) wire.Raw {
	if utf8.Valid(line) {
		return wire.RawString(string(line))
	}
	b, err := wire.Marshal(bytes.Clone(line))
	if err != nil {
		return wire.RawString(string(line))
	}
	return b
}

// contentText returns the text of a message's or a result's content: a string,
// or the text of its blocks, one per line.
func contentText(content wire.Raw) string {
	if s, ok := content.Text(); ok {
		return s
	}
	var parts []string
	for _, block := range content.Items() {
		if s, ok := block.Text(); ok {
			parts = append(parts, s)
		} else if block.TextAt("type") == "text" {
			parts = append(parts, block.TextAt("text"))
		}
	}
	return strings.Join(parts, "\n")
}

// blocksOf returns the blocks of a message's content; of a plain string the
// one block of text that it stands for. ok is false if it is neither.
func blocksOf(content wire.Raw) (blocks []wire.Raw, ok bool) {
	if s, is := content.Text(); is {
		return []wire.Raw{textBlock(s)}, true
	}
	if _, is := content.Any().([]any); !is {
		return nil, false
	}
	for _, block := range content.Items() {
		if s, is := block.Text(); is {
			block = textBlock(s)
		}
		blocks = append(blocks, block)
	}
	return blocks, true
}

func textBlock(s string) wire.Raw {
	return wire.RawOf(map[string]string{"type": "text", "text": s})
}
