// Package report is what the hooks of a session tell the listener of this machine, over HTTP on loopback, and what they are
// told: requests that wait beside an open dialog for the decision of a person elsewhere.
//
// Where the listener is, and the key of its tokens, stand in a file. A hook that finds no listener there removes the file, so that no
// other hook asks; the listener puts it back while it listens.
package report

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"code.wake.dev/wake/internal/durable"
	"code.wake.dev/wake/internal/session"
)

// The events that are reported, by the names of Claude Code's hooks.
const (
	SessionStart       = "SessionStart"
	SessionEnd         = "SessionEnd"
	Notification       = "Notification"
	Elicitation        = "Elicitation" // a server of tools asks for something
	Stop               = "Stop"        // a turn is over: the session waits for its person
	StopFailure        = "StopFailure" // the model's API has ended it
	SubagentStart      = "SubagentStart"
	SubagentStop       = "SubagentStop"
	PreCompact         = "PreCompact"
	PostCompact        = "PostCompact"
	PostToolUse        = "PostToolUse" // a call has its result
	PostToolUseFailure = "PostToolUseFailure"
	PermissionRequest  = "PermissionRequest"
	Decided            = "Decided" // a request isn't open any more
)

// MaxBytes bounds a report.
const MaxBytes = 1 << 20

// Path is where the listener takes reports.
const Path = "/hooks/report"

// Report is what a hook tells of its session.
type Report struct {
	Session string        `json:"session"`
	Event   string        `json:"event"`
	At      int64         `json:"at"` // Unix ms
	About   session.About `json:"about"`
	Text    string        `json:"text,omitempty"` // of a notification; how a session began, or why it ended

	// Of a call; of a request and of its decision.
	Call     string          `json:"call,omitempty"`
	Tool     string          `json:"tool,omitempty"`
	Input    json.RawMessage `json:"input,omitempty"`
	Decision string          `json:"decision,omitempty"` // "allow", "deny", or "": unknown
	ByWake   bool            `json:"byWake,omitempty"`   // by the verdict; else in the terminal
}

// Verdict is the decision on a request.
type Verdict struct {
	Decision string          `json:"decision"` // "allow", "deny", or "": only the terminal will decide
	Note     string          `json:"note,omitempty"`
	Input    json.RawMessage `json:"input,omitempty"` // to be used instead, such as answered questions
}

// Address is where a listener is.
type Address struct {
	URL string // of the server, without a path
	Key string // makes the tokens
}

// FileIn is the file of the listener's address in a data directory.
func FileIn(dir string) string { return filepath.Join(dir, "hooks-url") }

// ReadAddress reads the address. It fails with [os.ErrNotExist] without a listener.
func ReadAddress(file string) (a Address, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return a, err
	}
	u, err := url.Parse(strings.TrimSpace(string(b)))
	if err != nil {
		return a, fmt.Errorf("report: %s: %w", file, err)
	}
	key, ok := strings.CutPrefix(u.Fragment, "key=")
	if u.Fragment = ""; !ok || u.Host == "" {
		return a, fmt.Errorf("report: %s has no address", file)
	}
	return Address{URL: strings.TrimSuffix(u.String(), "/"), Key: key}, nil
}

// Write writes the address into a file, unless it stands there. Others can't read it.
func (a Address) Write(file string) error {
	if there, err := ReadAddress(file); err == nil && there == a {
		return nil
	}
	if err := durable.Write(file, []byte(a.URL+"/#key="+a.Key+"\n"), 0o600); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Remove removes the address, if it is what the file has.
func (a Address) Remove(file string) {
	if there, err := ReadAddress(file); err == nil && there == a {
		_ = os.Remove(file) // else the next one asks in vain, too
	}
}

// Token is that of a session: it may report of it and be told its verdicts, and nothing else.
func (a Address) Token(session string) string {
	m := hmac.New(sha256.New, []byte(a.Key))
	m.Write([]byte(session))
	return session + "." + base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// SessionOf returns the session of a token, "" if the token is none of this listener.
func (a Address) SessionOf(token string) string {
	name, _, _ := strings.Cut(token, ".")
	if !hmac.Equal([]byte(a.Token(name)), []byte(token)) {
		return ""
	}
	return name
}
