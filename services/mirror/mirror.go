// Package mirror keeps the sessions of programs that use Anthropic's Agent SDK: it is the server of their SessionStore. What
// they append is kept line by line, as it is, so that another program, elsewhere, goes on with it; and it is told as a run, by
// the same normaliser as session files are.
//
// A transcript, that of a session or of one of its sub-agents, is an object of the object store of sessions (see
// [transcript]), which only the mirror changes; a record in the bucket of services' states says of which session it is, and when
// it was last added to. Lines are stored first, then the record, then the events: a mirror that was killed in between tells what
// is missing when it comes back. What was told is in the log alone, as keys of lines ([wire.TranscriptRead]), so that what a
// watcher has told of the same session isn't told twice.
package mirror

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/report"
	"code.wake.dev/wake/internal/transcript"
)

// Config are the settings of a mirror.
type Config struct {
	ID   string        // of the process, in claims; required
	URL  string        // of the server that hands it requests; required
	File string        // tells programs where that is, and its token; required
	Idle time.Duration // after which the run of a session to which nothing is appended is paused; default 2 min

	Prices agent.Prices // of models, before the known ones of Anthropic's
}

// Mirror is the service. It is the handler of the programs' requests, too.
type Mirror struct {
	cfg     Config
	address report.Address
	log     *eventlog.Log
	logger  *slog.Logger
	slots   chan struct{} // of requests that are dealt with at the same time

	mu      sync.Mutex
	kept    *transcript.Store // nil: what is kept isn't known yet
	records *eventlog.Bucket
	shelves map[sessionKey]*shelf
	runs    map[string]*shelf // by the run that tells of it
}

// The bounds of what may be asked at the same time, and of a request.
const (
	maxSlots   = 8
	maxRequest = 32 << 20
	maxEntries = 10_000
	maxName    = 512 // bytes of a part of a key
)

const (
	sweepTime = 5 * time.Second
	writeTime = 30 * time.Second
	// recentTime is how old what was appended last may be so that a mirror that begins looks whether all of it was told.
	recentTime = 24 * time.Hour
)

// name is that of the mirror's records among the states of services.
const name = "mirror"

// sessionKey names a session and its project.
type sessionKey struct{ project, session string }

// transcriptRecord is what is kept of a transcript beside its lines.
type transcriptRecord struct {
	Project string          `json:"project"`
	Session string          `json:"session"`
	Subpath string          `json:"subpath,omitempty"` // "": the session itself
	Run     string          `json:"run"`
	At      int64           `json:"at"`                // when it was last added to, Unix ms; no two times are the same
	Summary json.RawMessage `json:"summary,omitempty"` // as a program has folded it
	Folded  int64           `json:"folded,omitempty"`  // At of what the summary knows
}

func (r *transcriptRecord) key() string {
	text, _ := json.Marshal([]string{r.Project, r.Session, r.Subpath}) // of texts there is always one
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// object is the name of the transcript among session files: no session's id.
func (r *transcriptRecord) object() string { return name + "/" + r.key() }

// New returns a mirror that writes to a log. The log's Run must be running. The token of programs stays what the file has.
func New(cfg Config, log *eventlog.Log, logger *slog.Logger) (*Mirror, error) {
	if cfg.ID == "" || cfg.URL == "" || cfg.File == "" {
		return nil, errors.New("mirror: an id, a URL and a file are required")
	}
	cfg.Idle = cmp.Or(cfg.Idle, 2*time.Minute)
	key := rand.Text()
	if there, err := report.ReadAddress(cfg.File); err == nil {
		key = there.Key // that programs were given
	}
	return &Mirror{
		cfg: cfg, address: report.Address{URL: cfg.URL, Key: key}, log: log, logger: logger,
		slots: make(chan struct{}, maxSlots), shelves: map[sessionKey]*shelf{}, runs: map[string]*shelf{},
	}, nil
}

// Run tells programs where the mirror is, tells what wasn't, and pauses the runs of sessions in which nothing goes on, until ctx
// ends. If it fails it may be called again.
func (m *Mirror) Run(ctx context.Context) error {
	if err := m.address.Write(m.cfg.File); err != nil {
		m.logger.Warn("programs aren't told where their sessions are kept", "error", err)
	}
	if err := m.open(ctx); ctx.Err() != nil {
		return nil
	} else if err != nil {
		return err
	}
	defer m.closeShelves(context.WithoutCancel(ctx))
	tick := time.NewTicker(sweepTime)
	defer tick.Stop()
	for {
		for _, s := range m.allShelves() {
			limited, stop := context.WithTimeout(ctx, writeTime)
			if err := s.pauseQuiet(limited, time.Now()); err != nil && ctx.Err() == nil {
				m.logger.Warn("a session isn't told whole; it is tried again", "session", s.session, "run", s.run, "error", err)
			}
			stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// open reads what is kept, once.
func (m *Mirror) open(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept != nil {
		return nil
	}
	kept, err := transcript.Open(ctx, m.log.JetStream(), m.log.Names(), m.log.Keys())
	if err != nil {
		return fmt.Errorf("mirror: %w", err)
	}
	records, err := m.log.Bucket(ctx, m.log.Names().StateBucket())
	if err != nil {
		return fmt.Errorf("mirror: %w", err)
	}
	all, err := records.All(ctx, m.log.Names().ServiceStates(name))
	if err != nil {
		return fmt.Errorf("mirror: %w", err)
	}
	for _, e := range all {
		var r transcriptRecord
		if err := json.Unmarshal(e.Value, &r); err != nil {
			m.logger.Warn("what is kept of a session can't be read", "key", e.Key, "error", err)
			continue
		}
		s := m.shelfOf(sessionKey{r.Project, r.Session})
		s.files[r.Subpath] = &file{s: s, rec: r, revision: e.Revision}
		if m.runs[r.Run] == nil {
			s.run, m.runs[r.Run] = r.Run, s
		}
		if at := time.UnixMilli(r.At); time.Since(at) < recentTime {
			s.files[r.Subpath].untold, s.changed, s.resting = true, at, false
		}
	}
	m.kept, m.records = kept, records
	return nil
}

// shelfOf returns the shelf of a session; an empty one, if nothing is kept of it. The caller holds mu.
func (m *Mirror) shelfOf(key sessionKey) *shelf {
	s := m.shelves[key]
	if s == nil {
		s = &shelf{m: m, sessionKey: key, files: map[string]*file{}, resting: true}
		m.shelves[key] = s
	}
	return s
}

// findShelf returns the shelf of a session: an empty one, if nothing is kept of it.
func (m *Mirror) findShelf(key sessionKey) *shelf {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.shelves[key]; s != nil {
		return s
	}
	return &shelf{m: m, sessionKey: key}
}

func (m *Mirror) allShelves() []*shelf {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.shelves))
}

// takeRun has a run tell of a session, if it tells of no other one.
func (m *Mirror) takeRun(run string, s *shelf) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if other := m.runs[run]; other != nil && other != s {
		return false
	}
	m.runs[run] = s
	return true
}

func (m *Mirror) closeShelves(ctx context.Context) {
	limited, stop := context.WithTimeout(ctx, writeTime)
	defer stop()
	for _, s := range m.allShelves() {
		s.mu.Lock()
		s.close(limited)
		s.mu.Unlock()
	}
}
