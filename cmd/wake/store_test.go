package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"code.wake.dev/wake/internal/report"
)

// store VERB BODY PATTERN asks where programs keep their sessions, as their adapters do; the answer has the pattern in it.
func askStore(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: store VERB BODY TEXT")
	}
	a, err := report.ReadAddress(ts.MkAbs(".wake/sessions-url"))
	ts.Check(err)
	r, err := http.NewRequest(http.MethodPost, a.URL+"/sessions/"+args[0], strings.NewReader(args[1])) // a test of the command line
	ts.Check(err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+a.Key)
	answer, err := http.DefaultClient.Do(r)
	ts.Check(err)
	text, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	ts.Check(err)
	if !strings.Contains(string(text), args[2]) {
		ts.Fatalf("%s: %s %s, want %s", args[0], answer.Status, text, args[2])
	}
}

// answer FILE TYPE PATTERN answers by the link of a notification, as a proxy passes it on, and looks for a pattern in what it is told.
func answerLink(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: answer FILE TYPE PATTERN")
	}
	var told struct{ AnswerURL string }
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &told))
	link, err := url.Parse(told.AnswerURL)
	ts.Check(err)
	at, _, _ := strings.Cut(ts.ReadFile(".wake/console-url"), "#")
	r, err := http.NewRequest(http.MethodPost, strings.TrimSuffix(at, "/")+link.Path, strings.NewReader("type="+args[1])) // a test of the command line
	ts.Check(err)
	r.Host = link.Host
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := http.DefaultClient.Do(r)
	ts.Check(err)
	text, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	ts.Check(err)
	if !regexp.MustCompile(args[2]).Match(text) {
		ts.Fatalf("%s: %s %s, want %s", link, answer.Status, text, args[2])
	}
}
