package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/process"
	"code.wake.dev/wake/internal/schema"
)

// Provider runs wake's own agent. The zero value reaches no model: keys come from
// Environ.
//
//	ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN, ANTHROPIC_BASE_URL
//	OPENAI_API_KEY, OPENAI_BASE_URL     for models named openai:<model>
type Provider struct {
	User    *process.User // that its commands run as; nil: this process's own
	Environ []string      // wake's environment
	Model   string        // of agents that name none; default [DefaultModel]
	Client  *http.Client  // default: one without a time limit of its own
	Idle    time.Duration // that a stream may be silent; default 5 min
	Logger  *slog.Logger  // default: none
}

// DefaultModel is the model of agents that name none.
const DefaultModel = "claude-sonnet-4-5"

// The defaults of options.
const (
	maxTurns   = 100
	maxRetries = 3
)

// Capabilities implements [agent.Provider].
func (*Provider) Capabilities() agent.Capabilities {
	return agent.Capabilities{ResumesFromLog: true, StartsRuns: true, SaysBegin: true, Lingers: true}
}

// Start checks the request. What the agent does begins with its Events.
func (p *Provider) Start(ctx context.Context, r agent.Request) (agent.Session, error) {
	d := p.withDefaults()
	mode, err := permissionMode(r.Options)
	switch o := r.Options; {
	case err != nil:
		return nil, err
	case r.SessionID == "":
		return nil, errors.New("native: a session id is required")
	case o.Cwd == "":
		return nil, errors.New("native: a folder to work in is required")
	case thinkingText(o) != "" && thinkingText(o) != "adaptive" && !isCount(thinkingText(o)):
		return nil, fmt.Errorf("native: thinking is %s, not adaptive or a number of tokens", jsonOf(o.Thinking))
	}
	if err := checkPrices(r.Options, cmp.Or(r.Options.Model, d.Model)); err != nil {
		return nil, err
	}
	if err := schema.Check(r.Options.OutputSchema); err != nil {
		return nil, fmt.Errorf("native: outputSchema: %w", err)
	}
	return newSession(ctx, d, r, mode), nil
}

// checkPrices fails for prices that are none, and for a budget of a model without
// a known price.
func checkPrices(o agent.Options, model string) error {
	for name, price := range o.Prices {
		if err := price.Check(); err != nil {
			return fmt.Errorf("native: prices of %s: %w", name, err)
		}
	}
	if o.MaxBudgetUsd > 0 && priceOf(o, model) == nil {
		return fmt.Errorf("native: maxBudgetUsd can't be kept, since the price of %s isn't known: "+
			`give it as prices: {%q: {input: USD, output: USD}}, per million tokens, or use maxTurns`, model, model)
	}
	return nil
}

// thinkingText returns how the model is to think as a text.
func thinkingText(o agent.Options) string {
	if s, ok := o.Thinking.Text(); ok {
		return s
	}
	if len(o.Thinking) == 0 || o.Thinking.Any() == nil {
		return ""
	}
	return string(jsonOf(o.Thinking))
}

func isCount(s string) bool {
	n, err := strconv.ParseInt(s, 10, 64)
	return err == nil && n > 0
}

func (p *Provider) withDefaults() Provider {
	d := *p
	d.Model = cmp.Or(d.Model, DefaultModel)
	d.Idle = cmp.Or(d.Idle, 5*time.Minute)
	d.Client = boundAnswers(cmp.Or(d.Client, &http.Client{}))
	d.Logger = cmp.Or(d.Logger, slog.New(slog.DiscardHandler))
	return d
}

// envVar returns a variable of wake's environment.
func (p *Provider) envVar(key string) string {
	for _, kv := range p.Environ {
		if value, ok := strings.CutPrefix(kv, key+"="); ok {
			return value
		}
	}
	return ""
}

// reachModel returns the API of a model and the model's name there.
func (p *Provider) reachModel(name string) (model, string, error) {
	name = cmp.Or(name, p.Model)
	if rest, ok := strings.CutPrefix(name, "openai:"); ok {
		base, key := p.envVar("OPENAI_BASE_URL"), p.envVar("OPENAI_API_KEY")
		if base == "" && key == "" {
			return nil, "", errors.New("no OPENAI_API_KEY and no OPENAI_BASE_URL in the environment of the runner")
		}
		return &chatAPI{client: p.Client, base: strings.TrimSuffix(cmp.Or(base, "https://api.openai.com/v1"), "/"), key: key}, rest, nil
	}
	name = strings.TrimPrefix(name, "anthropic:")
	base, key, token := p.envVar("ANTHROPIC_BASE_URL"), p.envVar("ANTHROPIC_API_KEY"), p.envVar("ANTHROPIC_AUTH_TOKEN")
	if key == "" && token == "" {
		return nil, "", errors.New("no ANTHROPIC_API_KEY and no ANTHROPIC_AUTH_TOKEN in the environment of the runner")
	}
	return newMessagesAPI(p.Client, base, key, token), name, nil
}
