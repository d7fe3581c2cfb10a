package deliver

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Config are the settings of a [Deliverer].
type Config struct {
	// Out gets what terminal sinks print. Default: nothing is printed.
	Out io.Writer
	// Transport makes the requests of webhooks and Alertmanagers. Default: that of
	// net/http.
	Transport http.RoundTripper
	// Link is by which an alert that asks something is answered; "": by none. It may be nil.
	Link func(*wire.Alert) string
}

func newSender(c Config, s *Sink, names subjects.Names) (sender, error) {
	k, ok := sinkKinds()[s.Type]
	if !ok {
		return nil, fmt.Errorf("type %q is unknown", s.Type)
	}
	made, err := k.open(c, s, names)
	if err != nil || c.Link == nil {
		return made, err
	}
	return linker{made, c.Link}, nil
}

// linker sends alerts that ask something with the link that answers them.
type linker struct {
	sender

	link func(*wire.Alert) string
}

func (l linker) sendNotification(ctx context.Context, n Notification) error {
	if n.Alert != nil {
		n.link = l.link(n.Alert)
	}
	return l.sender.sendNotification(ctx, n)
}

// terminal prints lines.
type terminal struct{ out io.Writer }

func (t terminal) sendNotification(_ context.Context, n Notification) error {
	var b strings.Builder
	for line := range strings.SplitSeq(n.Text, "\n") {
		b.WriteString(timeline.Line(line, 2000) + "\n")
	}
	_, err := io.WriteString(t.out, b.String())
	return err
}

func (terminal) closeSender() {}

// kind is what there is to know of a type of sinks. A type of its own is an entry in [sinkKinds] and a sender.
type kind struct {
	fields   string             // that the type has, beside those of all sinks
	openHost bool               // the host of its URL may be shown
	check    func(*Sink) faults // what is wrong with such a sink, by field; nil: nothing can be
	open     func(Config, *Sink, subjects.Names) (sender, error)
}

// faults say by the name of a field what is wrong with it.
type faults map[string]string

// sinkKinds returns all types of sinks, by name.
func sinkKinds() map[string]kind {
	return map[string]kind{
		"terminal": {open: func(c Config, _ *Sink, _ subjects.Names) (sender, error) { return terminal{c.Out}, nil }},
		"webhook": {
			fields: "url secret headers", openHost: true, check: checkWebhook,
			open: func(c Config, s *Sink, names subjects.Names) (sender, error) {
				return newWebhook(c.Transport, s, names)
			},
		},
		"alertmanager": {
			fields: "url headers", openHost: true, check: checkWebhook,
			open: func(c Config, s *Sink, _ subjects.Names) (sender, error) { return newAlertmanager(c.Transport, s), nil },
		},
		"chat": {
			fields: "url", check: checkChat,
			open: func(_ Config, s *Sink, _ subjects.Names) (sender, error) { return newChat(s.URL), nil },
		},
		"exec": {
			fields: "command env", check: checkProgram,
			open: func(_ Config, s *Sink, names subjects.Names) (sender, error) { return newProgram(s, names), nil },
		},
	}
}

// checkWebhook says what is wrong with a sink that posts.
func checkWebhook(s *Sink) faults {
	found := faults{}
	if u, err := url.Parse(s.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		found["url"] = "url begins with http:// or https:// and a host"
	}
	if s.Secret == "" {
		return found
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s.Secret, "whsec_"))
	if err != nil || len(key) < 24 || len(key) > 64 {
		found["secret"] = "secret is whsec_ and 24 to 64 bytes in base64, such as `openssl rand -base64 32` gives"
	}
	return found
}

// checkChat says what is wrong with the URL of a service, as far as that can be told without asking it.
func checkChat(s *Sink) faults {
	if err := checkService(s.URL); err != nil {
		return faults{"url": s.scrubText(err.Error())}
	}
	return nil
}

// checkProgram says what is wrong with a sink that starts a program.
func checkProgram(s *Sink) faults {
	if len(s.Command) == 0 || s.Command[0] == "" {
		return faults{"command": "command is a list: the program and its arguments"}
	}
	return nil
}
