package timeline

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"code.wake.dev/wake/pkg/wire"
)

// Bounds of what a call was given, and of what it answered, as far as it can be
// searched: of a longer one the beginning and the end are kept.
const (
	MaxCallHead = 16 << 10 // bytes
	MaxCallTail = 4 << 10
)

// Call is what a call was given and what it answered, as text: what its line doesn't
// say.
type Call struct {
	Input, Output string
	Cut           int64 // bytes that are left out in the middle
}

// CallOf returns what e says of a call beyond its line. missing stands for a field
// of it that couldn't be found.
func CallOf(e *wire.Event, missing func(field string) string) (c Call) {
	p, ok := e.Payload.(*wire.AgentTool)
	if !ok {
		return c
	}
	t := callText{line: toolLine(p)}
	if p.ToolInput.IsZero() {
		c.Input = missing("toolInput")
	} else {
		t.addValue("", p.ToolInput.Any())
		c.Input = t.takeText(&c.Cut)
	}
	if p.ToolOutput.IsZero() {
		c.Output = missing("toolOutput")
	} else {
		t.addValue("", p.ToolOutput.Any())
		t.addPart("", p.Error)
		c.Output = t.takeText(&c.Cut)
	}
	return c
}

// callText gathers what the line of a call doesn't say.
type callText struct {
	line  string
	parts []string
	told  map[string]bool // which parts there are
}

// addValue adds the texts of a value, each with the name that it has.
func (t *callText) addValue(name string, v any) {
	switch v := v.(type) {
	case nil:
	case string:
		t.addPart(name, v)
	case []any:
		for _, item := range v {
			t.addValue(name, item)
		}
	case map[string]any:
		t.addMap(name, v)
	default:
		t.addPart(name, fmt.Sprint(v))
	}
}

// addMap adds the texts of a map. Of a block of text that is the text, of one with an image
// nothing that could be read.
func (t *callText) addMap(name string, v map[string]any) {
	text, isText := v["text"].(string)
	_, encoded := v["data"].(string)
	switch kind, _ := v["type"].(string); {
	case kind == "text" && isText:
		t.addPart(name, text)
	case encoded && (kind == "base64" || kind == "image"):
	default:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			t.addValue(key, v[key])
		}
	}
}

func (t *callText) addPart(name, text string) {
	text = strings.TrimSpace(Plain(text))
	if text == "" || t.told[text] || strings.Contains(t.line, text) {
		return
	}
	if t.told == nil {
		t.told = map[string]bool{}
	}
	if name != "" {
		text = name + ": " + text
	}
	t.told[text] = true
	t.parts = append(t.parts, text)
}

// takeText returns what was added, cut to its bounds, and adds what that takes away
// to cut.
func (t *callText) takeText(cut *int64) string {
	text := strings.Join(t.parts, "\n")
	t.parts, t.told = nil, nil
	if len(text) <= MaxCallHead+MaxCallTail {
		return text
	}
	head, _ := Cut(text, MaxCallHead)
	tail := len(text) - MaxCallTail
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	left := tail - len(head)
	*cut += int64(left)
	return fmt.Sprintf("%s\n[%d bytes are left out here]\n%s", head, left, text[tail:])
}
