package wire

// The verbs that show the fleet and the course of a run as pictures.
const (
	VerbFleet    = "fleet"    // [FleetRequest], [FleetResponse]; answered by the recorder
	VerbTimeline = "timeline" // [TimelineRequest], [TimelineResponse]; by the recorder
)

// FleetRequest asks for a page of all runs: those that go on, and of those that have ended the
// newest 10 000. Filters are combined.
type FleetRequest struct {
	State []string `json:"state,omitempty"` // see [AgentStatus.State]; "open": those that go on
	Label string   `json:"label,omitempty"` // see [RunsRequest.Label]
	Flow  string   `json:"flow,omitempty"`  // name of the flow
	Text  string   `json:"text,omitempty"`  // that occurs in the id, the name, the flow, the activity or the error, ignoring case
	Sort  string   `json:"sort,omitempty"`  // urgency (default: waiting runs first), started, activity, cost or tokens
	Since uint64   `json:"since,omitempty"` // only what has changed behind this position: see [FleetResponse.Left]

	Limit  int    `json:"limit,omitempty"`  // default 50, at most 200
	Cursor string `json:"cursor,omitempty"` // of the page before
}

// FleetResponse is a page of the fleet. Cursor asks for the next one; it is empty on the last page.
type FleetResponse struct {
	Lag

	At       int64          `json:"at"`       // Unix ms
	Position uint64         `json:"position"` // up to here it is told: the next request's Since
	States   map[string]int `json:"states"`   // number of runs by state, whatever the request says of states and positions
	Waits    map[string]int `json:"waits"`    // number of things that wait for a person, by [ApprovalKind]
	Total    int            `json:"total"`    // runs that pass the filters
	Runs     []TopRun       `json:"runs"`
	Cursor   string         `json:"cursor,omitempty"`
	Before   int            `json:"before,omitempty"`   // runs that pass the filters and stand before the page
	Previous string         `json:"previous,omitempty"` // cursor of the page before; empty on the first page, and where the first is the one before

	// Left are the runs of the label and the flow that have changed behind Since and don't pass the other filters, or that another run has waited
	// for: a list that has one of them drops it. It is on the first page. Deletions have no position: a list that has more runs than are in States
	// is asked for anew.
	Left     []string `json:"left,omitempty"`
	LeftMore bool     `json:"leftMore,omitempty"` // more than 1000 have left: the list is asked for anew
}

// TimelineRequest asks for the course of a run as a picture of so many pixels.
type TimelineRequest struct {
	Run  string `json:"run"`            // see [LogRequest.Run]
	From int64  `json:"from,omitempty"` // Unix ms; 0: its beginning
	To   int64  `json:"to,omitempty"`   // Unix ms; 0: its end, or now
	Px   int    `json:"px,omitempty"`   // width; default 1000, from 10 to 4000
}

// TimelineResponse is the course of a run: lanes with marks. What falls into one pixel of a lane is one
// mark of its kind, which counts it. So nothing vanishes, no failure and no alert in particular.
type TimelineResponse struct {
	Lag

	RunID    string         `json:"runId"`
	Position uint64         `json:"position"` // up to here it is told
	First    int64          `json:"first"`    // Unix ms, of the whole run
	Last     int64          `json:"last"`     // of one that goes on: now
	From     int64          `json:"from"`     // Unix ms, of the picture
	To       int64          `json:"to"`
	Open     bool           `json:"open,omitempty"` // the run goes on
	Lanes    []TimelineLane `json:"lanes"`
	Omitted  int            `json:"omitted,omitempty"` // lanes that are left out: beyond 400, or for want of room. What failed, waited or was an alert in them is drawn in their node's, or the run's
}

// TimelineLane is what an agent, or one of its sub-agents, did.
type TimelineLane struct {
	Node   string         `json:"node"`
	Parent string         `json:"parent,omitempty"` // the call that started this sub-agent
	State  string         `json:"state,omitempty"`  // of a node, see [AgentStatus.State]
	Begin  int64          `json:"begin"`            // Unix ms
	End    int64          `json:"end"`              // of one that goes on: now
	Marks  []TimelineMark `json:"marks"`
}

// TimelineMark is what happened in a lane within a pixel, or a span.
type TimelineMark struct {
	Kind string `json:"kind"` // a [LineType], or call, failed, denied, wait, alert, retry, compaction or resumed
	At   int64  `json:"at"`   // Unix ms, of the first
	End  int64  `json:"end,omitempty"`
	N    int64  `json:"n"`             // how many
	Pos  uint64 `json:"pos,omitempty"` // of the first
	Open bool   `json:"open,omitempty"`
	Text string `json:"text,omitempty"` // of a span or an alert: the tool, or what it says; safe for a terminal
}
