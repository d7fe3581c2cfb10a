package wire

// VerbDelete deletes a run from the recorder's store, or restores it:
// [DeleteRequest], [DeleteResponse]; answered by the recorder.
const VerbDelete = "delete"

// DeleteRequest deletes a run that has ended: no list has it any more, and after
// a while its events are removed. Until then it can be read, exported and
// restored.
type DeleteRequest struct {
	Run   string `json:"run"`             // see [LogRequest.Run]
	Undo  bool   `json:"undo,omitempty"`  // restore it
	Now   bool   `json:"now,omitempty"`   // its events are removed at once
	Force bool   `json:"force,omitempty"` // also if a run that goes on descends from it, or it has a labelled bookmark
}

// DeleteResponse says what was deleted or restored.
type DeleteResponse struct {
	RunID     string `json:"runId"`
	DeletedAt int64  `json:"deletedAt,omitempty"` // Unix ms; 0: it was restored
	GoneAt    int64  `json:"goneAt,omitempty"`    // Unix ms, when its events are removed
}
