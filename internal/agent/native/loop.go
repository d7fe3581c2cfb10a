package native

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/internal/schema"
	"code.wake.dev/wake/pkg/wire"
)

// takeTurns takes turns until the agent has come to an end or to a safe point.
func (s *session) takeTurns() error {
	for {
		over := s.conv.turns > 0 && len(s.conv.openCalls()) == 0 // the last turn
		var err error
		switch {
		case over && !s.conv.ended:
			err = s.endTurn()
		case s.isHalting():
			err = s.emitLast(&wire.AgentPaused{Reason: "interrupted", NumTurns: int64(s.conv.turns - s.conv.earlier)})
		case s.conv.stopped:
			err = s.completeRun(nil, stopHook)
		case len(s.conv.openCalls()) > 0:
			err = s.callTools()
		case over && !s.conv.reviewed:
			err = s.reviewTurn()
		case s.hasMessages():
			err = s.hearMessages()
		case s.conv.isOver() && (len(s.asked) > 0 && s.conv.stop == stopEnd || s.request.Expects):
			s.awaitMessage()
		case s.conv.isOver():
			err = s.concludeRun()
		case s.conv.turns-s.conv.earlier >= s.maxTurns():
			err = s.failTurn(wire.ErrorMaxTurns, fmt.Sprintf("the agent has taken %d turns without coming to an end", s.conv.turns-s.conv.earlier))
		case s.request.Options.MaxBudgetUsd > 0 && s.conv.bill.unknown > 0:
			err = s.failTurn("cost_unknown", fmt.Sprintf("maxBudgetUsd can't be kept, since the prices of the agent's model calls are not known: %d so far", s.conv.bill.unknown))
		case s.isBudgetSpent():
			err = s.failTurn(wire.ErrorMaxBudget, fmt.Sprintf("the agent has spent $%.4f, and its budget is $%.4f", s.conv.bill.knownSpending(), s.request.Options.MaxBudgetUsd))
		case s.isTooLong():
			err = s.compactContext()
		default:
			err = s.takeTurn()
		}
		if err != nil {
			return err
		}
		if s.context().Err() != nil {
			return errLeft
		}
	}
}

// emitLast emits the terminal event.
func (s *session) emitLast(p wire.Payload) error {
	if err := s.emit(&wire.Event{Payload: p}); err != nil {
		return err
	}
	return errOver
}

func (s *session) maxTurns() int {
	if n := s.request.Options.MaxTurns; n > 0 {
		return n
	}
	return maxTurns
}

func (s *session) hasMessages() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.inbox) > 0
}

// hearMessages tells the model the messages that wait.
func (s *session) hearMessages() error {
	for i, m := range s.takeMessages() {
		p := &wire.UserMessage{
			Content: toValidUTF8(m.Content), Source: "command", CommandID: m.CommandID,
			Point: fmt.Sprintf("turn-%d-message-%d", s.conv.turns, len(s.conv.said)+i),
		}
		if err := s.emit(&wire.Event{Payload: p}); err != nil {
			return err
		}
		if !m.Notice {
			s.asked = slices.DeleteFunc(s.asked, func(id string) bool { return m.Answers == "" || id == m.Answers })
			s.request.Expects = false
		}
	}
	return nil
}

// awaitMessage waits for a message: the answer to a question to the parent, or one that is known to come.
func (s *session) awaitMessage() {
	select {
	case <-s.news:
	case <-s.context().Done():
	}
}

// tellModel tells the model something that no user has said.
func (s *session) tellModel(text string) error {
	return s.emit(&wire.Event{Payload: &wire.UserMessage{Content: toValidUTF8(text), Source: sourceHook}})
}

// takeTurn calls the model once.
func (s *session) takeTurn() error {
	ctx, done := s.workContext()
	defer done()
	s.turn, s.turned = s.conv.turns+1, time.Now()
	if err := s.emit(&wire.Event{Payload: &wire.TurnStart{Model: s.name}}); err != nil {
		return err
	}
	s.log.Debug("turn", "turn", s.turn, "messages", len(s.conv.messages))
	if err := s.consultHooks(ctx, hook.Event{Name: flow.HookTurnStart}); err != nil || s.conv.stopped {
		return err
	}
	system := systemPrompt(s.request.Options)
	if system != s.system {
		sum := sha256.Sum256([]byte(system))
		s.system = system
		if err := s.emit(&wire.Event{Payload: &wire.PromptSystem{SHA256: hex.EncodeToString(sum[:]), Bytes: int64(len(system))}}); err != nil {
			return err
		}
	}
	a, err := s.callModel(ctx, s.nextQuestion(system), s.pieceRecorder())
	if errors.Is(err, errAbandoned) {
		return nil // the loop sees why
	}
	if err != nil {
		return err
	}
	return s.recordAnswer(a)
}

func (s *session) nextQuestion(system string) modelQuestion {
	o := s.request.Options
	q := modelQuestion{
		model: s.name, system: system, messages: s.conv.nextPrompt(), tools: s.tools, schema: o.OutputSchema,
		maxTokens: o.MaxTokens, thinking: thinkingText(o), effort: o.Effort,
	}
	if q.maxTokens <= 0 {
		q.maxTokens = defaultAnswer
		if s.limits.output > 0 {
			q.maxTokens = min(longAnswer, s.limits.output)
		}
	}
	return q
}

// How long an answer may be, in tokens: of a model with unknown limits, and of
// others.
const (
	defaultAnswer = 8192
	longAnswer    = 32_000
)

// recordAnswer puts a message of the model on record, and the point to resume from. What it cost
// comes first: a message that is lost is paid for all the same.
func (s *session) recordAnswer(a modelAnswer) error {
	if err := s.emit(&wire.Event{Payload: s.usageOf(a, fmt.Sprintf("%s-%d", s.request.SessionID, s.turn))}); err != nil {
		return err
	}
	blocks := s.conv.distinctCalls(a.blocks)
	message := &wire.AgentMessage{
		MessageID: toValidUTF8(a.id), Model: toValidUTF8(a.model), Content: wire.RawOf(blocks), StopReason: toValidUTF8(a.stop), Blocks: s.conv.blocks,
	}
	if err := s.emit(&wire.Event{Payload: message}); err != nil {
		return err
	}
	if len(s.conv.calls) == 0 {
		return nil // the turn is over
	}
	return s.emitCheckpoint(wire.CheckpointSubturn)
}

// endTurn puts the end of a turn on record.
func (s *session) endTurn() error {
	if err := s.emitCheckpoint(wire.CheckpointTurn); err != nil {
		return err
	}
	return s.emit(&wire.Event{Payload: s.turnEnd()})
}

// reviewTurn asks the hooks about the end of a turn.
func (s *session) reviewTurn() error {
	err := s.consultHooks(s.context(), hook.Event{Name: flow.HookTurnEnd})
	s.conv.reviewed = true // though no hook was there to be asked
	return err
}

func (s *session) emitCheckpoint(kind wire.CheckpointKind) error {
	return s.emit(&wire.Event{Payload: &wire.Checkpoint{Kind: kind}})
}

// errAbandoned says that an interruption has ended a model call.
var errAbandoned = errors.New("native: abandoned")

// retryBase is the delay before the first retry; it doubles with each one.
const retryBase = 500 * time.Millisecond

// maxDelay is how long an agent waits at most because its model's API says so. If that is
// not enough, the node's policy decides.
const maxDelay = time.Hour

// callModel calls the model until it answers: as often as the options say. Each failure is
// on record.
func (s *session) callModel(ctx context.Context, q modelQuestion, tell func(streamPiece) error) (modelAnswer, error) {
	retries := maxRetries
	if n := s.request.Options.Retries; n != nil {
		retries = max(*n, 0)
	}
	for attempt := 0; ; attempt++ {
		a, err := s.callModelOnce(ctx, q, tell)
		switch {
		case err == nil:
			return a, nil
		case errors.Is(err, errLeft), s.context().Err() != nil:
			return a, errLeft
		case ctx.Err() != nil:
			return a, cmp.Or(s.recordCutOff(a), errAbandoned)
		}
		failed := asAPIError(err)
		if !failed.retry || attempt == retries || failed.after > maxDelay {
			return a, s.failRun(failed.errorEvent(attempt, retries, 0))
		}
		delay := retryBase << min(attempt, 10)
		if failed.after > 0 {
			delay = failed.after
		}
		s.log.Warn("model call failed", "attempt", attempt, "delay", delay, "error", err)
		if err := s.emit(&wire.Event{Payload: failed.errorEvent(attempt, retries, delay)}); err != nil {
			return a, err
		}
		if !sleepFor(ctx, delay) && s.context().Err() == nil {
			return a, errAbandoned
		}
	}
}

// recordCutOff puts on record what a call has used that an interruption has ended, as far as the API had told: it is paid for.
func (s *session) recordCutOff(a modelAnswer) error {
	if a.usage.InputTokens == 0 && a.usage.OutputTokens == 0 {
		return nil
	}
	return s.emit(&wire.Event{Payload: s.usageOf(a, s.request.SessionID+"-cut-"+time.Now().Format(time.RFC3339Nano))})
}

// errorEvent is the failure of a try, counted from 0, as it is recorded: as Claude Code does, by
// the number of the retry that follows, or that was the last.
func (e *apiError) errorEvent(attempt, retries int, delay time.Duration) *wire.AgentError {
	p := &wire.AgentError{
		ErrorType: e.kind, Message: e.Error(), Details: e.errorDetails(), Severity: wire.SeverityWarning, Phase: "model", Status: e.status,
	}
	if delay > 0 {
		attempt++
		p.RetryDelayMs = new(float64(delay.Milliseconds()))
	}
	if attempt > 0 {
		p.Attempt, p.MaxAttempts = new(int64(attempt)), retries
	}
	if delay == 0 && e.after > 0 {
		p.ResetsAt = time.Now().Add(e.after).UnixMilli()
	}
	return p
}

func sleepFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// callModelOnce calls the model once. A stream that is silent for too long is broken.
func (s *session) callModelOnce(ctx context.Context, q modelQuestion, tell func(streamPiece) error) (modelAnswer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(s.provider.Idle, func() { cancel(errIdle) })
	defer idle.Stop()
	q.heard = func() { idle.Reset(s.provider.Idle) }
	a, err := readAnswer(ctx, s.model, q, tell)
	if err != nil && errors.Is(context.Cause(ctx), errIdle) {
		return a, errIdle
	}
	return a, err
}

var errIdle = errors.New("the model's API was silent for too long")

// pieceRecorder returns what records the pieces of a message. Blocks are numbered within the
// execution; those of a stream that broke off aren't numbered again.
func (s *session) pieceRecorder() func(streamPiece) error {
	numbers := map[int]int{}
	return func(p streamPiece) error {
		if p.text == "" { // a message begins
			numbers = map[int]int{}
			return s.emit(&wire.Event{Payload: &wire.BreakpointChanged{Previous: "PRE_MODEL", Current: "STREAMING_MODEL"}})
		}
		n, ok := numbers[p.block]
		if !ok {
			s.conv.blocks++
			n = s.conv.blocks
			numbers[p.block] = n
		}
		if p.thinking {
			return s.emit(&wire.Event{Payload: &wire.AgentThinkingDelta{Content: toValidUTF8(p.text), Block: n}})
		}
		return s.emit(&wire.Event{Payload: &wire.AgentTextDelta{Content: toValidUTF8(p.text), Block: n}})
	}
}

// maxCut is how many answers in a row may end at the limit of their length.
const maxCut = 3

// goOn is what the model is told after such an answer.
const goOn = "Your answer was cut off at the limit of its length. Go on exactly where it stopped."

// concludeRun ends the execution if the model has come to an end.
func (s *session) concludeRun() error {
	switch s.conv.stop {
	case stopRefusal:
		return s.failTurn("refusal", "the model refused to answer")
	case stopLength:
		if s.conv.cut <= maxCut {
			return s.tellModel(goOn)
		}
		return s.failTurn(stopLength, fmt.Sprintf("%d answers in a row were cut off at the limit of their length", s.conv.cut))
	case stopContext:
		return s.failTurn(stopContext, "the conversation is longer than the model's context window")
	}
	structured, err := s.structuredAnswer()
	if err != nil {
		return s.failTurn("invalid_output", err.Error())
	}
	if !s.closeInbox() {
		return nil
	}
	return s.completeRun(structured, s.conv.stop)
}

// completeRun ends the execution well.
func (s *session) completeRun(structured wire.Raw, stop string) error {
	text := s.conv.lastText()
	if err := s.consultHooks(s.context(), hook.Event{Name: flow.HookAgentStop, Result: wire.RawString(text)}); err != nil {
		return err
	}
	p := &wire.AgentComplete{
		Result: text, StructuredOutput: structured, Usage: sumUsage(s.conv.bill.models), ModelUsage: maps.Clone(s.conv.bill.models),
		DurationMs: time.Since(s.begun).Milliseconds(), NumTurns: int64(s.conv.turns - s.conv.earlier), StopReason: stop,
		TotalCostUsd: s.conv.bill.totalCost(), CostSource: s.conv.bill.prices,
	}
	s.log.Info("agent complete", "turns", s.conv.turns, "input_tokens", p.Usage.InputTokens, "output_tokens", p.Usage.OutputTokens)
	if len(s.conv.denials) > 0 {
		p.Denials = wire.RawOf(s.conv.denials)
	}
	return s.emitLast(p)
}

// structuredAnswer returns the answer as the value that its schema asks for; nil without one.
func (s *session) structuredAnswer() (wire.Raw, error) {
	if len(s.request.Options.OutputSchema) == 0 {
		return nil, nil
	}
	value, err := wire.RawFromJSON([]byte(s.conv.lastText()))
	if err != nil {
		return nil, fmt.Errorf("the answer is no JSON, though a schema was given: %w", err)
	}
	if err := schema.Validate(value, s.request.Options.OutputSchema); err != nil {
		return nil, fmt.Errorf("the answer is %w", err)
	}
	return value, nil
}

// turnEnd is the end of a turn: with what it has cost, as far as that wasn't told.
func (s *session) turnEnd() *wire.TurnEnd {
	p := &wire.TurnEnd{StopReason: s.conv.stop, Subtype: "success", DurationMs: time.Since(s.turned).Milliseconds(), NumTurns: 1}
	if len(s.conv.calls) == 0 {
		p.Result = s.conv.lastText()
	}
	s.conv.bill.fillTurnEnd(p)
	return p
}

// failTurn ends the execution with an error that isn't the API's.
func (s *session) failTurn(kind, message string) error {
	end := s.turnEnd()
	end.Subtype, end.IsError, end.NumTurns = kind, true, 0 // its turns have been told
	if err := s.emit(&wire.Event{Payload: end}); err != nil {
		return err
	}
	return s.failRun(&wire.AgentError{ErrorType: kind, Message: message, Phase: "lifecycle"})
}
