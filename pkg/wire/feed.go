package wire

import "time"

// Topic is what a feed is of.
type Topic string

// The topics.
const (
	TopicEvents Topic = "events" // WAKE_EVENTS
	TopicAlerts Topic = "alerts" // WAKE_ALERTS
)

// FeedRequest asks for the next messages of a stream, as they are stored. A reader that
// asks again from [FeedResponse.Next] on gets each message once, in order, from any
// recorder, before and after it was started again.
type FeedRequest struct {
	Of    Topic  `json:"of,omitempty"`    // default events
	Run   string `json:"run,omitempty"`   // the run's id; absent: of all runs
	Node  string `json:"node,omitempty"`  // of events; needs a run
	Kinds []Kind `json:"kinds,omitempty"` // of events; absent: all
	From  uint64 `json:"from,omitempty"`  // first position; 0: the first there is
	To    uint64 `json:"to,omitempty"`    // last position; 0: the last there is
	Wait  bool   `json:"wait,omitempty"`  // if there is none yet, for the first; To has no meaning then
}

// FeedMessage is a message of a stream, as it is stored.
type FeedMessage struct {
	Pos     uint64 `json:"pos"`
	Time    int64  `json:"time"` // Unix ms, when the stream stored it
	Subject string `json:"subject"`
	Data    []byte `json:"data"`            // sealed, where the installation encrypts
	Trace   string `json:"trace,omitempty"` // to which trace it belongs, if the service knows
}

// When returns the time at which the stream stored the message.
func (m FeedMessage) When() time.Time { return time.UnixMilli(m.Time) }

// FeedResponse is a piece of a feed. Without Wait the feed is over when Next is beyond
// Last. With Wait a piece without messages is a sign of life.
type FeedResponse struct {
	Incarnation string        `json:"incarnation"` // of the stream of events
	Messages    []FeedMessage `json:"messages"`
	Next        uint64        `json:"next"`             // position to go on from
	Last        uint64        `json:"last"`             // without Wait the last position of the feed, with it the last one there is
	Behind      uint64        `json:"behind,omitempty"` // messages that follow those of the piece; absent also where the recorder doesn't know
}

// LastRequest asks for the last event of a node.
type LastRequest struct {
	Run  string `json:"run"` // the run's id
	Node string `json:"node"`
}

// LastResponse has the event, if there is one.
type LastResponse struct {
	Message *FeedMessage `json:"message,omitempty"`
}

// BoundsRequest asks for the bounds of the stream of events.
type BoundsRequest struct {
	Run string `json:"run,omitempty"` // of callers that may ask about one run only
}

// BoundsResponse are the bounds of the stream of events.
type BoundsResponse struct {
	Incarnation string `json:"incarnation"`
	First       uint64 `json:"first"`             // positions; one before First has aged out
	Last        uint64 `json:"last"`              // as the leader of the stream knows it
	KeyNote     []byte `json:"keyNote,omitempty"` // where the installation encrypts: which key is in use, sealed under it
}

// ValueRequest asks for the state that is kept of a run: its snapshot, or that of a
// bookmark.
type ValueRequest struct {
	Run   string `json:"run"`             // the run's id
	Label string `json:"label,omitempty"` // of the bookmark; absent: the snapshot
}

// ValueResponse is a value of WAKE_SNAPSHOTS or WAKE_BOOKMARKS, as it is stored.
type ValueResponse struct {
	Value    []byte `json:"value"`
	Revision uint64 `json:"revision"`
}

// BlobRequest asks for a piece of a large field, as it is stored.
type BlobRequest struct {
	Run string `json:"run,omitempty"` // of callers that may ask about one run only: it has the field
	// Pos is the position of an event of the run that has the field: without it all of the run is searched for one, which takes
	// too long where the run is long. Only for callers that may ask about one run only.
	Pos    uint64 `json:"pos,omitempty"`
	SHA256 string `json:"sha256"`
	Offset int64  `json:"offset,omitempty"`
}

// SessionRequest asks for a piece of the session file that was kept of an agent.
type SessionRequest struct {
	Run     string `json:"run"` // the run's id
	Session string `json:"session"`
	Offset  int64  `json:"offset,omitempty"`
}

// PackRequest asks for a piece of a pack of snapshots of folders, as it is stored: compressed, and sealed if there are keys.
type PackRequest struct {
	Name   string `json:"name"` // as in the id of a snapshot: run, a dot, SHA-256
	Offset int64  `json:"offset,omitempty"`
}

// PieceResponse is a piece of something large: all of it, or as much as fits.
type PieceResponse struct {
	Size int64  `json:"size"` // of the whole
	Data []byte `json:"data"` // from Offset on
}

// SinksRequest asks how far the sinks of alerts are.
type SinksRequest struct{}

// SinksResponse has the sinks that ever were, by name.
type SinksResponse struct {
	Sinks []SinkStatus `json:"sinks"`
}

// SinkStatus says how far a sink is.
type SinkStatus struct {
	Sink     string `json:"sink"`
	Behind   uint64 `json:"behind"`   // alerts that aren't decided yet, at most
	Held     int    `json:"held"`     // alerts that wait for a digest
	Attempts int    `json:"attempts"` // failed, of what is being sent
}

// LettersRequest asks for the dead letters of a sink, or of all, the oldest first.
type LettersRequest struct {
	Sink string `json:"sink,omitempty"`
	From uint64 `json:"from,omitempty"` // id of the first
}

// LettersResponse is a page of dead letters, as `wake alerts deadletter list --json`
// prints them. Next is the id to go on from; 0: there are no more.
type LettersResponse struct {
	Letters []Raw  `json:"letters"`
	Next    uint64 `json:"next,omitempty"`
}
