package wire

// The verbs that tell more of one run, or of two. What a call was given and answered, and what a message says, is the event at its
// position: [VerbEvents], and [VerbBlob] for what is too large for an event. The flow with how far it is, and the ancestors, are in
// the state: [VerbState]. What comes from a run is listed by [RunsRequest.Ancestor].
const (
	VerbAlerts    = "alerts"    // [AlertsRequest], [AlertsResponse]; answered by the recorder
	VerbBookmarks = "bookmarks" // [BookmarksRequest], [BookmarksResponse]; by the recorder
	VerbDiff      = "diff"      // [DiffRequest], [DiffResponse]; by the recorder
	VerbWorkspace = "workspace" // [WorkspaceRequest], [WorkspaceResponse]; by the runners
)

// AlertsRequest asks for alerts, the newest first.
type AlertsRequest struct {
	Run    string `json:"run,omitempty"`    // see [LogRequest.Run]; empty: of all runs
	Limit  int    `json:"limit,omitempty"`  // default 100, at most 1000
	Before uint64 `json:"before,omitempty"` // of the page before
}

// AlertsResponse is a page of alerts. Before asks for the next one; it is 0 on the last page.
type AlertsResponse struct {
	Alerts []Alert `json:"alerts"`
	Before uint64  `json:"before,omitempty"`
}

// BookmarksRequest asks for the points at which a run can be forked, the last ones.
type BookmarksRequest struct {
	Run    string `json:"run"`              // see [LogRequest.Run]
	Limit  int    `json:"limit,omitempty"`  // default 200, at most 1000
	Before uint64 `json:"before,omitempty"` // only points before this position
}

// BookmarksResponse are points in log order, those of ancestors before the fork included. Before asks for those before them; it is
// 0 if there are none.
type BookmarksResponse struct {
	Points []ForkPoint `json:"points"`
	Before uint64      `json:"before"`
}

// ForkPoint is a place in the log behind which a run can be forked.
type ForkPoint struct {
	Run      string         `json:"run"`   // that has it: an ancestor, if the run was forked behind it
	Label    string         `json:"label"` // sfp-<n>, <exec>:start, <exec>:end, or the user's; empty for a position
	Kind     CheckpointKind `json:"kind"`
	Node     string         `json:"node,omitempty"`
	Position uint64         `json:"position"`
	Time     int64          `json:"time"`           // Unix ms
	Note     string         `json:"note,omitempty"` // what happened there: a tool, or the first words of a message; as it came
}

// DiffRequest asks in what two runs differ.
type DiffRequest struct {
	Run  string `json:"run"`          // see [LogRequest.Run]
	With string `json:"with"`         // the other one
	At   uint64 `json:"at,omitempty"` // as they were at this position; 0: as they are
}

// DiffResponse is what two runs differ in. Where a list or a pointer is empty,
// they don't.
type DiffResponse struct {
	A       DiffRun      `json:"a"`
	B       DiffRun      `json:"b"`
	Common  *DiffCommon  `json:"common,omitempty"`  // absent: neither was forked from the other, or from a third
	Same    bool         `json:"same"`              // they did the same and came to the same
	Parted  *DiffParting `json:"parted,omitempty"`  // the first thing that they did differently
	Flow    bool         `json:"flow,omitempty"`    // their definitions differ
	Input   *DiffPair    `json:"input,omitempty"`   // of the runs
	State   []DiffValue  `json:"state,omitempty"`   // user state, by path
	Nodes   []DiffNode   `json:"nodes,omitempty"`   // that differ
	Outputs []DiffValue  `json:"outputs,omitempty"` // by node
	Tools   []DiffTool   `json:"tools,omitempty"`   // calls that only one of them made
	Missing int          `json:"missing,omitempty"` // steps with large fields that couldn't be read, so that they aren't compared
	Omitted int          `json:"omitted,omitempty"` // nodes, calls and values that don't fit into an answer of wake.api; `wake diff` has all
}

// DiffRun says how one of the runs did.
type DiffRun struct {
	RunID     string      `json:"runId"`
	FlowName  string      `json:"flowName,omitempty"`
	Status    RunStatus   `json:"status"`
	Result    FlowStatus  `json:"result,omitempty"`
	Reason    string      `json:"reason,omitempty"`
	Error     string      `json:"error,omitempty"`
	StartedAt int64       `json:"startedAt,omitempty"` // Unix ms
	EndedAt   int64       `json:"endedAt,omitempty"`   // Unix ms
	Steps     int         `json:"steps"`               // behind the common point
	Usage     UsageTotals `json:"usage"`               // behind the common point
}

// DiffCommon is where two runs were still one.
type DiffCommon struct {
	RunID    string `json:"runId"`    // the run that has the events up to there
	Position uint64 `json:"position"` // of the last event that both have
	Label    string `json:"label,omitempty"`
}

// DiffParting is a step of one run where the other did something else, or nothing.
type DiffParting struct {
	Node string    `json:"node"`
	A    *DiffStep `json:"a,omitempty"` // nil: it did nothing more there
	B    *DiffStep `json:"b,omitempty"`
}

// DiffStep is something that a run did.
type DiffStep struct {
	Pos    uint64 `json:"position"`
	TS     int64  `json:"ts"` // Unix ms
	RunID  string `json:"runId"`
	Node   string `json:"node"`           // [RunNode] for edges and the user's state
	What   string `json:"what"`           // tool, told, exec, node, edge, change, run or said
	Name   string `json:"name,omitempty"` // the tool
	Text   string `json:"text,omitempty"` // in short, for people; safe for a terminal
	Failed bool   `json:"failed,omitempty"`
}

// DiffPair is a value of either run; nil: it has none.
type DiffPair struct {
	A   Raw  `json:"a,omitempty"`
	B   Raw  `json:"b,omitempty"`
	Cut bool `json:"cut,omitempty"` // both are left out: they don't fit into an answer of wake.api; `wake diff` has them
}

// DiffValue is a value that differs, by its name.
type DiffValue struct {
	Name string `json:"name"`
	DiffPair
}

// DiffNode is a node that differs in what became of it, what it did or what it
// cost.
type DiffNode struct {
	Node   string       `json:"node"`
	A      DiffNodeRun  `json:"a"`
	B      DiffNodeRun  `json:"b"`
	Parted *DiffParting `json:"parted,omitempty"` // the first thing done differently
	Output bool         `json:"output,omitempty"` // the outputs differ
}

// DiffNodeRun says how a node did in one of the runs.
type DiffNodeRun struct {
	Status     NodeStatus `json:"status,omitempty"` // "": the run has no such node
	Reason     string     `json:"reason,omitempty"`
	Execs      int        `json:"execs"`
	Steps      int        `json:"steps"`      // behind the common point
	Tools      int        `json:"tools"`      // calls behind the common point
	ToolErrors int        `json:"toolErrors"` // of those
	CostUsd    float64    `json:"costUsd"`    // behind the common point
}

// DiffTool is a call that one of the runs made more often.
type DiffTool struct {
	Node  string `json:"node"`
	Tool  string `json:"tool"`
	Input string `json:"input,omitempty"` // in short
	A     int    `json:"a"`               // calls
	B     int    `json:"b"`
}

// WorkspaceRequest asks what is in the folder of a run, or in what that of another position differs.
type WorkspaceRequest struct {
	Run    string `json:"run"`              // the run's id
	At     uint64 `json:"at,omitempty"`     // position; 0: the present
	Diff   uint64 `json:"diff,omitempty"`   // the other position; 0: none
	Cursor string `json:"cursor,omitempty"` // of the page before
}

// WorkspaceResponse is a page of what is in a folder, or of changes. Cursor asks for the next one; it is empty on the last page.
type WorkspaceResponse struct {
	RunID    string          `json:"runId"`
	Snapshot *FolderSnapshot `json:"snapshot,omitempty"` // that of the position or the last one before
	Tree     string          `json:"tree,omitempty"`     // hash of all that is in it
	Working  []string        `json:"working,omitempty"`  // other nodes that were at work, the first 200: what they had written may be in it
	Content  []FolderFile    `json:"content,omitempty"`  // folders before what is in them

	WorkingMore int `json:"workingMore,omitempty"` // nodes at work that aren't named

	A       *FolderSnapshot `json:"a,omitempty"` // with diff: that of At
	B       *FolderSnapshot `json:"b,omitempty"` // and the other one
	Changes []FolderChange  `json:"changes,omitempty"`

	Cursor string `json:"cursor,omitempty"`
}

// FolderFile is a file, folder or link of a folder.
type FolderFile struct {
	Path   string `json:"path"`             // slashes; what isn't UTF-8 is replaced
	Type   string `json:"type"`             // file, folder or link
	Mode   string `json:"mode,omitempty"`   // octal
	Size   int64  `json:"size,omitempty"`   // of a file
	Target string `json:"target,omitempty"` // of a link
}

// FolderChange is what differs between two folders at a path. Of a folder that is in one only, all that is in it is told.
type FolderChange struct {
	Path   string      `json:"path"`
	Change string      `json:"change"` // added, removed or changed
	A      *FolderFile `json:"a,omitempty"`
	B      *FolderFile `json:"b,omitempty"`
}
