package export

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"time"

	"code.wake.dev/wake/internal/conversation"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/ledger"
	"code.wake.dev/wake/pkg/wire"
)

// Spans says what spans carry and how many go together.
type Spans struct {
	Content bool // arguments and results of tools too
	Batch   int  // most spans of a request; default 500
}

// OTLP calls send with the spans of a run, as bodies of OTLP/HTTP requests in
// JSON: each also is a line of a file as OpenTelemetry's file exporter writes it.
//
//	invoke_workflow            the run
//	└ invoke_agent             an execution of an agent's node
//	  ├ chat                   a call of the model
//	  └ execute_tool           a call of a tool
//	    └ invoke_agent         a sub-agent that the tool is
//
// Commands of exec nodes are tools, other nodes are spans of wake's own. A span
// is sent when it has ended. Its ids are derived from the run and the seq of the
// event that began it, so that a second export is the same spans; what had not
// ended then has the same ids later.
func OTLP(run Run, events Events, o Spans, send func(body []byte) error) (Result, error) {
	if o.Batch <= 0 {
		o.Batch = 500
	}
	r := Result{RunID: run.ID}
	t := &tracer{
		run: run, options: o, send: send, result: &r, trace: traceOf(run.ID),
		execs: map[string]*nodeExecution{},
	}
	if err := eachVisible(&r, events, func(e *eventlog.Entry) error { return t.addEvent(e.Pos, e.Event) }); err != nil {
		return r, err
	}
	return r, t.finishRun()
}

// traceOf is the id of a run's trace.
func traceOf(run string) string {
	sum := hashTexts("trace", run)
	return hex.EncodeToString(sum[:16])
}

// spanOf is the id of the span that began with an event. The run's own has no
// event: whatever part of it is exported, it is the same.
func spanOf(run, node string, seq uint64, kind string) string {
	sum := hashTexts("span", run, node, strconv.FormatUint(seq, 10), kind)
	return hex.EncodeToString(sum[:8])
}

func rootOf(run string) string { return spanOf(run, wire.RunNode, 0, opWorkflow) }

// otlpSpan is a span in OTLP/JSON: ids are hexadecimal, 64-bit numbers are strings,
// enumerations are numbers.
type otlpSpan struct {
	Trace      string      `json:"traceId"`
	ID         string      `json:"spanId"`
	Parent     string      `json:"parentSpanId,omitempty"`
	Name       string      `json:"name"`
	Kind       int         `json:"kind"`
	Start      nanos       `json:"startTimeUnixNano"`
	End        nanos       `json:"endTimeUnixNano"`
	Attributes []attribute `json:"attributes,omitempty"`
	Links      []spanLink  `json:"links,omitempty"`
	Status     *spanStatus `json:"status,omitempty"`
}

// The kinds of spans, and the statuses.
const (
	kindInternal = 1
	kindClient   = 3

	statusOK    = 1
	statusError = 2
)

type spanLink struct {
	Trace string `json:"traceId"`
	Span  string `json:"spanId"`
}

type spanStatus struct {
	Message string `json:"message,omitempty"`
	Code    int    `json:"code"`
}

// nanos is a time in Unix ms, written in ns.
type nanos int64

// MarshalJSON writes the number as a string, since JSON's have 53 bits.
func (n nanos) MarshalJSON() ([]byte, error) {
	return []byte(`"` + strconv.FormatInt(max(0, int64(n)), 10) + `000000"`), nil
}

type attribute struct {
	Key   string    `json:"key"`
	Value otlpValue `json:"value"`
}

type otlpValue struct {
	String *string  `json:"stringValue,omitempty"`
	Int    *string  `json:"intValue,omitempty"`
	Double *float64 `json:"doubleValue,omitempty"`
	Bool   *bool    `json:"boolValue,omitempty"`
	Array  *array   `json:"arrayValue,omitempty"`
}

type array struct {
	Values []otlpValue `json:"values"`
}

func textValue(s string) otlpValue { return otlpValue{String: &s} }

// setText sets an attribute unless the value is "".
func (s *otlpSpan) setText(key, v string) {
	if v != "" {
		s.setAttribute(key, textValue(v))
	}
}

// setCount sets an attribute unless the number is 0.
func (s *otlpSpan) setCount(key string, n int64) {
	if n != 0 {
		text := strconv.FormatInt(n, 10)
		s.setAttribute(key, otlpValue{Int: &text})
	}
}

func (s *otlpSpan) setFlag(key string, v bool) {
	if v {
		s.setAttribute(key, otlpValue{Bool: &v})
	}
}

// setFinish sets why a model stopped, unless the reason is "".
func (s *otlpSpan) setFinish(reason string) {
	if reason != "" {
		s.setAttribute(attrFinishReasons, otlpValue{Array: &array{[]otlpValue{textValue(reason)}}})
	}
}

func (s *otlpSpan) setCost(usd *float64) {
	if usd != nil {
		s.setAttribute(attrCost, otlpValue{Double: usd})
	}
}

// setAttribute sets an attribute; the last value counts.
func (s *otlpSpan) setAttribute(key string, v otlpValue) {
	if i := s.placeOf(key); i >= 0 {
		s.Attributes[i].Value = v
		return
	}
	s.Attributes = append(s.Attributes, attribute{key, v})
}

// placeOf is where an attribute is, or -1.
func (s *otlpSpan) placeOf(key string) int {
	return slices.IndexFunc(s.Attributes, func(a attribute) bool { return a.Key == key })
}

func (s *otlpSpan) dropAttribute(key string) {
	s.Attributes = slices.DeleteFunc(s.Attributes, func(a attribute) bool { return a.Key == key })
}

func (s *otlpSpan) setError(kind, message string) {
	s.setText(attrErrorType, cmp.Or(kind, errorOther))
	s.Status = &spanStatus{Message: message, Code: statusError}
}

// nodeExecution is one of a node.
type nodeExecution struct {
	span    *otlpSpan // nil: its beginning isn't in what is exported
	talk    conversation.Conversation
	threads map[string]*agentThread // by parent call; "": the node's own agent
	calls   map[string]*otlpSpan    // open
	account ledger.Ledger
	spent   wire.Spending // by all its model calls
}

// agentThread is an agent at work: that of an execution, or a sub-agent.
type agentThread struct {
	agent    *otlpSpan
	over     bool // agent has ended
	chat     *otlpSpan
	provider string
	counted  bool  // the call of the model has its usage: what follows is another
	since    int64 // Unix ms, when the model had to say something the last time
}

// tracer makes spans of events.
type tracer struct {
	run     Run
	options Spans
	send    func([]byte) error
	result  *Result
	trace   string

	root   *otlpSpan
	forked bool                      // from another run, where executions without a node:start here began
	begun  bool                      // the run has: root says when
	ended  bool                      // the run has, at the time endAt
	endAt  int64                     // Unix ms
	at     int64                     // of the last event, Unix ms
	execs  map[string]*nodeExecution // open
	ready  []*otlpSpan
}

func (t *tracer) addEvent(pos uint64, e *wire.Event) error {
	if !isClaim(e) {
		t.at = max(t.at, e.Timestamp)
	}
	if t.root == nil {
		t.root = &otlpSpan{
			Trace: t.trace, ID: rootOf(t.run.ID), Name: opWorkflow, Kind: kindInternal, Start: nanos(e.Timestamp),
			Attributes: []attribute{{attrOperation, textValue(opWorkflow)}, {attrRun, textValue(t.run.ID)}},
		}
	}
	if !t.begun && !isClaim(e) {
		t.root.Start, t.begun = nanos(e.Timestamp), true
	}
	switch e.Type().Kind() {
	case wire.KindFlow:
		t.addFlowEvent(e)
	default:
		x := t.exec(e)
		t.addAgentEvent(x, e, x.talk.Apply(pos, e))
	}
	if len(t.ready) >= t.options.Batch {
		return t.sendReady()
	}
	return nil
}

// isClaim reports whether an event only says who writes what follows, and when that began: of a run that was taken in long after
// what the run itself tells of.
func isClaim(e *wire.Event) bool {
	return e.Type() == wire.TypeRunClaimed || e.Type() == wire.TypeNodeClaimed
}

func (t *tracer) exec(e *wire.Event) *nodeExecution {
	x := t.execs[execOf(e)]
	if x == nil {
		x = &nodeExecution{threads: map[string]*agentThread{}, calls: map[string]*otlpSpan{}}
		t.execs[execOf(e)] = x
	}
	return x
}

// beginSpan opens a span that began with an event.
func (t *tracer) beginSpan(e *wire.Event, parent, kind, name string, as int) *otlpSpan {
	return &otlpSpan{
		Trace: t.trace, ID: spanOf(t.run.ID, e.NodeID, e.Seq, kind), Parent: parent,
		Name: name, Kind: as, Start: nanos(e.Timestamp),
	}
}

func (t *tracer) endSpan(s *otlpSpan, at int64) {
	s.End = max(nanos(at), s.Start)
	t.ready = append(t.ready, s)
}

// addFlowEvent takes what happens to the run and its nodes.
func (t *tracer) addFlowEvent(e *wire.Event) {
	switch p := e.Payload.(type) {
	case *wire.FlowStart:
		t.root.Name = opWorkflow + " " + p.FlowName
		t.root.setText(attrWorkflow, p.FlowName)
		t.root.setText(attrImported, p.Imported)
		t.linkRun(p.ParentRun)
		t.ended = false
	case *wire.RunForked:
		t.forked = true
		t.linkRun(p.ParentRun)
	case *wire.FlowComplete:
		t.root.setText(attrStatus, string(p.Status))
		if p.Status == wire.FlowStatusFailed {
			t.root.setError("", p.Error)
		}
		t.ended, t.endAt = true, e.Timestamp
	case *wire.FlowAborted:
		t.root.setText(attrStatus, "aborted")
		t.root.setError("aborted", p.Reason)
		t.ended, t.endAt = true, e.Timestamp
	case *wire.FlowResumed: // maybe of a run that had failed
		t.root.Status, t.ended = nil, false
		t.root.dropAttribute(attrErrorType)
		t.root.dropAttribute(attrStatus)
	case *wire.NodeStart:
		t.beginNode(e, p)
	case *wire.NodeComplete:
		t.endNode(e, nil)
	case *wire.NodeError:
		t.endNode(e, p)
	case *wire.NodeCancelled:
		t.endNode(e, &wire.NodeError{ErrorType: wire.ErrorCancelled, Error: p.Reason})
	}
}

// linkRun links the run to the one that it comes from.
func (t *tracer) linkRun(run string) {
	if run != "" {
		t.root.setText(attrParentRun, run)
		t.root.Links = append(t.root.Links, spanLink{traceOf(run), rootOf(run)})
	}
}

func (t *tracer) beginNode(e *wire.Event, p *wire.NodeStart) {
	x := t.exec(e)
	if x.span != nil {
		return
	}
	var s *otlpSpan
	switch p.NodeType {
	case "agent":
		s = t.beginSpan(e, t.root.ID, opAgent, opAgent+" "+e.Node(), kindInternal)
		s.setText(attrOperation, opAgent)
		s.setText(attrAgentName, e.Node())
		x.threads[""] = &agentThread{agent: s, since: e.Timestamp}
	case "exec":
		s = t.beginSpan(e, t.root.ID, opTool, opTool+" "+e.Node(), kindInternal)
		s.setText(attrOperation, opTool)
		s.setText(attrToolName, e.Node())
		s.setText(attrToolType, toolExtension)
	default:
		s = t.beginSpan(e, t.root.ID, "node", "node "+e.Node(), kindInternal)
	}
	s.setText(attrNode, e.Node())
	s.setText(attrExec, e.ExecID)
	s.setText(attrNodeType, p.NodeType)
	s.setCount(attrAttempt, int64(p.Attempt))
	x.span = s
}

func (t *tracer) endNode(e *wire.Event, failed *wire.NodeError) {
	x := t.execs[execOf(e)]
	if x == nil || x.span == nil {
		return
	}
	t.closeExecution(x, e.Timestamp)
	if failed != nil {
		x.span.setError(failed.ErrorType, failed.Error)
	} else if x.span.Status == nil {
		x.span.Status = &spanStatus{Code: statusOK}
	}
	delete(t.execs, execOf(e))
	t.endSpan(x.span, e.Timestamp)
}

// closeExecution ends what an execution has open.
func (t *tracer) closeExecution(x *nodeExecution, at int64) {
	for _, id := range sortedKeys(x.calls) {
		x.calls[id].setFlag(attrOpen, true)
		t.endSpan(x.calls[id], at)
	}
	clear(x.calls)
	x.tellSpending()
	for _, parent := range sortedKeys(x.threads) {
		t.endThread(x, parent, at)
	}
	clear(x.threads)
}

// tellSpending says on the span of the execution what all its model calls used and cost.
func (x *nodeExecution) tellSpending() {
	u := x.spent
	if x.span == nil || u == (wire.Spending{}) {
		return
	}
	x.span.setCount(attrInputTokens, ledger.TokensIn(u))
	x.span.setCount(attrOutputTokens, u.OutputTokens)
	x.span.setCount(attrCacheCreation, u.CacheCreationInputTokens)
	x.span.setCount(attrCacheRead, u.CacheReadInputTokens)
	if basis := ledger.Basis(u.CostUsd, u.ComputedUsd, u.Unpriced); basis != "" {
		x.span.setText(attrCostBasis, basis)
		if u.CostUsd > 0 || basis != wire.CostPartly { // else nothing is known
			x.span.setCost(&u.CostUsd)
		}
	}
}

// endThread ends an agent's call of the model, and a sub-agent.
func (t *tracer) endThread(x *nodeExecution, parent string, at int64) {
	h := x.threads[parent]
	if h == nil {
		return
	}
	t.endChat(h)
	if h.agent != x.span && !h.over {
		h.over = true
		t.endSpan(h.agent, at)
	}
}

func (t *tracer) endChat(h *agentThread) {
	if h.chat != nil {
		t.endSpan(h.chat, int64(h.chat.End))
		h.chat = nil
	}
}

// threadOf returns the agent that an event is of. What follows the end of a sub-agent, such
// as its last usage, is still its own.
func (t *tracer) threadOf(x *nodeExecution, e *wire.Event, step conversation.Step) *agentThread {
	if h := x.threads[e.Parent]; h != nil && (!h.over || !step.Opened) {
		return h
	}
	parent := t.root
	if x.span != nil {
		parent = x.span
	}
	name := e.Node()
	if e.Parent != "" {
		if c := x.calls[e.Parent]; c != nil {
			parent = c
		}
		name = "sub-agent"
	}
	s := t.beginSpan(e, parent.ID, opAgent, opAgent+" "+name, kindInternal)
	s.setText(attrOperation, opAgent)
	s.setText(attrAgentName, name)
	s.setText(attrAgentID, e.AgentID)
	s.setText(attrNode, e.Node())
	s.setText(attrExec, e.ExecID)
	h := &agentThread{agent: s, since: e.Timestamp}
	x.threads[e.Parent] = h
	switch own := x.threads[""]; {
	case e.Parent == "":
		x.span = s
		if t.forked { // its beginning is the parent's: here it goes on from the fork on
			s.Start = t.root.Start
		}
	case own != nil:
		h.provider = own.provider
		s.setText(attrProvider, h.provider)
	}
	return h
}

// addAgentEvent takes what agents and commands do.
func (t *tracer) addAgentEvent(x *nodeExecution, e *wire.Event, step conversation.Step) {
	h := func() *agentThread { return t.threadOf(x, e, step) }
	entries := x.account.Apply(e)
	for _, entry := range entries {
		x.spent = ledger.Add(x.spent, entry.Spending)
	}
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		t.startAgent(h(), e, p)
	case *wire.AgentInit:
		h().agent.setText(attrAgentVersion, p.Version)
		h().agent.setText(attrRequestModel, p.Model)
	case *wire.TurnStart:
		h := h()
		t.endChat(h)
		h.since = e.Timestamp // the answer begins
		t.beginChat(h, e)
		h.chat.setText(attrResponseModel, p.Model)
	case *wire.AgentTextDelta, *wire.AgentText, *wire.AgentThinkingDelta, *wire.AgentThinking:
		t.continueChat(h(), e)
	case *wire.UserMessage:
		h().since = e.Timestamp
	case *wire.ToolIntent:
		t.continueChat(h(), e)
		x.calls[e.CallID] = t.beginCall(h(), e, step.Call)
	case *wire.Usage:
		if len(entries) > 0 { // else it is told again
			t.addUsage(h(), e, p)
		}
	case *wire.AgentError:
		if p.Severity == wire.SeverityError || p.Severity == wire.SeverityCritical {
			h().agent.setError(p.ErrorType, p.Message)
		}
	case *wire.AgentComplete:
		h().agent.setFinish(p.StopReason)
	case *wire.SessionBound:
		h().agent.setText(attrConversation, p.NewSession)
	case *wire.ExecExit:
		if p.ExitCode != 0 && x.span != nil {
			x.span.setError("exit", "exit code "+strconv.FormatInt(p.ExitCode, 10))
		}
	}
	if step.Closed != nil {
		t.endThread(x, step.Closed.Parent, e.Timestamp)
	}
	if step.Result != nil {
		t.finishCall(x, h(), e, step)
	}
}

func (t *tracer) startAgent(h *agentThread, e *wire.Event, p *wire.AgentStart) {
	h.agent.setText(attrConversation, e.SessionID)
	h.agent.setText(attrRequestModel, p.Model)
	if h.provider = p.Provider; p.Provider == "claude" || p.Provider == "ingest" {
		h.provider = providerAnthropic
	}
	h.agent.setText(attrProvider, h.provider)
}

// beginChat opens a call of the model.
func (t *tracer) beginChat(h *agentThread, e *wire.Event) {
	h.chat = t.beginSpan(e, h.agent.ID, opChat, opChat, kindClient)
	h.chat.Start = nanos(min(h.since, e.Timestamp))
	h.chat.End = h.chat.Start
	h.counted = false
	h.chat.setText(attrOperation, opChat)
	h.chat.setText(attrProvider, h.provider)
	h.chat.setText(attrConversation, e.SessionID)
	h.chat.setCount(attrTurn, int64(e.Turn))
}

// continueChat notes that the model goes on. Behind its usage a call is over.
func (t *tracer) continueChat(h *agentThread, e *wire.Event) {
	if h.chat == nil || h.counted && e.Turn == 0 {
		t.endChat(h)
		t.beginChat(h, e)
	}
	h.chat.End = max(h.chat.End, nanos(e.Timestamp))
}

func (t *tracer) addUsage(h *agentThread, e *wire.Event, p *wire.Usage) {
	if h.chat == nil || h.chat.placeOf(attrResponseID) >= 0 {
		t.endChat(h)
		t.beginChat(h, e)
	}
	c := h.chat
	h.counted = true
	c.setText(attrResponseID, p.MessageID)
	c.setText(attrResponseModel, p.Model)
	if p.Model != "" {
		c.Name = opChat + " " + p.Model
		c.setText(attrRequestModel, p.Model)
	}
	c.setCount(attrInputTokens, p.InputTokens+wire.ValueOf(p.CacheCreationInputTokens)+wire.ValueOf(p.CacheReadInputTokens))
	c.setCount(attrOutputTokens, p.OutputTokens)
	c.setCount(attrCacheCreation, wire.ValueOf(p.CacheCreationInputTokens))
	c.setCount(attrCacheRead, wire.ValueOf(p.CacheReadInputTokens))
	c.setFinish(p.StopReason)
	c.setCost(p.CostUsd)
}

func (t *tracer) beginCall(h *agentThread, e *wire.Event, call conversation.Call) *otlpSpan {
	s := t.beginSpan(e, h.agent.ID, opTool, opTool+" "+call.Tool, kindInternal)
	s.setText(attrOperation, opTool)
	s.setText(attrToolName, call.Tool)
	s.setText(attrToolType, toolFunction)
	s.setText(attrToolCall, e.CallID)
	if t.options.Content {
		s.setText(attrToolArguments, call.Input.Plain())
	}
	return s
}

// finishCall ends a call; its beginning needn't be in what is exported.
func (t *tracer) finishCall(x *nodeExecution, h *agentThread, e *wire.Event, step conversation.Step) {
	p := step.Result
	s := x.calls[e.CallID]
	if s == nil {
		s = t.beginCall(h, e, step.Call)
		s.Start = nanos(e.Timestamp - wire.ValueOf(p.DurationMs))
	}
	delete(x.calls, e.CallID)
	h.since = e.Timestamp
	s.setFlag(attrDenied, p.Denied)
	if t.options.Content {
		s.setText(attrToolResult, p.ToolOutput.Plain())
	}
	switch {
	case p.Error == "":
		s.Status = &spanStatus{Code: statusOK}
	case t.options.Content: // it is what the tool gave
		s.setError("", p.Error)
	default:
		s.setError("", "the call failed")
	}
	t.endSpan(s, e.Timestamp)
}

// finishRun sends what is still open, ended at the last event, and the run.
func (t *tracer) finishRun() error {
	if t.root == nil {
		return nil
	}
	for _, exec := range sortedKeys(t.execs) {
		x := t.execs[exec]
		t.closeExecution(x, t.at)
		if x.span != nil {
			x.span.setFlag(attrOpen, true)
			t.endSpan(x.span, t.at)
		}
	}
	t.root.setFlag(attrOpen, !t.ended)
	if t.ended && t.root.Status == nil {
		t.root.Status = &spanStatus{Code: statusOK}
	}
	if t.ended {
		t.at = t.endAt
	}
	t.endSpan(t.root, t.at)
	return t.sendReady()
}

// The rest of a request's body.
type (
	traces struct {
		ResourceSpans []resourceSpans `json:"resourceSpans"`
	}
	resourceSpans struct {
		Resource   resource     `json:"resource"`
		ScopeSpans []scopeSpans `json:"scopeSpans"`
		SchemaURL  string       `json:"schemaUrl"`
	}
	resource struct {
		Attributes []attribute `json:"attributes"`
	}
	scopeSpans struct {
		Scope     scope       `json:"scope"`
		Spans     []*otlpSpan `json:"spans"`
		SchemaURL string      `json:"schemaUrl"`
	}
	scope struct {
		Name string `json:"name"`
	}
)

func (t *tracer) sendReady() error {
	if len(t.ready) == 0 {
		return nil
	}
	body, err := json.Marshal(traces{[]resourceSpans{{
		Resource:   resource{[]attribute{{attrService, textValue(scopeName)}, {attrServiceID, textValue(t.run.Incarnation)}}},
		ScopeSpans: []scopeSpans{{Scope: scope{scopeName}, Spans: t.ready, SchemaURL: schemaURL}},
		SchemaURL:  schemaURL,
	}}})
	if err != nil {
		return err
	}
	t.result.Written += len(t.ready)
	t.ready = nil
	return t.send(body)
}

// Endpoint takes spans by OTLP/HTTP in JSON.
type Endpoint struct {
	URL    string // such as http://localhost:4318/v1/traces
	Header http.Header
	Client *http.Client
}

// How often and how long is tried.
const (
	postTries = 5
	postWait  = 30 * time.Second // for one answer
	postPause = time.Second      // before the second try; then twice as long each time
)

// maxAnswer is how much of an answer is read.
const maxAnswer = 64 << 10

// Post sends one body. What the endpoint can't take at the moment (429, 502, 503,
// 504, no connection) is sent again, after the pause that it asks for. It fails
// if the endpoint refuses the body or some of its spans.
func (p Endpoint) Post(ctx context.Context, body []byte) error {
	pause := postPause
	for try := 1; ; try++ {
		again, after, err := p.postOnce(ctx, body)
		if err == nil || !again || try == postTries {
			return err
		}
		select {
		case <-time.After(max(pause, after)):
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", ctx.Err(), err)
		}
		pause *= 2
	}
}

func (p Endpoint) postOnce(ctx context.Context, body []byte) (again bool, after time.Duration, err error) {
	wait, cancel := context.WithTimeout(ctx, postWait)
	defer cancel()
	req, err := http.NewRequestWithContext(wait, http.MethodPost, p.URL, bytes.NewReader(body))
	if err != nil {
		return false, 0, err
	}
	maps.Copy(req.Header, p.Header)
	req.Header.Set("Content-Type", "application/json")
	client := *p.Client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // another host isn't who the headers are for
	answer, err := client.Do(req)
	if err != nil {
		return ctx.Err() == nil, 0, err
	}
	defer answer.Body.Close() //nolint:errcheck // was read
	said, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return true, 0, fmt.Errorf("read the answer: %w", err)
	}
	switch answer.StatusCode {
	case http.StatusOK, http.StatusAccepted:
		if kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")); kind == "text/html" {
			return false, 0, fmt.Errorf("%s answers with a page: it is no endpoint of OTLP", req.URL.Redacted())
		}
		return false, 0, partialError(said)
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
	after = min(time.Duration(max(0, seconds))*time.Second, time.Minute)
	return again, after, fmt.Errorf("%s answers %s: %.500q", req.URL.Redacted(), answer.Status, said)
}

// partialError is the error of an endpoint that took some of the spans only.
func partialError(said []byte) error {
	var a struct {
		Partial struct {
			Rejected json.Number `json:"rejectedSpans"`
			Message  string      `json:"errorMessage"`
		} `json:"partialSuccess"`
	}
	err := json.Unmarshal(said, &a)
	if n, _ := a.Partial.Rejected.Int64(); err == nil && n > 0 { // else it is some answer in words
		return fmt.Errorf("the endpoint rejected %d spans: %.500s", n, a.Partial.Message)
	}
	return nil
}
