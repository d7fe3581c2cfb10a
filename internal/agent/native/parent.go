package native

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"code.wake.dev/wake/internal/ask"
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

// askPerson is the tool that asks a person and returns the answer. The call waits like one
// that has to be approved, by whatever mode; what approves it is its input with the answers.
func askPerson() *tool {
	return &tool{
		name: ask.Tool,
		description: "Asks a person one to four questions, each with answers to choose from, and waits for the answers: for as long as it takes. " +
			"Ask only what you can't find out or decide by yourself.",
		schema: rawSchema(ask.Schema), reads: true, timeout: toolTimeout,
		run: func(_ context.Context, _ string, input wire.Raw) (result, error) {
			return textResult(ask.Result(input)), nil
		},
	}
}

// askProblem returns why the input of a question can't be asked, "" if it can or the call is
// another one.
func askProblem(tool string, input wire.Raw) string {
	if tool != ask.Tool {
		return ""
	}
	if _, err := ask.Questions(input); err != nil {
		return err.Error()
	}
	return ""
}
