package hook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	"wake/internal/process"
)

// maxAnswer bounds an answer in bytes.
const maxAnswer = 1 << 20

var errTooLong = fmt.Errorf("its answer is longer than %d bytes", maxAnswer)

// ask asks one hook. The exit code is that of a command that has exited.
func (s *Set) ask(ctx context.Context, h *hook, e Event) (o Outcome, exit *int64, err error) {
	limit := h.limit()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it didn't answer within %s", limit))
	defer cancel()
	question, err := s.question(e)
	if err != nil {
		return o, nil, fmt.Errorf("question: %w", err)
	}
	var text []byte
	switch {
	case len(h.Command) > 0:
		return s.command(ctx, h, question)
	case h.URL != "":
		text, err = s.post(ctx, h.URL, question)
	case s.cfg.Ask == nil:
		err = errors.New("this agent has no way to ask a NATS subject")
	default:
		text, err = s.cfg.Ask(ctx, h.Subject, question)
	}
	if err == nil && len(text) > maxAnswer {
		err = errTooLong
	}
	if err != nil {
		return o, nil, cause(ctx, err)
	}
	o, err = parse(e.Name, text)
	return o, nil, err
}

// cause returns why something was given up, if it was.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// direct returns a client that follows no redirection: a hook is what the flow says.
func direct(c *http.Client) *http.Client {
	if c == nil {
		c = http.DefaultClient
	}
	d := *c
	d.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &d
}

func (s *Set) post(ctx context.Context, address string, question []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(question))
	if err != nil {
		return nil, withoutAddress(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	response, err := s.cfg.Client.Do(request)
	if err != nil {
		return nil, withoutAddress(err)
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	if response.StatusCode/100 != 2 {
		return nil, fmt.Errorf("it answers with status %d", response.StatusCode)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
}

// withoutAddress keeps an address, which may hold secrets, out of the log.
func withoutAddress(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// command runs a command and everything it starts, until it exits: it gets the question
// on its input and answers on its output.
func (s *Set) command(ctx context.Context, h *hook, question []byte) (o Outcome, exit *int64, err error) {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	p, err := process.Start(process.Config{Argv: h.Command, Dir: s.cfg.Dir, Env: s.cfg.Env, KeepStderr: true})
	if err != nil {
		return o, nil, err
	}
	var text []byte
	var pipes sync.WaitGroup
	pipes.Go(func() {
		_, _ = p.Stdin.Write(question) // it needn't read it
		_ = p.Stdin.Close()
	})
	pipes.Go(func() {
		text, _ = io.ReadAll(io.LimitReader(p.Stdout, maxAnswer+1)) // what is missing is no JSON
		if len(text) > maxAnswer {
			giveUp(errTooLong)
		}
		_, _ = io.Copy(io.Discard, p.Stdout)
	})
	ended, err := p.Wait(ctx)
	err = errors.Join(err, p.End(grace))
	pipes.Wait()
	_ = p.Close() // its ends are closed or at their end
	switch {
	case err != nil:
		return o, nil, cause(ctx, err)
	case len(text) > maxAnswer:
		return o, nil, errTooLong
	case ended.Signal != "":
		return o, nil, fmt.Errorf("ended by SIG%s", ended.Signal)
	}
	code := int64(ended.Code)
	if code != 0 {
		o, err = refusal(h.Event, code, p.Words())
		return o, &code, err
	}
	o, err = parse(h.Event, text)
	return o, &code, err
}
