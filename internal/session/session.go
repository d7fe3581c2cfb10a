// Package session finds the session files of agents that wake doesn't drive, tells which of their lines are new, and
// which processes hold the sessions.
package session

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"code.wake.dev/wake/internal/agent/claude"
	"code.wake.dev/wake/internal/agent/workdir"
	"code.wake.dev/wake/pkg/wire"
)

// Line is what is known of a line of a session file before it is told.
type Line struct {
	Key     string // names it wherever it stands in its file
	Omitted bool   // it repeats a request to the model's API
	Fresh   bool   // it hasn't been told, or was removed since
	Back    bool   // it was told before it was removed: what it says is in the log
}

// Index tells which lines of a file are new. A line is matched by its uuid; one without by its content, and by how many
// like it come before, so that a file may be written anew, in another order, with lines added or taken away. It is pure.
type Index struct {
	alike map[string]int  // lines so far, by what they are matched by
	told  map[string]bool // keys, and whether the line has come in this reading
	gone  map[string]bool // keys of lines that were told and removed
}

// NewIndex returns the index of a file; the lines with these keys were told, and stand in it unless they were removed since.
func NewIndex(stands map[string]bool) *Index {
	x := &Index{alike: map[string]int{}, told: map[string]bool{}, gone: map[string]bool{}}
	for key, here := range stands {
		if here {
			x.told[key] = false
		} else {
			x.gone[key] = true
		}
	}
	return x
}

// Add takes the next line of the file, from its beginning on.
func (x *Index) Add(line []byte) Line {
	var fields struct {
		Type string `json:"type"`
		UUID string `json:"uuid"`
	}
	_ = json.Unmarshal(line, &fields) // what is no JSON is matched by its content
	if strings.HasPrefix(fields.Type, "api-request") {
		return Line{Omitted: true}
	}
	key := fields.UUID
	if uuid.Validate(key) != nil || len(key) != 36 {
		sum := sha256.Sum256(line)
		key = hex.EncodeToString(sum[:12])
	}
	n := x.alike[key]
	x.alike[key] = n + 1
	if n > 0 {
		key += "." + strconv.Itoa(n)
	}
	_, known := x.told[key]
	if known {
		x.told[key] = true
	}
	back := x.gone[key]
	delete(x.gone, key)
	return Line{Key: key, Fresh: !known, Back: back}
}

// Removed returns the keys of lines that were told and haven't come, and forgets what was told: the file was read to its
// end, and what comes from here on is new, or back.
func (x *Index) Removed() []string {
	maps.DeleteFunc(x.told, func(_ string, come bool) bool { return come })
	removed := slices.Sorted(maps.Keys(x.told))
	for _, key := range removed {
		x.gone[key] = true
	}
	clear(x.told)
	return removed
}

// About is what a session file says of its session.
type About struct {
	Session string
	Cwd     string
	Branch  string
	Title   string
	Root    string // uuid of its first message: sessions that were forked from one another have the same
	At      int64  // first time, in Unix ms; 0: none
	Model   string // the last that answered
	Mode    string // of permissions, the last
}

// Note takes a line; what was said first counts, but of model and permissions the last, and of titles the one that was given.
func (a *About) Note(line []byte) {
	var l struct {
		Type      string    `json:"type"`
		UUID      string    `json:"uuid"`
		Session   string    `json:"sessionId"`
		Cwd       string    `json:"cwd"`
		Branch    string    `json:"gitBranch"`
		Timestamp time.Time `json:"timestamp"`
		Meta      bool      `json:"isMeta"`
		Custom    string    `json:"customTitle"`
		Made      string    `json:"aiTitle"`
		Summary   string    `json:"summary"`
		Mode      string    `json:"permissionMode"`
		Message   struct {
			Model   string `json:"model"`
			Content any    `json:"content"`
		} `json:"message"`
	}
	if json.Unmarshal(line, &l) != nil {
		return
	}
	a.Session, a.Cwd, a.Branch = cmp.Or(a.Session, l.Session), cmp.Or(a.Cwd, l.Cwd), cmp.Or(a.Branch, l.Branch)
	if a.Mode = cmp.Or(l.Mode, a.Mode); l.Message.Model != "<synthetic>" {
		a.Model = cmp.Or(l.Message.Model, a.Model)
	}
	if a.At == 0 && !l.Timestamp.IsZero() {
		a.At = l.Timestamp.UnixMilli()
	}
	if (l.Type == "user" || l.Type == "assistant") && a.Root == "" {
		a.Root = l.UUID
	}
	if l.Type == "user" && !l.Meta {
		a.Title = cmp.Or(a.Title, titleOf(l.Message.Content))
	}
	if given := cmp.Or(l.Custom, l.Made, l.Summary); given != "" {
		a.Title = firstWords(given)
	}
}

// titleOf returns the beginning of what a person said, "" of what the program wrote in the person's name.
func titleOf(content any) string {
	if blocks, ok := content.([]any); ok && len(blocks) > 0 {
		if block, ok := blocks[0].(map[string]any); ok {
			content = block["text"]
		}
	}
	text, _ := content.(string)
	if strings.HasPrefix(text, "<") || strings.HasPrefix(text, "[Request interrupted") {
		return ""
	}
	return firstWords(text)
}

// maxTitle is the length of a title, in characters.
const maxTitle = 80

func firstWords(text string) string {
	words := strings.Join(strings.Fields(text), " ")
	if chars := []rune(words); len(chars) > maxTitle {
		return string(chars[:maxTitle-1]) + "…"
	}
	return words
}

// Labels are what a run of the session is found by.
func (a *About) Labels() map[string]string {
	labels := map[string]string{}
	for key, value := range map[string]string{
		"name": a.Title, "project": filepath.Base(a.Cwd), "branch": a.Branch, "conversation": a.Root, "session": a.Session,
	} {
		if value != "" && value != "." && utf8.ValidString(value) {
			labels[key] = value
		}
	}
	return labels
}

// The names in runs of sessions.
const (
	flowName = "claude"
	MainNode = "agent" // the node of the session itself
	// StoreFile begins what a [wire.TranscriptRead] calls a transcript that a program appends to its store.
	StoreFile = "store:"
	// StreamFile is what a [wire.TranscriptRead] calls what a session's program has printed, StreamNode the node on which stands what the
	// comparison with that has shown.
	StreamFile = "stream:"
	StreamNode = "stream"
)

// IsPrinted reports whether an event says that what was told with it stood in a stream, not in the session's file.
func IsPrinted(p wire.Payload) bool {
	mark, is := p.(*wire.TranscriptRead)
	return is && mark.File == StreamFile
}

// Start is the beginning of the session's run; before is the session that its process held earlier.
func (a *About) Start(before string) (*wire.FlowStart, error) {
	definition, err := wire.Marshal(map[string]any{
		"name":  flowName,
		"nodes": []any{map[string]any{"id": MainNode, "type": "agent", "input": map[string]any{"provider": "claude", "prompt": ""}}},
	})
	if err != nil {
		return nil, fmt.Errorf("definition: %w", err)
	}
	labels := a.Labels()
	if before != "" {
		labels["continues"] = before
	}
	sum := sha256.Sum256(definition)
	return &wire.FlowStart{
		FlowName: flowName, Definition: definition, DefinitionHash: hex.EncodeToString(sum[:]), Labels: labels, Imported: wire.ImportedIngest,
	}, nil
}

// maxAbout bounds what is read of a file to know what it is about.
const maxAbout = 256 << 10

// Read reads what the beginning of a session file says of its session.
func Read(name string) (about About, err error) {
	in, err := workdir.OpenFile(name)
	if err != nil {
		return about, err
	}
	defer func() { _ = in.Close() }() // it was only read
	lines := claude.NewLineReader(in, maxAbout)
	for read := int64(0); read < maxAbout; {
		line, size, err := lines.Next()
		if read += size; err != nil && !errors.As(err, new(*claude.LineTooLongError)) {
			break // what there is must do
		}
		about.Note(line)
	}
	return about, nil
}
