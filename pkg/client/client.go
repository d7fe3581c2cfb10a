// Package client lets Go programs run, resume, fork, steer and watch runs.
//
// It reads by wake.api, which a recorder answers: what it reads is what is stored. What
// it sends waits for a runner if none is up.
package client

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/oklog/ulid/v2"

	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/history"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Options are the settings of a client. Zero values are the defaults.
type Options struct {
	Names  subjects.Names // default [subjects.Default]
	Logger *slog.Logger   // default: none
	// Wait bounds how long [Client.Do] and [Client.Fork] wait for a runner.
	// Default 5 s.
	Wait time.Duration
	// EncryptionKeys is the file of keys of an installation that encrypts what events
	// carry, as `wake auth key` makes it. Default: none.
	EncryptionKeys string
	// Away is called when what follows a run gets no answer, with the reason, and with nil
	// when it goes on: it goes on by itself. Default: none.
	Away func(error)
}

// Client is a connection to an installation of wake.
type Client struct {
	reader *feed.Reader
	names  subjects.Names
	wait   time.Duration
}

// Open returns a client on a connection, which stays the caller's. It fails if no
// recorder answers.
func Open(ctx context.Context, nc *nats.Conn, o Options) (*Client, error) {
	if o.Names == (subjects.Names{}) {
		o.Names = subjects.Default
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Wait <= 0 {
		o.Wait = 5 * time.Second
	}
	var keys *seal.Keys
	if o.EncryptionKeys != "" {
		var err error
		if keys, err = seal.Load(o.EncryptionKeys); err != nil {
			return nil, err
		}
	}
	r, err := feed.Open(ctx, nc, feed.Options{Names: o.Names, Logger: o.Logger, Keys: keys, Away: o.Away})
	if err != nil {
		return nil, err
	}
	return &Client{reader: r, names: o.Names, wait: o.Wait}, nil
}

// NewID returns an id for a run or a command: a ULID in lower case.
func NewID() string { return strings.ToLower(ulid.Make().String()) }

// State returns the state of a run as of now: its snapshot, if there is one, and
// what the log has beyond it. It fails with RUN_NOT_FOUND.
func (c *Client) State(ctx context.Context, runID string) (*wire.State, error) {
	return c.StateAt(ctx, runID, 0)
}

// StateAt returns the state of a run behind a position of the log, 0 for the
// present. It fails with RUN_NOT_FOUND if the run had not begun.
func (c *Client) StateAt(ctx context.Context, runID string, pos uint64) (*wire.State, error) {
	if err := subjects.CheckID(runID); err != nil {
		return nil, &wire.APIError{Code: wire.CodeBadRequest, Message: err.Error()}
	}
	s, err := history.StateAt(ctx, c.reader, runID, pos)
	if err != nil {
		return nil, err
	}
	if s.Position.Seq == 0 {
		return nil, notFound(runID)
	}
	return s, nil
}

func notFound(runID string) *wire.APIError {
	return &wire.APIError{
		Code: wire.CodeRunNotFound, Message: fmt.Sprintf("there is no run %q", runID), Hint: "see `wake runs` for the runs there are",
	}
}

// Find returns the id of the run that ref means: an id, a unique prefix of one, a
// label, a session id, or @last. Ids that the log has need no recorder, and are
// known as soon as the run has begun. It fails with RUN_NOT_FOUND, or with
// AMBIGUOUS_ID and the matches.
func (c *Client) Find(ctx context.Context, ref string) (string, error) {
	if subjects.CheckID(ref) == nil && !strings.HasPrefix(ref, "@") {
		_, found, err := c.reader.Last(ctx, ref, wire.RunNode)
		if err != nil {
			return "", err
		}
		if found {
			return ref, nil
		}
	}
	status, err := api.Call[wire.StatusResponse](ctx, c.reader.Conn(), c.names, wire.VerbStatus, wire.StatusRequest{Run: ref})
	return status.RunID, err
}

// FindSession returns the run of an agent's session; a unique prefix of the session's
// id is enough. It fails with SESSION_NOT_FOUND, or with AMBIGUOUS_ID and the
// matches.
func (c *Client) FindSession(ctx context.Context, session string) (string, error) {
	runID, err := c.Find(ctx, session)
	if wire.HasCode(err, wire.CodeRunNotFound) {
		return "", &wire.APIError{
			Code: wire.CodeSessionNotFound, Message: fmt.Sprintf("no run has an agent with session %q", session),
			Hint: "see `wake status RUN` for the sessions of a run",
		}
	}
	return runID, err
}

// Start asks for a new run. It fails if what runs write is encrypted and the client
// lacks the key: the request would be readable. The run has begun when its flow:start is in the log, which
// may be never for a definition that no runner takes.
func (c *Client) Start(ctx context.Context, r wire.RunRequest) error {
	if err := subjects.CheckNewRun(r.RunID); err != nil {
		return &wire.APIError{Code: wire.CodeBadRequest, Message: err.Error()}
	}
	r.V = cmp.Or(r.V, wire.Version)
	r.By = cmp.Or(r.By, "client")
	if err := c.reader.StartRun(ctx, r); err != nil {
		return fmt.Errorf("client: ask for run %s: %w", r.RunID, err)
	}
	return nil
}
