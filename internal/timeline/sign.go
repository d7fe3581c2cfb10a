package timeline

import (
	"strings"
	"unicode"

	"code.wake.dev/wake/pkg/wire"
)

// PlainLine returns the text of a line for pages, whose readers may have no font for the pictures that lines begin with: calls have a tick or
// a cross, other lines nothing. What agents said stays as it is.
func PlainLine(t wire.LineType, text string) string {
	if t == wire.LineSystem {
		return trimPicture(text)
	}
	if t != wire.LineTool {
		return text
	}
	if rest, is := strings.CutPrefix(text, FailedCall); is {
		return "✗ " + rest
	}
	if rest, is := strings.CutPrefix(text, DoneCall); is {
		return "✓ " + rest
	}
	return text
}

// PlainAlert returns the text of an alert for pages, which show its node and its kind beside it.
func PlainAlert(text string) string {
	if rest, is := strings.CutPrefix(text, "[subagent:"); is {
		if _, after, is := strings.Cut(rest, "] "); is {
			text = after
		}
	}
	return strings.TrimSuffix(strings.Replace(trimPicture(text), " passed ✅ (", " passed (", 1), " ✅")
}

// trimPicture cuts off the picture that a text begins with.
func trimPicture(text string) string {
	return strings.TrimLeftFunc(text, func(r rune) bool { return unicode.Is(unicode.So, r) || r == '\ufe0f' || r == ' ' })
}

// NodeName returns how pages name a node: that of the run itself is the run.
func NodeName(id string) string {
	if id == wire.RunNode {
		return "run"
	}
	return id
}
