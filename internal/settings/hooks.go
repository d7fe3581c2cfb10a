// Package settings adds hooks to the settings of Claude Code and takes them out again, without another byte of the file
// changing: order, indentation and line ends are the user's.
//
// What is made for a hook is told from what was there by the byte behind an opening bracket: in what we make stands a space
// or a line end there, and into what was empty we write without one. So what is taken out again leaves no trace.
package settings

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Hook is a command that Claude Code calls at an event.
type Hook struct {
	Event   string
	Command string
	Timeout int  // in seconds
	Async   bool // Claude Code doesn't wait for it, and writes nothing about it into the session's file
}

// Add returns a text with hooks added, behind those that are there; that of a file that isn't there is nil.
func Add(text []byte, hooks []Hook) ([]byte, error) {
	if text == nil {
		return []byte("{\n  " + renderHooks(hooks, style{unit: "  ", line: "\n"}, "  ") + "\n}\n"), nil
	}
	for _, h := range hooks {
		root, err := parseObject(text)
		if err != nil {
			return nil, err
		}
		s := styleOf(text, root)
		all, err := root.find("hooks", '{')
		if err != nil {
			return nil, err
		}
		if all == nil {
			text = insertPart(text, root, s, func(s style, indent string) string { return renderHooks([]Hook{h}, s, indent) })
			continue
		}
		of, err := all.find(h.Event, '[')
		if err != nil {
			return nil, err
		}
		if of == nil {
			text = insertPart(text, *all, s, func(s style, indent string) string { return renderEvent(h, s, indent) })
		} else {
			text = insertPart(text, *of, s, func(s style, indent string) string { return renderGroup(h, s, indent) })
		}
	}
	return text, nil
}

// Remove returns a text without the hooks that run our command; nil, if there would be nothing in the file.
func Remove(text []byte, isOurs func(command string) bool) ([]byte, error) {
	for {
		root, err := parseObject(text)
		if err != nil {
			return nil, err
		}
		path, err := eachHook(text, root, func(h Hook) bool { return isOurs(h.Command) })
		if err != nil || path == nil {
			return text, err
		}
		if text = cutHook(text, path); text == nil {
			return nil, nil
		}
	}
}

// Find returns the hooks that run our command.
func Find(text []byte, isOurs func(command string) bool) ([]Hook, error) {
	var found []Hook
	root, err := parseObject(text)
	if err != nil {
		return nil, err
	}
	_, err = eachHook(text, root, func(h Hook) bool {
		if isOurs(h.Command) {
			found = append(found, h)
		}
		return false
	})
	return found, err
}

// HooksOff reports whether the settings switch all hooks off (disableAllHooks).
func HooksOff(text []byte) bool {
	var s struct {
		Off bool `json:"disableAllHooks"`
	}
	return json.Unmarshal(text, &s) == nil && s.Off
}

// find returns the member of an object. It fails if it stands there twice, or is of another kind.
func (v value) find(key string, kind byte) (found *value, err error) {
	for i, p := range v.parts {
		switch {
		case p.key != key:
			continue
		case found != nil:
			return nil, fmt.Errorf("%q stands there twice", key)
		case p.value.kind != kind:
			return nil, fmt.Errorf("%q is no %s", key, map[byte]string{'{': "object", '[': "list"}[kind])
		}
		found = &v.parts[i].value
	}
	return found, nil
}

// step is a part on the way to a hook: of the settings, their hooks, those of an event, a group of these, its list.
type step struct {
	in value
	i  int
}

// eachHook visits the hooks until one is wanted, and returns the way to it.
func eachHook(text []byte, root value, want func(Hook) bool) ([]step, error) {
	all, err := root.find("hooks", '{')
	if all == nil || err != nil {
		return nil, err
	}
	for i, event := range all.parts {
		for j, group := range event.value.parts {
			list, err := group.value.find("hooks", '[')
			if err != nil || list == nil {
				continue // none that Claude Code knows
			}
			for k, hook := range list.parts {
				var h Hook
				if json.Unmarshal(text[hook.value.start:hook.value.end], &h) != nil {
					continue
				}
				h.Event = event.key
				path := []step{{root, root.index("hooks")}, {*all, i}, {event.value, j}, {group.value, group.value.index("hooks")}, {*list, k}}
				if want(h) {
					return path, nil
				}
			}
		}
	}
	return nil, nil
}

func (v value) index(key string) int {
	return slices.IndexFunc(v.parts, func(p part) bool { return p.key == key })
}

// cutHook takes out what a way leads to, and what was made for it. A group goes with its last hook.
func cutHook(text []byte, path []step) []byte {
	if len(path[4].in.parts) == 1 {
		path = path[:3]
	}
	for ; ; path = path[:len(path)-1] {
		last := path[len(path)-1]
		switch parts, p := last.in.parts, last.in.parts[last.i]; {
		case last.i > 0:
			return spliceText(text, parts[last.i-1].end(), p.end(), "")
		case len(parts) > 1:
			return spliceText(text, p.start, parts[1].start, "")
		case !isSpace(text[last.in.start+1]): // it was there, and empty
			return spliceText(text, p.start, p.end(), "")
		case len(path) == 1:
			return nil
		}
	}
}

func spliceText(text []byte, from, to int, with string) []byte {
	return append(append(append(make([]byte, 0, len(text)+len(with)), text[:from]...), with...), text[to:]...)
}

// style is how a text is written.
type style struct {
	unit string // of indentation; "": all in one line
	line string // its line end
}

func newlineOf(text []byte) string {
	if bytes.Contains(text, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

func styleOf(text []byte, root value) style {
	s := style{unit: "  ", line: newlineOf(text)}
	if indent, ok := indentIn(text, root); ok && indent != "" {
		s.unit = indent
	}
	return s
}

// indentIn returns how the parts of a value are indented; not if they stand in one line.
func indentIn(text []byte, v value) (string, bool) {
	if len(v.parts) == 0 {
		return "", false
	}
	before := text[v.start+1 : v.parts[0].start]
	i := bytes.LastIndexByte(before, '\n')
	return string(before[i+1:]), i >= 0
}

// insertPart adds a part behind the last one.
func insertPart(text []byte, v value, s style, render func(style, string) string) []byte {
	indent, lines := indentIn(text, v)
	switch {
	case lines:
		return spliceText(text, v.parts[len(v.parts)-1].end(), v.parts[len(v.parts)-1].end(), ","+s.line+indent+render(s, indent))
	case len(v.parts) > 0:
		return spliceText(text, v.parts[len(v.parts)-1].end(), v.parts[len(v.parts)-1].end(), ", "+render(style{}, ""))
	}
	return spliceText(text, v.start+1, v.start+1, render(style{}, ""))
}

// wrapBrackets puts something into brackets, in lines of its own if there are any.
func wrapBrackets(open, inner, end string, s style, indent string) string {
	if s.unit == "" {
		return open + " " + inner + " " + end
	}
	return open + s.line + indent + s.unit + inner + s.line + indent + end
}

func renderHooks(hooks []Hook, s style, indent string) string {
	all := make([]string, len(hooks))
	for i, h := range hooks {
		all[i] = renderEvent(h, s, indent+s.unit)
	}
	return `"hooks": ` + wrapBrackets("{", strings.Join(all, ","+s.line+indent+s.unit), "}", s, indent)
}

func renderEvent(h Hook, s style, indent string) string {
	return quoteJSON(h.Event) + ": " + wrapBrackets("[", renderGroup(h, s, indent+s.unit), "]", s, indent)
}

func renderGroup(h Hook, s style, indent string) string {
	in := indent + s.unit
	more := ""
	if h.Async {
		more = `, "async": true`
	}
	hook := fmt.Sprintf(`{ "type": "command", "command": %s, "timeout": %d%s }`, quoteJSON(h.Command), h.Timeout, more)
	return wrapBrackets("{", `"hooks": `+wrapBrackets("[", hook, "]", s, in), "}", s, indent)
}

func quoteJSON(text string) string {
	b := &bytes.Buffer{}
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // a text is one
	return strings.TrimSpace(b.String())
}
