package topology

// Action is what Init did.
type Action string

// The actions.
const (
	Created   Action = "created"
	Updated   Action = "updated"
	Unchanged Action = "unchanged"
)

// Item is what Init did about one thing.
type Item struct {
	Kind    Kind     `json:"kind"`
	Name    string   `json:"name"`
	Action  Action   `json:"action"`
	Changes []Change `json:"changes,omitempty"` // of an update
}

// Report is what Init did.
type Report struct {
	Prefix      string `json:"prefix"`
	Incarnation string `json:"incarnation"` // of the stream of events
	Items       []Item `json:"items"`
}

// Changed reports whether Init changed anything.
func (r Report) Changed() bool {
	for _, i := range r.Items {
		if i.Action != Unchanged {
			return true
		}
	}
	return false
}
