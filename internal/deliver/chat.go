package deliver

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/nicholas-fedor/shoutrrr/pkg/router"
	"github.com/nicholas-fedor/shoutrrr/pkg/types"

	"code.wake.dev/wake/internal/timeline"
)

// chat sends texts to chat and push services.
type chat struct {
	url     string
	service types.Service // nil until it is needed: some call home to begin with
	running chan error    // outcome of the call that goes on; nil: none does
	id      string        // what it sends
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
// is one call at a time.
func (c *chat) sendNotification(ctx context.Context, n Notification) error {
	if c.running != nil {
		old := c.id
		if err := c.awaitOutcome(ctx); errors.Is(err, context.DeadlineExceeded) || old == n.ID && err == nil {
			return err
		}
	}
	c.running, c.id = make(chan error, 1), n.ID
	text := n.Text
	if n.link != "" {
		text += "\n" + n.link
	}
	go func(done chan<- error) { done <- c.callService(text) }(c.running)
	return c.awaitOutcome(ctx)
}

func (c *chat) awaitOutcome(ctx context.Context) error {
	select {
	case err := <-c.running:
		c.running = nil
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// callService is the one that runs, so it has the service to itself.
func (c *chat) callService(text string) error {
	if c.service == nil {
		var r router.ServiceRouter
		s, err := r.Locate(c.url)
		if err != nil {
			return err
		}
		c.service = s
	}
	return c.service.Send(Harmless(text), &types.Params{})
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
