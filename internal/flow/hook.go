package flow

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"code.wake.dev/wake/internal/document"
)

// The events that hooks are asked about.
const (
	HookAgentStart         = "AgentStart"
	HookTurnStart          = "TurnStart"
	HookTurnEnd            = "TurnEnd"
	HookPreToolUse         = "PreToolUse"
	HookPostToolUse        = "PostToolUse"
	HookPostToolUseFailure = "PostToolUseFailure"
	HookAgentStop          = "AgentStop"
)

// HookEvents are all of them, in the order of an agent's life.
func HookEvents() []string {
	return []string{HookAgentStart, HookTurnStart, HookPreToolUse, HookPostToolUse, HookPostToolUseFailure, HookTurnEnd, HookAgentStop}
}

// MatcherPattern returns the expression that a matcher stands for: it matches whole
// names.
func MatcherPattern(matcher string) (*regexp.Regexp, error) {
	return regexp.Compile(`^(?:` + matcher + `)$`)
}

// maxHookTimeout bounds how long an agent waits for one hook.
const maxHookTimeout = 5 * 60 * 1000

// HooksOf returns the hooks of a node: those of the flow, then its own.
func (d *Definition) HooksOf(n *Node) []Hook {
	return slices.Concat(d.Hooks, n.Hooks)
}

func (r *flowReader) readHooks(o *fields) []Hook {
	var out []Hook
	for i, t := range o.takeList("hooks") {
		out = append(out, r.readHook(t, fmt.Sprintf("%s[%d]", o.fieldName("hooks"), i)))
	}
	return out
}

func (r *flowReader) readHook(t *document.Value, path string) Hook {
	o := r.openObject(t, path)
	o.needField("event")
	h := Hook{
		Event: o.takeOneOf("event", HookEvents()...), Matcher: o.takeText("matcher"), Name: o.takeText("name"),
		Command: r.hookCommand(o), URL: o.takeText("url"), Subject: o.takeText("subject"), TimeoutMs: o.takeMillis("timeoutMs"),
	}
	o.checkUnknown()
	if _, err := MatcherPattern(h.Matcher); err != nil {
		r.Add(t.Get("matcher").At, o.fieldName("matcher"), "%v", err)
	}
	if h.TimeoutMs > maxHookTimeout {
		r.Add(t.Get("timeoutMs").At, o.fieldName("timeoutMs"), "is at most %d", maxHookTimeout)
	}
	if h.URL != "" && !urlPattern().MatchString(h.URL) {
		r.Add(t.Get("url").At, o.fieldName("url"), "%q is no http:// or https:// address", h.URL)
	}
	if h.Subject != "" && !subjectPattern().MatchString(h.Subject) {
		r.Add(t.Get("subject").At, o.fieldName("subject"), "%q: letters, digits, - and _ in tokens between dots, the first character a letter or a digit", h.Subject)
	}
	r.hookTarget(o, h)
	return h
}

// urlPattern is what the address of a hook looks like.
var urlPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^https?://[^/\s]+[^\s]*$`) })

// subjectPattern is what the subject of a hook looks like. Those of the server
// itself and those with wildcards don't.
var subjectPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$`) })

// hookTarget wants exactly one that is asked, which a value can't choose.
func (r *flowReader) hookTarget(o *fields, h Hook) {
	if o.wrong {
		return
	}
	count := 0
	for _, name := range []string{"command", "url", "subject"} {
		if !o.t.Get(name).IsAbsent() {
			count++
		}
	}
	if count != 1 {
		r.Add(o.t.At, o.path, "a hook has one of command, url and subject")
	}
	for name, text := range map[string]string{"command": strings.Join(h.Command, " "), "url": h.URL} {
		if hasBinding(text) {
			r.Add(o.t.Get(name).At, o.fieldName(name), "a binding is not possible here; what happens is told on the hook's input")
		}
	}
}

// hookCommand reads a text for sh -c or a list of words.
func (r *flowReader) hookCommand(o *fields) []string {
	t := o.takeField("command")
	if t == nil {
		return nil
	}
	if t.Kind == document.List && len(t.List) > 0 {
		var words []string
		for i, w := range t.List {
			s, ok := w.AsText()
			if !ok {
				r.Add(w.At, fmt.Sprintf("%s[%d]", o.fieldName("command"), i), "must be a text, not %s", w.KindName())
			}
			words = append(words, s)
		}
		return words
	}
	s, ok := t.AsText()
	if !ok || strings.TrimSpace(s) == "" {
		r.Add(t.At, o.fieldName("command"), "must be a text or a list of words, not %s", t.KindName())
		return nil
	}
	return []string{"/bin/sh", "-c", s}
}
