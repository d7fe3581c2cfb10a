// Package inlet takes inputs that become runs, in pieces by wake.api, so that a user who
// sends them needs no right to write events: [Server] is a part of a runner's process, [Send] is
// what sends.
package inlet

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/api"
	"code.wake.dev/wake/internal/completeness"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/export"
	"code.wake.dev/wake/internal/ingest"
	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// Exported is the format of a run as wake export writes it in jsonl, beside those of
// package ingest.
const Exported ingest.Format = "jsonl"

// CodeRunExists is the code of an input for a run that isn't its own.
const CodeRunExists wire.ErrorCode = "RUN_EXISTS"

const (
	maxPiece    = 48 << 10 // bytes of a piece that is sent; requests have at most [api.MaxRequest]
	maxWaiting  = 8        // pieces of an input that wait for being read
	maxInputs   = 64       // at once
	maxOfOne    = 8        // of them, of one user
	maxExported = 4 << 30  // bytes of exported runs that are on disk at once, each until it was checked
	maxWait     = 2 * time.Second
	away        = time.Minute // after which a silent sender is gone
)

// Server makes runs of inputs.
type Server struct {
	log    *eventlog.Log
	logger *slog.Logger
	id     string
	dir    string // for what is on disk
	prices agent.Prices
	onDisk atomic.Int64 // bytes of exported runs
	check  sync.Mutex   // held while one is checked, which takes some times its largest fields in memory

	mu      sync.Mutex
	inputs  map[string]*input
	runs    map[string]int // how many inputs of each this server reads
	reading sync.WaitGroup

	readings map[string]keys.Entry // of all servers, by key
	ctx      context.Context       //nolint:containedctx // of Run: inputs outlive the requests that begin them
}

// NewServer returns a server that writes to a log; the log's Run must be running. What has come of an exported run is kept in dir until it
// was checked; a file there is without a name, and gone with the process. Prices go before those of Anthropic's models.
func NewServer(log *eventlog.Log, dir string, prices agent.Prices, logger *slog.Logger) *Server {
	return &Server{log: log, logger: logger, id: rand.Text(), dir: dir, prices: prices, inputs: map[string]*input{}, runs: map[string]int{}, readings: map[string]keys.Entry{}}
}

// Run takes inputs until ctx ends. Runs of inputs that aren't whole by then end as failed.
func (s *Server) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer s.forgetInputs()
	defer stop()
	s.ctx = ctx
	s.reading.Go(func() { s.followReadings(ctx) })
	s.reading.Go(func() { s.watchOrphans(ctx) })
	n := s.log.Names()
	return api.Service{Names: n, Name: "ingest", Logger: s.logger, Tracer: s.log.Tracer(), Endpoints: []api.Endpoint{
		api.Handle(wire.VerbIngest, "", s.beginInput),
		api.Hold("piece", s.handlePiece).At(n.Ingest(s.id)),
	}}.Run(ctx, s.log.Conn())
}

// forgetInputs waits for what is being read to end, and forgets all inputs.
func (s *Server) forgetInputs() {
	s.reading.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, in := range s.inputs {
		in.idle.Stop()
		delete(s.inputs, id)
	}
}

// input is an input that is being read.
type input struct {
	server *Server
	id     string
	asker  string // key of the user
	ask    wire.IngestRequest
	turn   chan struct{} // held by the request with the piece that is being taken
	pieces chan []byte
	gone   chan struct{} // closed when nothing more comes, though the input isn't whole
	read   chan struct{} // closed when it was read
	idle   *time.Timer

	received int64 // under turn, as are these
	ended    bool
	left     bool

	result  any // when it was read
	problem *wire.APIError
}

func badRequest(format string, args ...any) *wire.APIError {
	return &wire.APIError{Code: wire.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

func checkRequest(q wire.IngestRequest) error {
	if _, err := verdictOf(q); err != nil {
		return badRequest("compared: %v", err)
	}
	switch f := ingest.Format(q.Format); {
	case f.IsAgent():
		if err := cmp.Or(subjects.CheckNewRun(q.Run), subjects.CheckID(q.Node)); err != nil {
			return badRequest("run and node: %v", err)
		}
	case f == ingest.Kahn, f == Exported:
		if err := subjects.CheckID(q.Run); q.Run != "" && err != nil {
			return badRequest("run: %v", err)
		}
	default:
		return badRequest("format %q is unknown", q.Format)
	}
	return nil
}

// verdictOf returns what the comparison of the input with another feed has shown, nil if it wasn't compared.
func verdictOf(q wire.IngestRequest) (*completeness.Verdict, error) {
	if q.Compared == nil {
		return nil, nil
	}
	v := new(completeness.Verdict)
	if err := wire.Unmarshal(q.Compared, v); err != nil {
		return nil, err
	}
	return v, v.Check()
}

func (s *Server) beginInput(ctx context.Context, q wire.IngestRequest, _ api.Form) (wire.IngestResponse, error) {
	if err := checkRequest(q); err != nil {
		return wire.IngestResponse{}, err
	}
	caller := api.CallerOf(ctx)
	in := &input{
		server: s, id: rand.Text(), asker: caller.Key, ask: q,
		turn: make(chan struct{}, 1), pieces: make(chan []byte, maxWaiting), gone: make(chan struct{}), read: make(chan struct{}),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all, same := 0, 0
	for _, other := range s.inputs {
		select {
		case <-other.read:
			continue // only its end is still to be asked for
		default:
		}
		if all++; other.asker == in.asker {
			same++
		}
	}
	if all >= maxInputs || same >= maxOfOne && in.asker != "" {
		return wire.IngestResponse{}, &wire.APIError{Code: wire.CodeBusy, Message: "the runner reads as many inputs as it takes", Hint: "try again"}
	}
	s.inputs[in.id] = in
	in.idle = time.AfterFunc(away, in.leaveInput)
	writer := strings.Join(slices.DeleteFunc([]string{"ingest", caller.Name, in.id[:8]}, func(s string) bool { return s == "" }), "-")
	s.reading.Go(func() {
		defer close(in.read)
		in.result, in.problem = in.makeRuns(s.ctx, writer)
	})
	return wire.IngestResponse{Subject: s.log.Names().Ingest(s.id), Session: in.id}, nil
}

// leaveInput ends an input after its sender is gone, and forgets it when its end isn't asked for either.
func (in *input) leaveInput() {
	in.turn <- struct{}{}
	defer func() { <-in.turn }()
	if !in.left {
		in.left = true
		if !in.ended {
			in.ended = true
			close(in.gone)
		}
		in.idle.Reset(away)
		return
	}
	in.server.mu.Lock()
	defer in.server.mu.Unlock()
	delete(in.server.inputs, in.id)
}

func (s *Server) handlePiece(ctx context.Context, q wire.IngestPiece, _ api.Form) (wire.IngestProgress, error) {
	s.mu.Lock()
	in := s.inputs[q.Session]
	s.mu.Unlock()
	if in == nil || in.asker != api.CallerOf(ctx).Key {
		return wire.IngestProgress{}, &wire.APIError{Code: wire.CodeNotFound, Message: "no such input is being read: its sender was away"}
	}
	select {
	case in.turn <- struct{}{}:
		defer func() { <-in.turn }()
	case <-ctx.Done():
		return wire.IngestProgress{}, ctx.Err()
	}
	in.idle.Reset(away)
	return in.takePiece(ctx, q)
}

// takePiece takes a piece, if there is room for it, and says how far it has got.
func (in *input) takePiece(ctx context.Context, q wire.IngestPiece) (wire.IngestProgress, error) {
	skip := in.received - q.Offset
	if skip < 0 || q.Offset < 0 {
		return wire.IngestProgress{}, badRequest("offset %d: %d bytes have come", q.Offset, in.received)
	}
	wait := time.NewTimer(maxWait)
	defer wait.Stop()
	if data := q.Data[min(skip, int64(len(q.Data))):]; len(data) > 0 && !in.ended {
		select {
		case in.pieces <- data:
			in.received += int64(len(data))
		case <-in.read:
		case <-wait.C:
			return wire.IngestProgress{Received: in.received}, nil
		case <-ctx.Done():
			return wire.IngestProgress{}, ctx.Err()
		}
	}
	switch {
	case in.ended:
	case q.Abort:
		in.ended = true
		close(in.gone)
	case q.End && in.received == q.Offset+int64(len(q.Data)):
		in.ended = true
		close(in.pieces)
	}
	return in.awaitProgress(ctx, wait.C)
}

// awaitProgress says how far an input is, of one that has ended when it was read, or after a
// while.
func (in *input) awaitProgress(ctx context.Context, over <-chan time.Time) (wire.IngestProgress, error) {
	p := wire.IngestProgress{Received: in.received}
	if in.ended {
		select {
		case <-in.read:
		case <-over:
		case <-ctx.Done():
		}
	}
	select {
	case <-in.read:
	default:
		return p, nil
	}
	result, err := wire.Marshal(in.result)
	p.Done, p.Result, p.Problem = true, result, in.problem
	return p, err
}

// errGone is how the input of a sender that is gone ends.
var errGone = errors.New("the sender of the input is gone, or has ended it")

// Read implements [io.Reader] for the pieces.
func (r *pieceReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		var more bool
		select {
		case r.rest, more = <-r.in.pieces:
			if !more {
				return 0, io.EOF
			}
		case <-r.in.gone:
			select {
			case r.rest = <-r.in.pieces: // taken before
			default:
				return 0, errGone
			}
		case <-r.ctx.Done():
			return 0, r.ctx.Err()
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// pieceReader reads the pieces of an input.
type pieceReader struct {
	ctx  context.Context //nolint:containedctx // Read has none
	in   *input
	rest []byte
}

// makeRuns makes runs of what is sent. A panic is the input's problem: a stranger's input must not end the process.
func (in *input) makeRuns(ctx context.Context, writer string) (result any, problem *wire.APIError) {
	defer func() {
		if p := recover(); p != nil {
			in.server.logger.Error("an input has met a defect of wake", "asker", in.asker, "panic", p, "stack", string(debug.Stack()))
			result, problem = nil, &wire.APIError{Code: wire.CodeInternal, Message: fmt.Sprintf("a defect of wake: %v", p), Hint: "its log says more"}
		}
	}()
	ctx, stop := context.WithCancel(ctx)
	defer stop() // what still reads is over
	q, log := in.ask, in.server.log
	r := &pieceReader{ctx: ctx, in: in}
	switch f := ingest.Format(q.Format); f {
	case ingest.Kahn:
		result, err := ingest.Lines(ctx, log, r, ingest.LinesOptions{RunID: q.Run, Labels: q.Labels, Runner: writer, Strict: q.Strict, More: q.More})
		return result, in.explainError(err)
	case Exported:
		result, err := in.server.restoreExport(ctx, r)
		return result, in.explainError(err)
	default:
		verdict, err := verdictOf(q)
		if err != nil {
			return nil, in.explainError(err)
		}
		forget := in.server.noteReading(ctx, q.Run, writer)
		result, err := ingest.Run(ctx, log, r, ingest.Options{
			RunID: q.Run, NodeID: q.Node, Format: f, Labels: q.Labels, Runner: writer, Compared: verdict, Prices: in.server.prices,
			Join: q.Join && in.asker == "", // users of this verb, ingesters, may only add runs
		})
		forget(err)
		return result, in.explainError(err)
	}
}

// restoreExport checks an exported run, and then adds it.
func (s *Server) restoreExport(ctx context.Context, r io.Reader) (im export.Import, err error) {
	f, err := os.CreateTemp(s.dir, "import-*")
	if err == nil {
		err = os.Remove(f.Name())
	}
	if err != nil {
		return im, fmt.Errorf("import: %w", err)
	}
	defer f.Close() //nolint:errcheck // its content isn't needed any more
	n, err := s.keepExport(f, r)
	defer s.onDisk.Add(-n)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return im, fmt.Errorf("import: %w", err)
	}
	s.check.Lock()
	defer s.check.Unlock()
	if err := ctx.Err(); err != nil {
		return im, err
	}
	return export.Restore(ctx, s.log, f, nil)
}

// keepExport writes an exported run into a file, as long as there is room for it among those that are read at the same time.
func (s *Server) keepExport(f *os.File, r io.Reader) (n int64, err error) {
	for piece := make([]byte, 64<<10); ; {
		size, end := r.Read(piece)
		n += int64(size)
		if s.onDisk.Add(int64(size)) > maxExported {
			return n, &wire.APIError{
				Code: wire.CodeTooLarge, Message: fmt.Sprintf("exported runs that are read at the same time may have %d MiB together", maxExported>>20),
				Hint: "import them one after the other",
			}
		}
		if _, err := f.Write(piece[:size]); err != nil {
			return n, err
		}
		switch {
		case errors.Is(end, io.EOF):
			return n, nil
		case end != nil:
			return n, end
		}
	}
}

// explainError returns why an input isn't whole, and what its sender can do.
func (in *input) explainError(err error) *wire.APIError {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*wire.APIError](err); ok {
		return e
	}
	if _, ok := errors.AsType[*ingest.ChangedError](err); ok {
		return &wire.APIError{Code: CodeRunExists, Message: err.Error(), Hint: "what is recorded stays; give the lines another --run"}
	}
	if _, ok := errors.AsType[*ingest.LineError](err); ok {
		return &wire.APIError{Code: wire.CodeBadRequest, Message: err.Error(), Hint: "without --strict it is recorded, and told"}
	}
	if _, ok := errors.AsType[*export.FileError](err); ok {
		return &wire.APIError{Code: wire.CodeCorruptedData, Message: "import: " + err.Error(), Hint: "nothing was imported; export the run again"}
	}
	for _, known := range []struct {
		is   error
		code wire.ErrorCode
		hint string
	}{
		{ingest.ErrExists, CodeRunExists, "choose another --run; a file of kahn that is going to grow needs --more"},
		{ingest.ErrComplete, CodeRunExists, "give the lines another --run; a file that is going to grow needs --more"},
		{ingest.ErrEmpty, wire.CodeBadRequest, "pipe the agent's output in, or name a file"},
		{ingest.ErrNoLine, wire.CodeBadRequest, "pipe lines of KAHN in, or name a file"},
		{export.ErrAnother, CodeRunExists, "wake runs"},
		{eventlog.ErrFenced, wire.CodeLeaseHeld, "send it again"},
	} {
		if errors.Is(err, known.is) {
			return &wire.APIError{Code: known.code, Message: err.Error(), Hint: known.hint}
		}
	}
	if !errors.Is(err, errGone) {
		in.server.logger.Warn("input not read", "format", in.ask.Format, "run", in.ask.Run, "error", err)
	}
	return &wire.APIError{Code: wire.CodeInternal, Message: err.Error()}
}
