package native

import (
	"context"

	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/pkg/wire"
)

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
