package native

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// compactAbove is the part of the context window, in percent, above which a
// conversation is shortened.
const compactAbove = 80

// isTooLong reports whether the conversation is to be shortened before the next call.
func (s *session) isTooLong() bool {
	return s.limits.context > 0 && len(s.conv.messages) > 0 && s.conv.context*100 > s.limits.context*compactAbove
}

// summarize asks the model for a summary.
const summarize = "The conversation has become too long. Write a summary from which you can go on without it: what the task is, what you have done and found out, which files you have changed and how, what is left to do, and what you were told meanwhile. Call no tool. Answer with the summary alone."

// compactContext replaces the conversation by a summary that the model writes.
func (s *session) compactContext() error {
	ctx, done := s.workContext()
	defer done()
	start := time.Now()
	q := s.nextQuestion(systemPrompt(s.request.Options))
	q.schema = nil
	ask := textBlock(summarize)
	if last := len(q.messages) - 1; q.messages[last].role == "user" {
		q.messages[last].blocks = append(append([]wire.Raw(nil), q.messages[last].blocks...), ask)
	} else {
		q.messages = append(append([]message(nil), q.messages...), message{"user", []wire.Raw{ask}})
	}
	a, err := s.callModel(ctx, q, func(streamPiece) error { return nil })
	if errors.Is(err, errAbandoned) {
		return nil
	}
	if err != nil {
		return err
	}
	summary := textOf(a.blocks)
	before := s.conv.context
	usage := s.usageOf(a, s.request.SessionID+"-compaction-"+time.Now().Format(time.RFC3339Nano))
	if err := s.emit(&wire.Event{Payload: usage}); err != nil {
		return err
	}
	s.log.Warn("context shortened", "tokens", before, "window", s.limits.context)
	p := &wire.Compaction{
		Trigger: "auto", PreTokens: before, PostTokens: a.usage.OutputTokens, Summary: toValidUTF8(summary),
		DurationMs: time.Since(start).Milliseconds(),
	}
	if summary == "" {
		p.Error = "the model wrote no summary"
		if err := s.emit(&wire.Event{Payload: p}); err != nil {
			return err
		}
		return s.failTurn(stopContext, "the conversation could not be shortened: "+p.Error)
	}
	if err := s.emit(&wire.Event{Payload: p}); err != nil {
		return err
	}
	return s.emitCheckpoint(wire.CheckpointTurn)
}

// systemPrompt is what the model is told of its role. It follows from the options
// alone, so that an agent that goes on elsewhere is told the same, save for the folder.
func systemPrompt(o agent.Options) string {
	parts := []string{o.SystemPrompt}
	if o.SystemPrompt == "" {
		parts[0] = fmt.Sprintf(role, o.Cwd)
	}
	if o.AppendSystemPrompt != "" {
		parts = append(parts, o.AppendSystemPrompt)
	}
	return toValidUTF8(strings.Join(parts, "\n\n"))
}

const role = `You are an agent that works in the folder %s by means of your tools, without a human at your side. Do what the task asks for and nothing beyond it. Look before you change something, check that what you have done works, and say at the end what you did and what you could not do. When a tool call was interrupted, its outcome is unknown: look at the state of things before you repeat it.`
