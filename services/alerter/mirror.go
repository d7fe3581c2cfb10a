package alerter

import (
	"fmt"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// mirrorFindings finds that a program has lost a part of its session's transcript on the way to its store: a program that
// goes on with the session from there doesn't know that part. It needs no memory.
func mirrorFindings(in input) []finding {
	p, is := in.Event.Payload.(*wire.RawMessage)
	if !is || p.Name != wire.MirrorError {
		return nil
	}
	why := timeline.Line(p.Data.TextAt("error"), maxError)
	return []finding{in.finding(kindMirror, wire.SeverityError, fmt.Sprintf(textMirror, why), map[string]any{"message": why})}
}
