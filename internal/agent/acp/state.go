package acp

import (
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// stateVersion is that of [state]. A change of its fields, or of what they mean, adds one: a runner of
// another version must not go on from it.
const stateVersion = 5

// state is all that a session knows of its program. It is what is left at a resting point, for the session that
// goes on from there; nothing is known besides.
type state struct {
	Version int   `json:"version"`
	Lines   int   `json:"lines"`  // of the program
	Index   int   `json:"index"`  // events that were made of the last one
	Broken  int   `json:"broken"` // of them that are no JSON-RPC
	NextID  int64 `json:"nextId"` // of the last request to the program

	// Sent are the requests to the program that it hasn't answered, by their ids.
	Sent map[string]request `json:"sent"`

	Initialized   bool            `json:"initialized"`
	Authenticated bool            `json:"authenticated"`
	Opened        bool            `json:"opened"`
	Afresh        bool            `json:"afresh"`  // the session is a new one
	Renewed       bool            `json:"renewed"` // in the place of one that can't be gone on with
	Moded         bool            `json:"moded"`
	Modelled      bool            `json:"modelled"`
	Prompted      bool            `json:"prompted"`
	Over          bool            `json:"over"` // the program has nothing more to do
	Halting       bool            `json:"halting"`
	Cancelled     bool            `json:"cancelled"` // it was told to cut its turn short
	Can           ability         `json:"can"`
	Session       string          `json:"session"` // "": it has none yet
	Logged        map[string]bool `json:"logged"`  // calls that the log had when the program was started
	Aligned       bool            `json:"aligned"` // what it repeats from here on came behind the log's last call
	Cut           []string        `json:"cut"`     // calls of which only its own record told, without their ends
	Known         []string        `json:"known"`   // calls whose ends the agent's own record has, as far as it has repeated them
	Agent         string          `json:"agent"`   // its name and version
	Ways          names           `json:"ways"`    // to log in
	Modes         []string        `json:"modes"`
	Models        []string        `json:"models"`
	Model         string          `json:"model"`
	Option        string          `json:"option"` // the configuration option that is the model's

	Turn      int              `json:"turn"`
	Blocks    int              `json:"blocks"`
	Kind      string           `json:"kind"` // of the block that is open; "": none
	Block     string           `json:"block"`
	Text      string           `json:"text"` // said since the last call
	Calls     map[string]*call `json:"calls"`
	Order     []string         `json:"order"` // of Calls
	Ended     []string         `json:"ended"` // the last calls that have ended
	Asks      map[string]int   `json:"asks"`  // questions for permission so far, by call
	Terminals []string         `json:"terminals"`
	Asked     []string         `json:"parent"` // what it has asked its parent and has no answer to, by call
	// Questions are the calls for which the program asks, by the ids of its requests.
	Questions map[string]string `json:"questions"`

	Tally   tally    `json:"tally"`
	Failure *failure `json:"failure"` // why the execution fails; nil: it doesn't
}

// ability is what the agent says that it can do.
type ability struct {
	Load   bool `json:"load"`
	Resume bool `json:"resume"`
	Fork   bool `json:"fork"`
	HTTP   bool `json:"http"` // MCP servers by URL
}

// request is one that the program was sent.
type request struct {
	Method    string `json:"method"`
	At        int64  `json:"at"`
	CommandID string `json:"commandId"` // of the message that a prompt is; "": it is the first
	Content   string `json:"content"`
	Begun     bool   `json:"begun"` // its turn has
}

// call is a tool call that is open.
type call struct {
	Name   string             `json:"name"`
	Title  string             `json:"title"`
	Kind   string             `json:"kind"`
	Input  wire.Raw           `json:"input"`
	Output wire.Raw           `json:"output"`
	Parts  wire.Raw           `json:"parts"` // its content: texts, diffs, terminals
	Places wire.Raw           `json:"places"`
	State  wire.ToolCallState `json:"state"`  // "": its intent isn't told yet
	Status string             `json:"status"` // as the agent told it last
	At     int64              `json:"at"`
	Asking bool               `json:"asking"` // it stands for a question about another one
	Denied bool               `json:"denied"`
}

// tally is what turns have come to.
type tally struct {
	Turns    int64    `json:"turns"`
	Stop     string   `json:"stop"`   // of the last one
	Untold   int64    `json:"untold"` // turns of which the agent has told no tokens
	Input    int64    `json:"input"`
	Output   int64    `json:"output"`
	Written  int64    `json:"written"` // into the cache
	Read     int64    `json:"read"`    // from the cache
	Total    *float64 `json:"total"`   // cost of the session, in US dollars, as the agent counts it; nil: it doesn't tell
	Before   float64  `json:"before"`  // that, at the begin of the turn
	Cost     float64  `json:"cost"`    // of the turns
	Context  int64    `json:"context"`
	Window   int64    `json:"window"`
	Duration int64    `json:"duration"` // ms
}

// failure is why an execution fails.
type failure struct {
	Type    string   `json:"type"`
	Message string   `json:"message"`
	Phase   string   `json:"phase"`
	Details wire.Raw `json:"details"`
}

// fillMaps makes the maps that a state without entries lacks.
func (x *state) fillMaps() {
	if x.Sent == nil {
		x.Sent = map[string]request{}
	}
	if x.Calls == nil {
		x.Calls = map[string]*call{}
	}
	if x.Asks == nil {
		x.Asks = map[string]int{}
	}
	if x.Questions == nil {
		x.Questions = map[string]string{}
	}
}

// names are what something can be chosen from.
type names []string

func (n names) text() string {
	if len(n) == 0 {
		return ""
	}
	return ": " + strings.Join(n, ", ")
}
