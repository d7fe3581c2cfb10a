package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/pkg/client"
	"code.wake.dev/wake/pkg/wire"
)

// verbSession is a verb's connection to a pipeline, for more than reading the log.
type verbSession struct {
	*client.Client

	app  *app
	conn *nats.Conn
}

// openSession connects a verb. Close the session in the end.
func (a *app) openSession(ctx context.Context) (*verbSession, error) {
	nc, err := a.connectServer(ctx)
	if err != nil {
		return nil, err
	}
	s, err := a.sessionOn(ctx, nc)
	if err != nil {
		nc.Close()
	}
	return s, err
}

func (a *app) sessionOn(ctx context.Context, nc *nats.Conn) (*verbSession, error) {
	c, err := client.Open(ctx, nc, client.Options{Names: a.names, Logger: a.log, EncryptionKeys: a.keys, Away: a.noteAway})
	if err != nil {
		return nil, err
	}
	return &verbSession{Client: c, app: a, conn: nc}, nil
}

// openRun connects a verb, and finds the run that ref means.
func (a *app) openRun(ctx context.Context, ref string) (*verbSession, string, error) {
	s, err := a.openSession(ctx)
	if err != nil {
		return nil, "", err
	}
	run, err := s.Find(ctx, ref)
	if err != nil {
		s.close()
	}
	return s, run, err
}

func (s *verbSession) close() { s.conn.Close() }

// sendOrder sends a command to the run that ref means and says what has become of
// it: done and the run, if it was accepted.
func (a *app) sendOrder(ctx context.Context, ref string, cmd wire.Command, done string) error {
	s, run, err := a.openRun(ctx, ref)
	if err != nil {
		return err
	}
	defer s.close()
	cmd.RunID = run
	return s.sendOrder(ctx, cmd, done)
}

// sendOrder sends a command and says what has become of it.
func (s *verbSession) sendOrder(ctx context.Context, cmd wire.Command, done string) error {
	r, err := s.giveCommand(ctx, cmd)
	if err != nil {
		return err
	}
	return s.reportResponse(r, done)
}

// giveCommand sends a command in the user's name. It fails if the command is rejected.
func (s *verbSession) giveCommand(ctx context.Context, cmd wire.Command) (wire.CommandResponse, error) {
	cmd.ID, cmd.By = newRunID(), senderName()
	return s.Do(ctx, cmd)
}

// reportResponse says what has become of a command that wasn't rejected.
func (s *verbSession) reportResponse(r wire.CommandResponse, done string) error {
	text := done + " run " + r.RunID
	if !r.Recorded {
		text = "queued: no runner answers; it is obeyed when one comes"
	}
	return s.app.printAnswer(r, text)
}

// senderName is the sender's name in a command.
func senderName() string {
	return strings.ToValidUTF8(cmp.Or(os.Getenv("USER"), os.Getenv("LOGNAME"), os.Getenv("USERNAME"), "cli"), "")
}

// readText is an argument that is a text, or what stdin has for "-".
func (a *app) readText(arg string) (string, error) {
	if arg == "-" {
		b, err := io.ReadAll(a.in)
		if err != nil {
			return "", fmt.Errorf("stdin: %w", err)
		}
		arg = strings.TrimSuffix(string(b), "\n")
	}
	if strings.TrimSpace(arg) == "" {
		return "", usageError("", "the message is empty")
	}
	return arg, nil
}

// overridesOf makes settings of agents of "key=value" pairs: an option of all
// agents, or an option of one after the node's id and a dot.
func (s *verbSession) overridesOf(ctx context.Context, run string, sets []string) (wire.Raw, error) {
	var nodes []string
	for _, set := range sets {
		if key, _, _ := strings.Cut(set, "="); strings.Contains(key, ".") {
			state, err := s.State(ctx, run)
			if err != nil {
				return nil, err
			}
			nodes = nodesOf(state)
			break
		}
	}
	return parseOverrides(sets, nodes)
}
