package native

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/anthropics/anthropic-sdk-go/packages/param"

	"code.wake.dev/wake/pkg/wire"
)

// messagesAPI is Anthropic's Messages API.
type messagesAPI struct{ client anthropic.Client }

// newMessagesAPI returns the API at base, "" for Anthropic's own, with a key or a token.
func newMessagesAPI(client *http.Client, base, key, token string) *messagesAPI {
	options := []option.RequestOption{
		option.WithoutEnvironmentDefaults(), option.WithHTTPClient(client), option.WithMaxRetries(0),
		option.WithBaseURL(cmp.Or(base, "https://api.anthropic.com")),
	}
	if key != "" {
		options = append(options, option.WithAPIKey(key))
	}
	if token != "" {
		options = append(options, option.WithAuthToken(token))
	}
	return &messagesAPI{client: anthropic.NewClient(options...)}
}

func (a *messagesAPI) modelLimits(ctx context.Context, name string) (limits, error) {
	info, err := a.client.Models.Get(ctx, name, anthropic.ModelGetParams{})
	if err != nil {
		return limits{}, err
	}
	return limits{context: info.MaxInputTokens, output: info.MaxTokens}, nil
}

func (a *messagesAPI) streamAnswer(ctx context.Context, q modelQuestion, tell func(streamPiece) error) (modelAnswer, error) {
	params, err := q.messageParams()
	if err != nil {
		return modelAnswer{}, err
	}
	stream := a.client.Messages.NewStreaming(ctx, params)
	defer func() { _ = stream.Close() }()
	var m assembly
	for stream.Next() {
		q.heard()
		if err := m.takeEvent(stream.Current(), tell); err != nil {
			return modelAnswer{}, err
		}
	}
	switch err := stream.Err(); {
	case err != nil && m.begun:
		return m.toAnswer(), fromSDK(err)
	case err != nil:
		return modelAnswer{}, fromSDK(err)
	case !m.whole:
		return modelAnswer{}, errBroken
	}
	return m.toAnswer(), nil
}

// fromSDK makes an [apiError] of an error of the SDK, if it is the API's.
func fromSDK(err error) error {
	e, ok := errors.AsType[*anthropic.Error](err)
	if !ok {
		return err
	}
	var body struct {
		Error struct{ Type, Message string }
	}
	message := ""
	if json.Unmarshal([]byte(e.RawJSON()), &body) == nil {
		message = body.Error.Message
	}
	header := http.Header{}
	if e.Response != nil {
		header = e.Response.Header
	}
	return newAPIError(e.StatusCode, cmp.Or(string(e.Type()), body.Error.Type), cmp.Or(message, http.StatusText(e.StatusCode), e.Error()), header)
}

// messageParams is the request. Messages are sent as they are on record.
func (q modelQuestion) messageParams() (anthropic.MessageNewParams, error) {
	cached := anthropic.NewCacheControlEphemeralParam()
	p := anthropic.MessageNewParams{
		Model: q.model, MaxTokens: q.maxTokens, CacheControl: cached,
		System: []anthropic.TextBlockParam{{Text: q.system, CacheControl: cached}},
	}
	for _, m := range q.messages {
		p.Messages = append(p.Messages, param.Override[anthropic.MessageParam](m.toJSON()))
	}
	for _, t := range q.tools {
		p.Tools = append(p.Tools, anthropic.ToolUnionParam{OfTool: &anthropic.ToolParam{
			Name: t.name, Description: anthropic.String(t.description),
			InputSchema: param.Override[anthropic.ToolInputSchemaParam](jsonOf(t.schema)),
		}})
	}
	switch q.thinking {
	case "":
	case "adaptive":
		p.Thinking = anthropic.ThinkingConfigParamUnion{OfAdaptive: &anthropic.ThinkingConfigAdaptiveParam{}}
	default:
		budget, err := strconv.ParseInt(q.thinking, 10, 64)
		if err != nil {
			return p, err
		}
		p.Thinking = anthropic.ThinkingConfigParamOfEnabled(budget)
	}
	if schema, ok := q.schema.Any().(map[string]any); ok {
		p.OutputConfig.Format = anthropic.JSONOutputFormatParam{Schema: schema}
	}
	p.OutputConfig.Effort = anthropic.OutputConfigEffort(q.effort)
	return p, nil
}

func (m message) toJSON() json.RawMessage {
	return jsonOf(wire.RawOf(map[string]any{"role": m.role, "content": m.blocks}))
}

// assembly puts a streamed message together.
type assembly struct {
	id, model, stop string
	parts           []streamBlock
	usage           wire.Usage
	hour            int64 // of the tokens written into the cache, those that are kept for an hour
	begun, whole    bool
}

// streamBlock is a block that is being streamed.
type streamBlock struct {
	index                 int64
	kind, id, name        string
	text, thinking, input []byte
	signature             []byte
	raw                   string // the block as it began
}

func (m *assembly) takeEvent(e anthropic.MessageStreamEventUnion, tell func(streamPiece) error) error {
	switch e.Type {
	case "message_start":
		m.begun, m.id, m.model = true, e.Message.ID, e.Message.Model
		u := e.Message.Usage
		m.hour = u.CacheCreation.Ephemeral1hInputTokens
		m.usage = wire.Usage{
			InputTokens: u.InputTokens, OutputTokens: u.OutputTokens,
			CacheCreationInputTokens: &u.CacheCreationInputTokens, CacheReadInputTokens: &u.CacheReadInputTokens,
		}
		return tell(streamPiece{})
	case "content_block_start":
		b := e.ContentBlock
		m.parts = append(m.parts, streamBlock{index: e.Index, kind: b.Type, id: b.ID, name: b.Name, raw: b.RawJSON()})
		return m.growPart(e.Index, b.Text, b.Thinking, tell)
	case "content_block_delta":
		if p := m.partAt(e.Index); p != nil {
			p.input = append(p.input, e.Delta.PartialJSON...)
			p.signature = append(p.signature, e.Delta.Signature...)
		}
		return m.growPart(e.Index, e.Delta.Text, e.Delta.Thinking, tell)
	case "message_delta":
		m.stop = string(e.Delta.StopReason)
		m.usage.OutputTokens = max(m.usage.OutputTokens, e.Usage.OutputTokens)
		m.usage.InputTokens = max(m.usage.InputTokens, e.Usage.InputTokens)
	case "message_stop":
		m.whole = m.begun
	}
	return nil
}

func (m *assembly) partAt(index int64) *streamBlock {
	for i := range m.parts {
		if m.parts[i].index == index {
			return &m.parts[i]
		}
	}
	return nil
}

func (m *assembly) growPart(index int64, text, thinking string, tell func(streamPiece) error) error {
	p := m.partAt(index)
	if p == nil {
		return nil
	}
	p.text, p.thinking = append(p.text, text...), append(p.thinking, thinking...)
	switch {
	case text != "":
		return tell(streamPiece{block: int(index), text: text})
	case thinking != "":
		return tell(streamPiece{block: int(index), thinking: true, text: thinking})
	}
	return nil
}

func (m *assembly) toAnswer() modelAnswer {
	a := modelAnswer{id: m.id, model: m.model, stop: m.stop, usage: m.usage, hour: m.hour}
	for _, p := range m.parts {
		if b := p.toBlock(); b != nil {
			a.blocks = append(a.blocks, b)
		}
	}
	a.blocks = dropCutCall(a.stop, a.blocks)
	u := &a.usage
	u.MessageID, u.Model, u.StopReason = a.id, a.model, a.stop
	u.ContextTokens = u.InputTokens + *u.CacheCreationInputTokens + *u.CacheReadInputTokens
	return a
}

// toBlock returns the block as the next prompt repeats it. A text without a word is
// none: the API refuses it.
func (p *streamBlock) toBlock() wire.Raw {
	switch p.kind {
	case "text":
		if len(bytes.TrimSpace(p.text)) == 0 {
			return nil
		}
		return textBlock(string(p.text))
	case "thinking":
		return wire.RawOf(map[string]any{"type": "thinking", "thinking": string(p.thinking), "signature": string(p.signature)})
	case "tool_use":
		return toolUse(p.id, p.name, string(p.input))
	}
	raw, err := wire.RawFromJSON([]byte(p.raw))
	if err != nil {
		return nil
	}
	return raw
}
