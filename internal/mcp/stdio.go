package mcp

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// MaxRequest bounds a request of a client in bytes.
const MaxRequest = 1 << 20

// Serve serves one client by lines on in and out until in ends. What was asked
// before is answered then: the SDK by itself forgets it. A line that is no message,
// or too long, is answered with an error, and the next one is read.
func Serve(ctx context.Context, s *sdk.Server, in io.Reader, out io.Writer) error {
	o := &lineWriter{out: out}
	return s.Run(ctx, &stdio{sdk.IOTransport{Reader: newMessages(in, o), Writer: o, MaxLineLength: MaxRequest}})
}

// lineWriter writes lines, one at a time. It stays open when the session is over: stdout
// isn't ours to close.
type lineWriter struct {
	mu  sync.Mutex
	out io.Writer
}

// Write writes a line.
func (o *lineWriter) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.out.Write(line)
}

// Close does nothing.
func (*lineWriter) Close() error { return nil }

type stdio struct{ sdk.IOTransport }

// Connect returns the conversation with the client.
func (t *stdio) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := t.IOTransport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &conversation{Connection: c, settled: make(chan struct{}, 1)}, nil
}

// conversation knows what it has to answer.
type conversation struct {
	sdk.Connection

	settled chan struct{} // holds a token once everything is answered

	mu   sync.Mutex
	open map[jsonrpc.ID]bool
}

// patience is how long answers may take once the client has said its last word.
const patience = 30 * time.Second

// Read returns the client's next message; the end once everything is answered.
func (c *conversation) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if err != nil {
		c.awaitAnswers(ctx)
		return m, err
	}
	if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.open == nil {
			c.open = map[jsonrpc.ID]bool{}
		}
		c.open[r.ID] = true
	}
	return m, nil
}

// Write sends a message to the client.
func (c *conversation) Write(ctx context.Context, m jsonrpc.Message) error {
	err := c.Connection.Write(ctx, m)
	if r, ok := m.(*jsonrpc.Response); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		if delete(c.open, r.ID); len(c.open) == 0 {
			select {
			case c.settled <- struct{}{}:
			default:
			}
		}
	}
	return err
}

// awaitAnswers waits until everything is answered.
func (c *conversation) awaitAnswers(ctx context.Context) {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		c.mu.Lock()
		open := len(c.open)
		c.mu.Unlock()
		if open == 0 {
			return
		}
		select {
		case <-c.settled:
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
