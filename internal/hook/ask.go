package hook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	"code.wake.dev/wake/internal/process"
)

// maxAnswer bounds an answer in bytes.
const maxAnswer = 1 << 20

var errTooLong = fmt.Errorf("its answer is longer than %d bytes", maxAnswer)

// askHook asks one hook. The exit code is that of a command that has exited.
func (s *Set) askHook(ctx context.Context, number int, e Event) (o Outcome, exit *int64, err error) {
	h := &s.hooks[number]
	limit := h.timeLimit()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it didn't answer within %s", limit))
	defer cancel()
	question, err := s.encodeQuestion(e)
	if err != nil {
		return o, nil, fmt.Errorf("question: %w", err)
	}
	var text []byte
	switch {
	case len(h.Command) > 0:
		return s.runCommand(ctx, h, programOf(e, number, question), question)
	case h.URL != "":
		text, err = s.postQuestion(ctx, h.URL, question)
	case s.cfg.Ask == nil:
		err = errors.New("this agent has no way to ask a NATS subject")
	default:
		text, err = s.cfg.Ask(ctx, h.Subject, question)
	}
	if err == nil && len(text) > maxAnswer {
		err = errTooLong
	}
	if err != nil {
		return o, nil, causeOf(ctx, err)
	}
	o, err = parseAnswer(e.Name, text)
	return o, nil, err
}

// programOf names the command of a hook that is asked about a call, so that its answer is heard by whichever
// runner goes on with the agent. Other commands end with their runner. What it is asked is in the name: the id may be that of an earlier
// call, which was rolled back.
func programOf(e Event, number int, question []byte) string {
	if e.ToolUseID == "" {
		return ""
	}
	sum := sha256.Sum256(question)
	return fmt.Sprintf("hook/%s/%s/%d/%x", e.ToolUseID, e.Name, number, sum[:8])
}

// causeOf returns why something was given up, if it was.
func causeOf(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// directClient returns a client that follows no redirection: a hook is what the flow says.
func directClient(c *http.Client) *http.Client {
	if c == nil {
		c = http.DefaultClient
	}
	d := *c
	d.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &d
}

func (s *Set) postQuestion(ctx context.Context, address string, question []byte) ([]byte, error) {
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

// runCommand runs a command and everything it starts, until it exits: it gets the question
// on its input and answers on its output. One that was asked before its runner ended is heard to its end.
func (s *Set) runCommand(ctx context.Context, h *hook, name string, question []byte) (o Outcome, exit *int64, err error) {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	p, err := s.cfg.Host.Start(process.Config{Name: name, Argv: h.Command, Dir: s.cfg.Dir, Env: s.cfg.Env, Journal: true, KeepStderr: true})
	if err != nil {
		return o, nil, err
	}
	d := dialogue{process: p, question: question, tooLong: func() { giveUp(errTooLong) }}
	var pipes sync.WaitGroup
	pipes.Go(d.run)
	ended, err := p.Wait(ctx)
	err = errors.Join(err, p.End(grace))
	pipes.Wait()
	_ = p.Close() // its ends are closed or at their end
	switch {
	case err != nil:
		return o, nil, causeOf(ctx, err)
	case len(d.answer) > maxAnswer:
		return o, nil, errTooLong
	case ended.Lost: // and so is the agent that waits for the answer
		<-ctx.Done()
		return o, nil, context.Cause(ctx)
	case ended.Signal != "":
		return o, nil, fmt.Errorf("ended by SIG%s", ended.Signal)
	}
	code := int64(ended.Code)
	if code != 0 {
		o, err = refusalOutcome(h.Event, code, p.Words())
		return o, &code, err
	}
	o, err = parseAnswer(h.Event, d.answer)
	return o, &code, err
}

// dialogue is what is said to a command, and what it answers.
type dialogue struct {
	process  *process.Process
	question []byte
	tooLong  func() // called when the answer is

	asked  int // bytes of the question that the command was given before this Start
	answer []byte
}

// run asks what hasn't been asked yet, and hears the command to its end.
func (d *dialogue) run() {
	var asking sync.WaitGroup
	defer asking.Wait()
	for f := range d.process.Frames {
		switch f.Direction {
		case process.In:
			d.asked += len(f.Data)
		case process.Live:
			rest := d.question[min(d.asked, len(d.question)):]
			asking.Go(func() {
				_, _ = d.process.Stdin.Write(rest) // it needn't read it
				_ = d.process.Stdin.Close()
			})
		case process.Out:
			if d.answer = append(d.answer, f.Data...); len(d.answer) > maxAnswer { // what is missing is no JSON
				d.answer = d.answer[:maxAnswer+1]
				d.tooLong()
			}
		case process.Err: // it is kept
		}
	}
}
