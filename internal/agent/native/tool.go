package native

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"code.wake.dev/wake/pkg/wire"
)

// tool is something that the model can call.
type tool struct {
	name        string
	description string
	schema      wire.Raw // JSON Schema of its input
	reads       bool     // it changes nothing
	joins       bool     // called again, it waits for what the call has begun
	timeout     time.Duration
	run         func(ctx context.Context, call string, input wire.Raw) (result, error)
}

// isRepeatable reports whether the tool may be run again.
func (t *tool) isRepeatable() bool { return t.reads || t.joins }

// effect is what a call may do to what others see.
type effect int

const (
	changes effect = iota // it may change anything
	looks                 // it changes nothing
	starts                // it has an agent or a flow work, which may change anything, and of which several work at once
)

// callEffect returns what calls of the tool may do. Nil is a tool that doesn't exist: its call does
// nothing.
func (t *tool) callEffect() effect {
	switch {
	case t == nil:
		return looks
	case t.joins:
		return starts
	case t.reads:
		return looks
	}
	return changes
}

// result is what a call has come to.
type result struct {
	output     wire.Raw       // a text or content blocks
	structured wire.Raw       // in the tool's own form, if it has one
	failed     bool           // the output says why
	told       []wire.Payload // what else is on record because of it
	child      string         // the run that the call has started
	childCost  *float64       // what that has cost, in US dollars; nil: it isn't known

	childTokens int64 // what models were given and made in it
}

func textResult(s string) result { return result{output: wire.RawString(toValidUTF8(s))} }

// failureResult is the result of a call that can't be served.
func failureResult(err error) result {
	return result{output: wire.RawString(toValidUTF8(err.Error())), failed: true}
}

// defineTool returns a tool that takes an object with the fields of In.
func defineTool[In any](name, description, schema string, reads bool, run func(context.Context, string, In) (result, error)) *tool {
	return &tool{
		name: name, description: description, schema: rawSchema(schema), reads: reads, timeout: toolTimeout,
		run: func(ctx context.Context, call string, input wire.Raw) (result, error) {
			var in In
			if err := json.Unmarshal(jsonOf(input), &in); err != nil {
				return result{}, fmt.Errorf("input: %w", err)
			}
			return run(ctx, call, in)
		},
	}
}

// rawSchema reads the schema of a tool.
func rawSchema(schema string) wire.Raw {
	parsed, err := wire.RawFromJSON([]byte(schema))
	if err != nil {
		parsed = wire.RawOf(map[string]any{"type": "object"})
	}
	return parsed
}

// toolTimeout bounds a call of a tool that sets itself no limit.
const toolTimeout = 10 * time.Minute

// maxResult is how much of a result the model is told, in bytes; the log keeps it
// whole.
const maxResult = 30_000

// cutResult shortens a text result for the model and keeps the full one beside it.
func cutResult(r result) result {
	full, ok := r.output.Text()
	if !ok || len(full) <= maxResult {
		return r
	}
	head, tail := runeCut(full[:maxResult*2/3], false), runeCut(full[len(full)-maxResult/3:], true)
	r.output = wire.RawString(fmt.Sprintf("%s\n\n[… %d bytes were left out here; the log has all of it …]\n\n%s",
		head, len(full)-len(head)-len(tail), tail))
	kept := map[string]any{"output": full}
	if r.structured != nil {
		kept["result"] = r.structured
	}
	r.structured = wire.RawOf(kept)
	return r
}

// runeCut drops a rune that was cut at the end, or at the beginning.
func runeCut(s string, atStart bool) string {
	for len(s) > 0 && atStart && !utf8.RuneStart(s[0]) {
		s = s[1:]
	}
	for !atStart && len(s) > 0 {
		if r, size := utf8.DecodeLastRuneInString(s); r != utf8.RuneError || size > 1 {
			break
		}
		s = s[:len(s)-1]
	}
	return s
}
