package claude

import (
	"cmp"
	"slices"
)

// How much is kept of what isn't open any more: repetitions of a line, of a message or of a call follow soon, and so do
// late words of a sub-agent.
const (
	keptLines   = 128
	keptCalls   = 64
	keptThreads = 16

	forgetEvery = 32 // lines
)

// forgetPast drops what is neither open nor recent, since a stream ends with its agent only. It depends on
// the lines alone, so that a normalizer that goes on from a resting point forgets the same. A transcript repeats lines
// from far before, and is bounded by its file.
func (n *Normalizer) forgetPast() {
	if n.opt.Format == Transcript || n.line%forgetEvery != 0 {
		return
	}
	n.open = slices.DeleteFunc(n.open, func(id string) bool { return n.calls[id].done })
	forgetOldest(n.threads, keptThreads, func(t *thread) int { return t.Line }, n.isThreadNeeded)
	for id, t := range n.agents {
		if n.threads[t.Key] != t {
			delete(n.agents, id)
		}
	}
	for parent := range n.todos {
		if parent != "" && n.threads[parent] == nil {
			delete(n.todos, parent)
		}
	}
	forgetOldest(n.calls, keptCalls, func(c *toolCall) int { return c.line }, n.isCallNeeded)
	current := make(map[string]bool, len(n.threads)) // their usage would be told again
	for _, t := range n.threads {
		if t.Usage != nil {
			current[t.Usage.ID] = true
		}
	}
	forgetOldest(n.counted, keptCalls, func(line int) int { return line }, func(message string, _ int) bool { return current[message] })
	forgetOldest(n.seen, keptLines, func(s lineSighting) int { return s.Line }, func(string, lineSighting) bool { return false })
}

// isThreadNeeded reports whether more of a thread is to come, or something of it is still to be told.
func (n *Normalizer) isThreadNeeded(key string, t *thread) bool {
	c := n.calls[key]
	untold := t.Usage != nil && t.Usage.Known && t.Produced && !n.isCounted(t.Usage.ID)
	return t.main || n.background[t.Agent] || c != nil && !c.done || len(t.blocks) > 0 || untold
}

// isCallNeeded reports whether more of a call is to come: its result, the end of its task or words of its sub-agent.
func (n *Normalizer) isCallNeeded(id string, c *toolCall) bool {
	return !c.done || c.task || n.threads[id] != nil
}

// forgetOldest drops from a map what isn't needed, but for the limit entries with the highest lines.
func forgetOldest[V any](m map[string]V, limit int, line func(V) int, needed func(key string, v V) bool) {
	if len(m) <= limit {
		return
	}
	var past []string
	for key, v := range m {
		if !needed(key, v) {
			past = append(past, key)
		}
	}
	if len(past) <= limit {
		return
	}
	slices.SortFunc(past, func(a, b string) int {
		return cmp.Or(cmp.Compare(line(m[b]), line(m[a])), cmp.Compare(a, b))
	})
	for _, key := range past[limit:] {
		delete(m, key)
	}
}
