package native

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// notifyParent is the tool that tells the supervisor of the run something. An agent that
// has asked doesn't end before it is answered.
func notifyParent() *tool {
	return defineTool("notify_parent", "Tells your supervisor something that can't wait: a question, or what blocks you. "+
		"The answer to a question comes as a message. Not for progress, results or errors: those are seen anyway.",
		`{"type":"object","properties":{"message":{"type":"string"},"priority":{"type":"string","enum":["info","question","blocker"],"description":"info by default"}},"required":["message"]}`,
		false, func(_ context.Context, _ string, in notifyInput) (result, error) { return in.toResult() })
}

type notifyInput struct {
	Message  string
	Priority wire.Priority
}

func (in notifyInput) toResult() (result, error) {
	if strings.TrimSpace(in.Message) == "" {
		return result{}, errors.New("message is required")
	}
	answer := "The message was sent. The answer comes as a message to you; end your turn if you can't go on without it."
	switch in.Priority {
	case "", wire.PriorityInfo:
		in.Priority, answer = wire.PriorityInfo, "The message was sent."
	case wire.PriorityQuestion, wire.PriorityBlocker:
	default:
		return result{}, fmt.Errorf("priority is %q, not info, question or blocker", in.Priority)
	}
	r := textResult(answer)
	r.told = []wire.Payload{&wire.CCMessage{Text: toValidUTF8(in.Message), Priority: in.Priority}}
	return r, nil
}
