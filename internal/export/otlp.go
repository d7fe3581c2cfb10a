package export

import (
	"encoding/hex"
	"encoding/json"
	"strconv"

	"wake/internal/eventlog"
	"wake/pkg/wire"
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
		execs: map[string]*span{}, threads: map[string]*thread{}, calls: map[string]*span{},
	}
	if err := each(&r, events, func(e *eventlog.Entry) error { return t.event(e.Event) }); err != nil {
		return r, err
	}
	return r, t.finish()
}

// traceOf is the id of a run's trace.
func traceOf(run string) string {
	sum := digest("trace", run)
	return hex.EncodeToString(sum[:16])
}

// spanOf is the id of the span that began with an event. The run's own has no
// event: whatever part of it is exported, it is the same.
func spanOf(run, node string, seq uint64, kind string) string {
	sum := digest("span", run, node, strconv.FormatUint(seq, 10), kind)
	return hex.EncodeToString(sum[:8])
}

func rootOf(run string) string { return spanOf(run, wire.RunNode, 0, opWorkflow) }

// span is a span in OTLP/JSON: ids are hexadecimal, 64-bit numbers are strings,
// enumerations are numbers.
type span struct {
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
	Key   string `json:"key"`
	Value value  `json:"value"`
}

type value struct {
	String *string  `json:"stringValue,omitempty"`
	Int    *string  `json:"intValue,omitempty"`
	Double *float64 `json:"doubleValue,omitempty"`
	Bool   *bool    `json:"boolValue,omitempty"`
	Array  *array   `json:"arrayValue,omitempty"`
}

type array struct {
	Values []value `json:"values"`
}

func text(s string) value { return value{String: &s} }

// set sets an attribute unless the value is "".
func (s *span) set(key, v string) {
	if v != "" {
		s.put(key, text(v))
	}
}

// count sets an attribute unless the number is 0.
func (s *span) count(key string, n int64) {
	if n != 0 {
		text := strconv.FormatInt(n, 10)
		s.put(key, value{Int: &text})
	}
}

func (s *span) flag(key string, v bool) {
	if v {
		s.put(key, value{Bool: &v})
	}
}

func (s *span) cost(usd *float64) {
	if usd != nil {
		s.put(attrCost, value{Double: usd})
	}
}

// put sets an attribute; the last value counts.
func (s *span) put(key string, v value) {
	for i := range s.Attributes {
		if s.Attributes[i].Key == key {
			s.Attributes[i].Value = v
			return
		}
	}
	s.Attributes = append(s.Attributes, attribute{key, v})
}

func (s *span) has(key string) bool {
	for i := range s.Attributes {
		if s.Attributes[i].Key == key {
			return true
		}
	}
	return false
}

func (s *span) fail(kind, message string) {
	if kind == "" {
		kind = errorOther
	}
	s.set(attrErrorType, kind)
	s.Status = &spanStatus{Message: message, Code: statusError}
}

// thread is an agent at work: that of an execution, or a sub-agent.
type thread struct {
	agent    *span
	chat     *span
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

	root    *span
	ended   bool
	at      int64
	execs   map[string]*span   // open, by execution
	threads map[string]*thread // by execution and parent call
	calls   map[string]*span   // open, by execution and call
	ready   []*span
}

func (t *tracer) event(e *wire.Event) error {
	t.at = max(t.at, e.Timestamp)
	if t.root == nil {
		t.root = &span{
			Trace: t.trace, ID: rootOf(t.run.ID), Name: opWorkflow, Kind: kindInternal, Start: nanos(e.Timestamp),
			Attributes: []attribute{{attrOperation, text(opWorkflow)}, {attrRun, text(t.run.ID)}},
		}
	}
	switch e.Type().Kind() {
	case wire.KindFlow:
		t.flow(e)
	default:
		t.work(e)
	}
	if len(t.ready) >= t.options.Batch {
		return t.flush()
	}
	return nil
}

// begin opens a span that began with an event.
func (t *tracer) begin(e *wire.Event, parent, kind, name string, as int) *span {
	return &span{
		Trace: t.trace, ID: spanOf(t.run.ID, e.NodeID, e.Seq, kind), Parent: parent,
		Name: name, Kind: as, Start: nanos(e.Timestamp),
	}
}

// done ends a span.
func (t *tracer) done(s *span, at int64) {
	s.End = max(nanos(at), s.Start)
	t.ready = append(t.ready, s)
}

// flow takes what happens to the run and its nodes.
func (t *tracer) flow(e *wire.Event) {
	switch p := e.Payload.(type) {
	case *wire.FlowStart:
		t.root.Name = opWorkflow + " " + p.FlowName
		t.root.set(attrWorkflow, p.FlowName)
		t.root.set(attrImported, p.Imported)
		t.follows(p.ParentRun)
		t.ended = false
	case *wire.RunForked:
		t.follows(p.ParentRun)
	case *wire.FlowComplete:
		t.root.set(attrStatus, string(p.Status))
		if p.Status == wire.FlowStatusFailed {
			t.root.fail("", p.Error)
		}
		t.ended = true
	case *wire.FlowAborted:
		t.root.set(attrStatus, "aborted")
		t.root.fail("aborted", p.Reason)
		t.ended = true
	case *wire.NodeStart:
		t.node(e, p)
	case *wire.NodeComplete:
		t.endNode(e, nil)
	case *wire.NodeError:
		t.endNode(e, p)
	case *wire.NodeCancelled:
		t.endNode(e, &wire.NodeError{ErrorType: "cancelled", Error: p.Reason})
	}
}

// follows links the run to the one that it comes from.
func (t *tracer) follows(run string) {
	if run != "" {
		t.root.set(attrParentRun, run)
		t.root.Links = append(t.root.Links, spanLink{traceOf(run), rootOf(run)})
	}
}

func (t *tracer) node(e *wire.Event, p *wire.NodeStart) {
	exec := execOf(e)
	if t.execs[exec] != nil {
		return
	}
	var s *span
	switch p.NodeType {
	case "agent":
		s = t.begin(e, t.root.ID, opAgent, opAgent+" "+e.Node(), kindInternal)
		s.set(attrOperation, opAgent)
		s.set(attrAgentName, e.Node())
		t.threads[exec] = &thread{agent: s, since: e.Timestamp}
	case "exec":
		s = t.begin(e, t.root.ID, opTool, opTool+" "+e.Node(), kindInternal)
		s.set(attrOperation, opTool)
		s.set(attrToolName, e.Node())
		s.set(attrToolType, toolExtension)
	default:
		s = t.begin(e, t.root.ID, "node", "node "+e.Node(), kindInternal)
	}
	s.set(attrNode, e.Node())
	s.set(attrExec, e.ExecID)
	s.set(attrNodeType, p.NodeType)
	s.count(attrAttempt, int64(p.Attempt))
	t.execs[exec] = s
}

func (t *tracer) endNode(e *wire.Event, failed *wire.NodeError) {
	exec := execOf(e)
	s := t.execs[exec]
	if s == nil {
		return
	}
	t.close(exec, e.Timestamp)
	if failed != nil {
		s.fail(failed.ErrorType, failed.Error)
	} else if s.Status == nil {
		s.Status = &spanStatus{Code: statusOK}
	}
	delete(t.execs, exec)
	t.done(s, e.Timestamp)
}

// close ends what an execution has open.
func (t *tracer) close(exec string, at int64) {
	for _, key := range sortedKeys(t.calls) {
		if c := t.calls[key]; of(key, exec) {
			c.flag(attrOpen, true)
			delete(t.calls, key)
			t.done(c, at)
		}
	}
	for _, key := range sortedKeys(t.threads) {
		if key == exec || of(key, exec) {
			t.endThread(key, at)
		}
	}
}

// of reports whether a key is one of what belongs to the execution.
func of(key, exec string) bool {
	return len(key) > len(exec) && key[:len(exec)] == exec && key[len(exec)] == '\n'
}

// keyOf names a call, or the sub-agent that it is.
func keyOf(e *wire.Event, call string) string { return execOf(e) + "\n" + call }

// endThread ends an agent's call of the model, and a sub-agent.
func (t *tracer) endThread(key string, at int64) {
	h := t.threads[key]
	delete(t.threads, key)
	t.endChat(h)
	if t.execs[execOfKey(key)] != h.agent {
		t.done(h.agent, at)
	}
}

func execOfKey(key string) string {
	for i := range len(key) {
		if key[i] == '\n' {
			return key[:i]
		}
	}
	return key
}

func (t *tracer) endChat(h *thread) {
	if h.chat != nil {
		t.done(h.chat, int64(h.chat.End))
		h.chat = nil
	}
}

// threadOf returns the agent that an event is of.
func (t *tracer) threadOf(e *wire.Event) *thread {
	key := execOf(e)
	if e.Parent != "" {
		key = keyOf(e, e.Parent)
	}
	if h := t.threads[key]; h != nil {
		return h
	}
	parent := t.root
	if s := t.execs[execOf(e)]; s != nil {
		parent = s
	}
	name := e.Node()
	if e.Parent != "" {
		if c := t.calls[key]; c != nil {
			parent = c
		}
		name = "sub-agent"
	}
	s := t.begin(e, parent.ID, opAgent, opAgent+" "+name, kindInternal)
	s.set(attrOperation, opAgent)
	s.set(attrAgentName, name)
	s.set(attrAgentID, e.AgentID)
	s.set(attrNode, e.Node())
	s.set(attrExec, e.ExecID)
	h := &thread{agent: s, since: e.Timestamp}
	t.threads[key] = h
	switch of := t.threads[execOf(e)]; {
	case e.Parent == "":
		t.execs[execOf(e)] = s
	case of != nil:
		h.provider = of.provider
		s.set(attrProvider, h.provider)
	}
	return h
}

// work takes what agents and commands do.
func (t *tracer) work(e *wire.Event) {
	switch p := e.Payload.(type) {
	case *wire.AgentStart:
		t.start(t.threadOf(e), e, p)
	case *wire.AgentInit:
		h := t.threadOf(e)
		h.agent.set(attrAgentVersion, p.Version)
		h.agent.set(attrRequestModel, p.Model)
	case *wire.TurnStart:
		h := t.threadOf(e)
		t.endChat(h)
		h.since = e.Timestamp // the answer begins
		t.chat(h, e)
		h.chat.set(attrResponseModel, p.Model)
	case *wire.AgentTextDelta, *wire.AgentText, *wire.AgentThinkingDelta, *wire.AgentThinking:
		t.content(t.threadOf(e), e)
	case *wire.UserMessage:
		t.threadOf(e).since = e.Timestamp
	case *wire.ToolIntent:
		t.content(t.threadOf(e), e)
		t.intent(e, p)
	case *wire.AgentTool:
		t.tool(e, p)
	case *wire.Usage:
		t.usage(t.threadOf(e), e, p)
	case *wire.AgentError:
		if p.Severity == wire.SeverityError || p.Severity == wire.SeverityCritical {
			t.threadOf(e).agent.fail(p.ErrorType, p.Message)
		}
	case *wire.AgentComplete:
		t.complete(t.threadOf(e).agent, p)
	case *wire.SessionBound:
		t.threadOf(e).agent.set(attrConversation, p.NewSession)
	case *wire.ExecExit:
		t.exit(e, p)
	}
}

func (t *tracer) start(h *thread, e *wire.Event, p *wire.AgentStart) {
	h.agent.set(attrConversation, e.SessionID)
	h.agent.set(attrRequestModel, p.Model)
	if p.Provider == "claude" || p.Provider == "ingest" {
		h.provider = providerAnthropic
	} else {
		h.provider = p.Provider
	}
	h.agent.set(attrProvider, h.provider)
}

// chat opens a call of the model.
func (t *tracer) chat(h *thread, e *wire.Event) {
	h.chat = t.begin(e, h.agent.ID, opChat, opChat, kindClient)
	h.chat.Start = nanos(min(h.since, e.Timestamp))
	h.chat.End = h.chat.Start
	h.counted = false
	h.chat.set(attrOperation, opChat)
	h.chat.set(attrProvider, h.provider)
	h.chat.set(attrConversation, e.SessionID)
	h.chat.count(attrTurn, int64(e.Turn))
}

// content notes that the model goes on. Behind its usage a call is over.
func (t *tracer) content(h *thread, e *wire.Event) {
	if h.chat == nil || h.counted && e.Turn == 0 {
		t.endChat(h)
		t.chat(h, e)
	}
	h.chat.End = max(h.chat.End, nanos(e.Timestamp))
}

func (t *tracer) usage(h *thread, e *wire.Event, p *wire.Usage) {
	if h.chat == nil || h.chat.has(attrResponseID) {
		t.endChat(h)
		t.chat(h, e)
	}
	c := h.chat
	h.counted = true
	c.set(attrResponseID, p.MessageID)
	c.set(attrResponseModel, p.Model)
	if p.Model != "" {
		c.Name = opChat + " " + p.Model
		c.set(attrRequestModel, p.Model)
	}
	c.count(attrInputTokens, p.InputTokens+amount(p.CacheCreationInputTokens)+amount(p.CacheReadInputTokens))
	c.count(attrOutputTokens, p.OutputTokens)
	c.count(attrCacheCreation, amount(p.CacheCreationInputTokens))
	c.count(attrCacheRead, amount(p.CacheReadInputTokens))
	if p.StopReason != "" {
		c.put(attrFinishReasons, value{Array: &array{[]value{text(p.StopReason)}}})
	}
	c.cost(p.CostUsd)
}

func (t *tracer) intent(e *wire.Event, p *wire.ToolIntent) {
	s := t.begin(e, t.threadOf(e).agent.ID, opTool, opTool+" "+p.ToolName, kindInternal)
	t.describe(s, e, p.ToolName, p.ToolInput)
	t.calls[keyOf(e, e.CallID)] = s
}

func (t *tracer) describe(s *span, e *wire.Event, tool string, input wire.Raw) {
	s.set(attrOperation, opTool)
	s.set(attrToolName, tool)
	s.set(attrToolType, toolFunction)
	s.set(attrToolCall, e.CallID)
	if t.options.Content {
		s.set(attrToolArguments, plain(input))
	}
}

func (t *tracer) tool(e *wire.Event, p *wire.AgentTool) {
	key := keyOf(e, e.CallID)
	s := t.calls[key]
	if s == nil { // its beginning isn't in what is exported
		s = t.begin(e, t.threadOf(e).agent.ID, opTool, opTool+" "+p.ToolName, kindInternal)
		s.Start = nanos(e.Timestamp - amount(p.DurationMs))
		t.describe(s, e, p.ToolName, p.ToolInput)
	}
	delete(t.calls, key)
	t.threadOf(e).since = e.Timestamp
	if t.threads[key] != nil { // the sub-agent that it was
		t.endThread(key, e.Timestamp)
	}
	s.flag(attrDenied, p.Denied)
	if t.options.Content {
		s.set(attrToolResult, plain(p.ToolOutput))
	}
	if p.Error != "" {
		s.fail("", p.Error)
	} else {
		s.Status = &spanStatus{Code: statusOK}
	}
	t.done(s, e.Timestamp)
}

func (t *tracer) complete(s *span, p *wire.AgentComplete) {
	u := p.Usage
	s.count(attrInputTokens, u.InputTokens+amount(u.CacheCreationInputTokens)+amount(u.CacheReadInputTokens))
	s.count(attrOutputTokens, u.OutputTokens)
	s.count(attrCacheCreation, amount(u.CacheCreationInputTokens))
	s.count(attrCacheRead, amount(u.CacheReadInputTokens))
	s.cost(p.TotalCostUsd)
	if p.StopReason != "" {
		s.put(attrFinishReasons, value{Array: &array{[]value{text(p.StopReason)}}})
	}
}

func (t *tracer) exit(e *wire.Event, p *wire.ExecExit) {
	if s := t.execs[execOf(e)]; s != nil && p.ExitCode != 0 {
		s.fail("exit", "exit code "+strconv.FormatInt(p.ExitCode, 10))
	}
}

// plain is a value as text: itself if it is text, else JSON.
func plain(v wire.Raw) string {
	if s, is := v.Text(); is {
		return s
	}
	b, err := wire.AppendJSON(nil, v)
	if err != nil {
		return ""
	}
	return string(b)
}

// finish sends what is still open, ended at the last event, and the run.
func (t *tracer) finish() error {
	if t.root == nil {
		return nil
	}
	for _, exec := range sortedKeys(t.execs) {
		s := t.execs[exec]
		s.flag(attrOpen, true)
		t.close(exec, t.at)
		t.done(s, t.at)
	}
	t.root.flag(attrOpen, !t.ended)
	if t.ended && t.root.Status == nil {
		t.root.Status = &spanStatus{Code: statusOK}
	}
	t.done(t.root, t.at)
	return t.flush()
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
		Scope     scope   `json:"scope"`
		Spans     []*span `json:"spans"`
		SchemaURL string  `json:"schemaUrl"`
	}
	scope struct {
		Name string `json:"name"`
	}
)

func (t *tracer) flush() error {
	if len(t.ready) == 0 {
		return nil
	}
	body, err := json.Marshal(traces{[]resourceSpans{{
		Resource:   resource{[]attribute{{attrService, text(scopeName)}, {attrServiceID, text(t.run.Incarnation)}}},
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
