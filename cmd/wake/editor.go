package main

import (
	"strings"
	"unicode"

	tea "charm.land/bubbletea/v2"

	"code.wake.dev/wake/internal/timeline"
)

// editor is a line in which the user types.
type editor struct {
	text   []rune
	cursor int // index into text
}

// maxTyped bounds what can be typed or pasted, in characters.
const maxTyped = 64 << 10

// take has a key change the line, and reports whether it does.
func (l *editor) take(k tea.KeyPressMsg) bool {
	switch k.String() {
	case "left", "ctrl+b":
		l.cursor = max(0, l.cursor-1)
	case "right", "ctrl+f":
		l.cursor = min(len(l.text), l.cursor+1)
	case "home", "ctrl+a":
		l.cursor = 0
	case "end", "ctrl+e":
		l.cursor = len(l.text)
	case "backspace", "ctrl+h":
		l.remove(max(0, l.cursor-1), l.cursor)
	case "delete":
		l.remove(l.cursor, min(len(l.text), l.cursor+1))
	case "ctrl+w", "alt+backspace":
		l.remove(l.wordStart(), l.cursor)
	case "ctrl+u":
		l.remove(0, l.cursor)
	case "ctrl+k":
		l.remove(l.cursor, len(l.text))
	case "alt+enter", "ctrl+j", "shift+enter":
		l.insert("\n")
	default:
		if k.Text == "" {
			return false
		}
		l.insert(k.Text)
	}
	return true
}

// insert puts a text at the cursor; of one that is too long nothing.
func (l *editor) insert(s string) {
	added := []rune(strings.ToValidUTF8(s, string(unicode.ReplacementChar)))
	if len(l.text)+len(added) > maxTyped {
		return
	}
	l.text = append(l.text[:l.cursor:l.cursor], append(added, l.text[l.cursor:]...)...)
	l.cursor += len(added)
}

func (l *editor) remove(from, to int) {
	l.text = append(l.text[:from:from], l.text[to:]...)
	l.cursor = from
}

func (l *editor) wordStart() int {
	i := l.cursor
	for i > 0 && unicode.IsSpace(l.text[i-1]) {
		i--
	}
	for i > 0 && !unicode.IsSpace(l.text[i-1]) {
		i--
	}
	return i
}

// value is what has been typed, without space around it.
func (l *editor) value() string { return strings.TrimSpace(string(l.text)) }

func (l *editor) clear() { *l = editor{} }

// view is the line with its cursor, safe for a terminal, in one line: of a long one the end before the cursor.
func (l *editor) view(width int, color bool) string {
	show := func(r []rune) string {
		return strings.ReplaceAll(strings.ReplaceAll(timeline.Sanitize(string(r)), "\n", "⏎"), "\t", " ")
	}
	before, at, after := l.text[:l.cursor], []rune(" "), []rune(nil)
	if l.cursor < len(l.text) {
		at, after = l.text[l.cursor:l.cursor+1], l.text[l.cursor+1:]
	}
	room := max(1, width-1)
	head, cut := show(before), ""
	for cellsOf(head)+cellsOf(cut) > room {
		head, cut = string([]rune(head)[1:]), "…"
	}
	cursor := show(at)
	if color {
		cursor = "\x1b[7m" + cursor + "\x1b[0m"
	} else if cursor == " " {
		cursor = "▏"
	}
	return cut + head + cursor + cutCells(show(after), max(0, room-cellsOf(cut+head)))
}
