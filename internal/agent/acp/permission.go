package acp

import (
	"context"
	"encoding/json"
	"slices"

	acp "github.com/coder/acp-go-sdk"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/pkg/wire"
)

// askPermission has a question for permission decided, which may take its time.
func (s *session) askPermission(m rpcMessage) {
	call := s.f.Questions[string(m.ID)]
	c := s.f.Calls[call]
	if c == nil {
		s.put(failureOf(m.ID, acp.NewInvalidParams("toolCall.toolCallId is missing, or too long")))
		return
	}
	p := agent.Permission{CallID: call, ToolName: c.name(), Input: c.input()}
	ctx, cancel := context.WithCancel(s.Context())
	if former := s.deciding[string(m.ID)]; former != nil {
		former()
	}
	s.deciding[string(m.ID)] = cancel
	if s.f.Cancelled {
		cancel()
	}
	s.Tasks.Go(func() {
		defer cancel()
		v := s.decidePermission(ctx, p)
		select {
		case s.decided <- decision{m, call, v}:
		case <-s.Context().Done():
		}
	})
}

func (s *session) decidePermission(ctx context.Context, p agent.Permission) agent.Verdict {
	if s.f.mode == bypass {
		return agent.Verdict{Allow: true, By: "policy", Note: "permission mode " + bypass}
	}
	if decide := s.request.Options.Decide; decide != nil {
		return decide(ctx, p)
	}
	return agent.Verdict{By: "policy", Note: "not allowed in permission mode " + s.f.mode + ", and no approver is set"}
}

// recordDecision records a decision and passes it on.
func (s *session) recordDecision(d decision, yield func(*wire.Event, error) bool) bool {
	question := string(d.question.ID)
	if s.deciding[question] == nil || s.f.Questions[question] != d.call { // the agent took it back, or asks about another call under that id
		return true
	}
	delete(s.deciding, question)
	answer := chosenOption(d.question, d.verdict)
	p := &wire.PermissionDecided{Decision: wire.DecisionDeny, By: toValidUTF8(d.verdict.By), Note: toValidUTF8(d.verdict.Note)}
	if d.verdict.Allow && isAllowed(d.question, answer) {
		p.Decision = wire.DecisionAllow
	} else if d.verdict.Allow {
		p.Note = "the agent offers nothing that allows the call"
	}
	s.f.takeDecision(nowMillis(), question, p)
	if !s.Yield(yield, s.f.takeEvents()...) {
		return false
	}
	if s.f.Cancelled {
		answer = acp.NewRequestPermissionOutcomeCancelled()
	}
	s.put(resultOf(d.question.ID, answerOf(answer)))
	return true
}

func answerOf(o acp.RequestPermissionOutcome) acp.RequestPermissionResponse {
	return acp.RequestPermissionResponse{Outcome: o}
}

// optionsOf are the answers that the agent offers.
func optionsOf(question rpcMessage) []acp.PermissionOption {
	var r acp.RequestPermissionRequest
	_ = json.Unmarshal(question.Params, &r) // without options, the question is cancelled
	return r.Options
}

// chosenOption returns the answer to a question: the option that the decision names, else the first one for this call alone,
// else the first that does the same for others, too.
func chosenOption(question rpcMessage, v agent.Verdict) acp.RequestPermissionOutcome {
	options := optionsOf(question)
	kinds := []acp.PermissionOptionKind{acp.PermissionOptionKindRejectOnce, acp.PermissionOptionKindRejectAlways}
	if v.Allow {
		kinds = []acp.PermissionOptionKind{acp.PermissionOptionKindAllowOnce, acp.PermissionOptionKindAllowAlways}
	}
	if named := v.UpdatedInput.TextAt("optionId"); named != "" {
		for _, o := range options {
			if string(o.OptionId) == named && slices.Contains(kinds, o.Kind) {
				return acp.NewRequestPermissionOutcomeSelected(o.OptionId)
			}
		}
	}
	for _, kind := range kinds {
		for _, o := range options {
			if o.Kind == kind {
				return acp.NewRequestPermissionOutcomeSelected(o.OptionId)
			}
		}
	}
	return acp.NewRequestPermissionOutcomeCancelled()
}

// isAllowed reports whether an answer lets the call begin.
func isAllowed(question rpcMessage, o acp.RequestPermissionOutcome) bool {
	return o.Selected != nil && slices.ContainsFunc(optionsOf(question), func(x acp.PermissionOption) bool {
		return x.OptionId == o.Selected.OptionId && (x.Kind == acp.PermissionOptionKindAllowOnce || x.Kind == acp.PermissionOptionKindAllowAlways)
	})
}

// reciteVerdict returns the decision that an answer of the journal tells of.
func reciteVerdict(question, answer rpcMessage) *wire.PermissionDecided {
	var r acp.RequestPermissionResponse
	if json.Unmarshal(answer.Result, &r) == nil && isAllowed(question, r.Outcome) {
		return &wire.PermissionDecided{Decision: wire.DecisionAllow}
	}
	return &wire.PermissionDecided{Decision: wire.DecisionDeny}
}

// withdrawRequest records that the agent took a request back.
func (s *session) withdrawRequest(m rpcMessage, yield func(*wire.Event, error) bool) bool {
	var p struct {
		ID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(m.Params, &p) != nil || s.f.Questions[string(p.ID)] == "" {
		return true
	}
	question := string(p.ID)
	if cancel := s.deciding[question]; cancel != nil {
		cancel()
		delete(s.deciding, question)
	}
	s.open = slices.DeleteFunc(s.open, func(x rpcMessage) bool { return string(x.ID) == question })
	decided := s.replaying && s.request.Decided[s.f.Questions[question]] != nil
	s.f.takeDecision(nowMillis(), question, &wire.PermissionDecided{
		Decision: wire.DecisionDeny, By: "agent", Note: "the agent took its question back",
	})
	events := s.Place(s.f.takeEvents())
	if decided {
		return true
	}
	return s.Yield(yield, events...)
}
