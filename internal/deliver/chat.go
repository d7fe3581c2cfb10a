package deliver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nicholas-fedor/shoutrrr/pkg/router"
	"github.com/nicholas-fedor/shoutrrr/pkg/types"

	"code.wake.dev/wake/internal/timeline"
)

// chat sends texts to chat and push services.
type chat struct {
	locate  func() (types.Service, error)
	service types.Service        // nil until it is needed: some call home to begin with
	running chan chatOutcome     // of the call that goes on; nil: none does
	id      string               // what it sends
	begun   time.Time            // when it began
	stuck   []<-chan chatOutcome // of calls that were given up
}

// chatOutcome is what a call has come to.
type chatOutcome struct {
	service types.Service // for the next call
	err     error
}

const (
	// maxChatCall is how long a call may take before the service counts as one that never answers, and another call is made: what it was to send
	// may come twice then.
	maxChatCall = 5 * time.Minute
	// maxStuck bounds the calls to a service that never answers, each of which holds a connection.
	maxStuck = 8
)

func newChat(url string) *chat {
	return &chat{locate: func() (types.Service, error) {
		var r router.ServiceRouter
		return r.Locate(url)
	}}
}

// checkService says what is wrong with a URL of a service, as far as that can be told
// without asking it.
func checkService(address string) error {
	var r router.ServiceRouter
	scheme, _, err := r.ExtractServiceName(address)
	if err != nil || scheme == "" {
		return errors.New("url is that of a service, such as slack://hook:A-B-C@webhook")
	}
	if scheme == "logger" || !slices.Contains(r.ListServices(), strings.ToLower(scheme)) {
		return errors.New("service " + scheme + " is unknown")
	}
	if scheme == "matrix" {
		return nil // it would log in
	}
	if _, err := r.Locate(address); err != nil {
		return errors.New("not a URL of " + scheme + ": " + err.Error())
	}
	return nil
}

// sendNotification sends a text. The services don't know contexts: a call that takes too long
// goes on, and its outcome is that of the next attempt if it sends the same. There
// is one call at a time, but for those that were given up.
func (c *chat) sendNotification(ctx context.Context, n Notification) error {
	if c.running != nil {
		old := c.id
		err := c.awaitOutcome(ctx)
		if errors.Is(err, context.DeadlineExceeded) && !c.giveUp() || old == n.ID && err == nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err() // the next attempt makes a new call
		}
	}
	c.running, c.id, c.begun = make(chan chatOutcome, 1), n.ID, time.Now()
	text := n.Text
	if n.link != "" {
		text += "\n" + n.link
	}
	go func(s types.Service, done chan<- chatOutcome) { done <- c.callService(s, text) }(c.service, c.running)
	return c.awaitOutcome(ctx)
}

func (c *chat) awaitOutcome(ctx context.Context) error {
	select {
	case o := <-c.running:
		c.running, c.service = nil, o.service
		return o.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// giveUp leaves a call that has taken too long to itself, unless too many are left already.
func (c *chat) giveUp() bool {
	c.stuck = slices.DeleteFunc(c.stuck, func(done <-chan chatOutcome) bool { return len(done) > 0 })
	if c.running == nil || time.Since(c.begun) < maxChatCall || len(c.stuck) >= maxStuck {
		return false
	}
	c.stuck, c.running, c.service = append(c.stuck, c.running), nil, nil
	return true
}

// callService sends a text by a service, or by one that it finds. No other call has the service meanwhile.
func (c *chat) callService(s types.Service, text string) chatOutcome {
	if s == nil {
		var err error
		if s, err = c.locate(); err != nil {
			return chatOutcome{err: err}
		}
	}
	return chatOutcome{s, s.Send(Harmless(text), &types.Params{})}
}

// closeSender leaves the call that goes on to its service: many have no bound, and no other sink waits for one that is dead.
func (*chat) closeSender() {}

// calls takes the meaning of mentions away, by a joiner that isn't seen.
var calls = strings.NewReplacer("@", "@\u2060", "<!", "<\u2060!", "<#", "<\u2060#")

// Harmless makes a text safe to send: its lines have no control characters, and
// what an agent wrote mentions no user of the chat.
func Harmless(text string) string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, timeline.Line(line, 2000))
	}
	return calls.Replace(strings.Join(lines, "\n"))
}
