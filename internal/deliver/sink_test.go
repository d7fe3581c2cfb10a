package deliver_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"code.wake.dev/wake/internal/deliver"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// A webhook is a CloudEvent that is signed as the reference checks it.
func TestWebhook(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		w := begin(t)
		w.start(toOps)
		<-time.After(time.Second)
		id := w.raise(1)[0]
		<-time.After(time.Second)
		got := w.web.events()
		if len(got) != 1 {
			t.Fatal(got)
		}
		e := got[0]
		check, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := check.Verify(e.body, e.header); err != nil {
			t.Error(err)
		}
		if err := check.Verify(append(e.body, ' '), e.header); err == nil {
			t.Error("another body has the same signature")
		}
		var alert struct{ Key, Text, Flow string }
		if err := json.Unmarshal(e.Data, &alert); err != nil || alert.Key != "error-1" || alert.Flow != "review" || alert.Text != "[subagent:coder] ❌ 1" {
			t.Errorf("%+v, %v", alert, err)
		}
		if e.Type != "wake.alert.error" || e.Source != "wake://wake/r1" || e.header.Get("webhook-id") != id || e.ID != id ||
			e.header.Get("Content-Type") != "application/cloudevents+json; charset=utf-8" {
			t.Errorf("%s %s %v", e.Type, e.Source, e.header)
		}
	})
}

// What a sink says about when to come again is heeded.
func TestRetryAfter(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		w := begin(t)
		w.start(toOps)
		<-time.After(time.Second)
		var tries []time.Time
		w.web.answers(func(h http.ResponseWriter, e event) {
			tries = append(tries, e.at)
			if len(tries) == 1 {
				h.Header().Set("Retry-After", "120")
				h.WriteHeader(http.StatusTooManyRequests)
			}
		})
		w.raise(1)
		<-time.After(5 * time.Minute)
		if len(tries) != 2 || tries[1].Sub(tries[0]) != 2*time.Minute {
			t.Errorf("%v", tries)
		}
	})
}

// A redirect isn't followed: what is signed is for one address.
func TestRedirect(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		w := begin(t)
		w.start(toOps)
		<-time.After(time.Second)
		w.web.answers(func(h http.ResponseWriter, e event) {
			if e.host == "ops" {
				h.Header().Set("Location", "http://elsewhere/")
				h.WriteHeader(http.StatusTemporaryRedirect)
			}
		})
		w.raise(1)
		<-time.After(10 * time.Second)
		if got := w.web.ids("elsewhere"); len(got) > 0 {
			t.Errorf("%v", got)
		}
	})
}

func TestAlertmanager(t *testing.T) {
	t.Parallel()
	var path, body string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		path, body = r.URL.Path+" "+r.Header.Get("Authorization"), string(b)
	}))
	t.Cleanup(server.Close)
	send(t, `{type: alertmanager, url: "`+server.URL+`/", headers: {Authorization: "Bearer ${TOKEN}"}}`, "")
	if path != "/api/v2/alerts Bearer t0psecret" {
		t.Errorf("posted to %q", path)
	}
	var got []struct{ Labels, Annotations map[string]string }
	if err := json.Unmarshal([]byte(body), &got); err != nil || len(got) != 1 || got[0].Labels["alertname"] != "wake_test" || got[0].Annotations["summary"] == "" {
		t.Errorf("%s, %v", body, err)
	}
}

// send sends a test to a sink. It fails with an error that has the word, "" for
// none, and no secret.
func send(t *testing.T, sink, word string) {
	t.Helper()
	r := rules(t, "sinks:\n  s: "+sink+"\n")
	err := deliver.Test(t.Context(), deliver.Config{}, r, "s", subjects.Default)
	switch {
	case word == "" && err != nil:
		t.Error(err)
	case word != "" && (err == nil || !strings.Contains(err.Error(), word)):
		t.Errorf("%s: error %v, want %q", sink, err, word)
	case err != nil && (strings.Contains(err.Error(), "t0psecret") || strings.Contains(err.Error(), "hidden")):
		t.Errorf("the error shows a secret: %v", err)
	}
}

// Chat and push services get the text. What they say never shows the secrets of
// their URLs.
func TestChat(t *testing.T) {
	t.Parallel()
	var got []string
	code, says := http.StatusOK, "{}"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = append(got, r.URL.Path+" "+string(b))
		w.WriteHeader(code)
		_, _ = io.WriteString(w, says)
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	send(t, `{type: chat, url: "ntfy://:${TOKEN}@`+host+`/wake?scheme=http"}`, "")
	send(t, `{type: chat, url: "gotify://`+host+`/AbCdEfGhIjKlMnO?disabletls=yes"}`, "")
	if len(got) != 2 || !strings.HasPrefix(got[0], "/wake wake: a test of the sink s") {
		t.Errorf("%q", got)
	}
	code, says = http.StatusForbidden, `{"code":40101,"error":"token t0psecret of https://hidden.example/abc is wrong"}`
	send(t, `{type: chat, url: "ntfy://:${TOKEN}@`+host+`/wake?scheme=http"}`, "***")
	gone := closedPort(t)
	for _, u := range []string{
		"ntfy://:${TOKEN}@" + gone + "/wake?scheme=http",
		"generic://" + gone + "/hook/${TOKEN}?disabletls=yes",
		"smtp://user:${TOKEN}@" + gone + "/?from=a@example.com&to=b@example.com",
		"rocketchat://" + gone + "/${TOKEN}/t0psecret2",
	} {
		send(t, `{type: chat, url: "`+u+`"}`, "refused")
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// A program gets the event on stdin, and none of it in its arguments or its
// environment.
func TestExec(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "out")
	send(t, `{type: exec, command: [sh, -c, 'cat > "$0"; env >> "$0"', `+file+`], env: {KEY: "${TOKEN}"}}`, "")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	event, env, _ := strings.Cut(string(b), "\n")
	var e struct{ Type string }
	if err := json.Unmarshal([]byte(event), &e); err != nil || e.Type != "wake.test" {
		t.Errorf("%q, %v", event, err)
	}
	if !strings.Contains(env, "KEY=t0psecret") || strings.Contains(env, "SECRET=") {
		t.Errorf("environment %q", env)
	}
	send(t, `{type: exec, command: [sh, -c, 'echo "no ${TOKEN}t0psecret" >&2; exit 3'], env: {KEY: "${TOKEN}"}}`, "exit code 3: no ")
	send(t, `{type: exec, command: [sleep, "60"], timeout: 100ms}`, "deadline")
	send(t, `{type: exec, command: [/nonexistent/program]}`, "no such file")
}

// A text of an agent calls nobody and draws nothing.
func TestHarmless(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"@everyone look":   "@\u2060everyone look",
		"<!channel> <@U1>": "<\u2060!channel> <@\u2060U1>",
		"a\x1b[31mb":       "ab",
		"one\ntwo":         "one\ntwo",
	} {
		if got := deliver.Harmless(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// Quiet hours hold back what isn't severe and tell of it when they end, by the
// clock of their zone.
func TestQuiet(t *testing.T) {
	t.Parallel()
	r := rules(t, `
sinks: {s: {type: terminal}}
rules:
  - sinks: [s]
    quiet: {from: "22:00", to: "07:00", zone: Europe/Berlin, drop: warning}
`)
	at := func(h, m int) int64 { return time.Date(2026, 3, 28, h, m, 0, 0, time.UTC).UnixMilli() } // 29 March has 23 hours
	got := deliver.Simulate(r, []wire.Alert{
		{Text: "before", Severity: wire.SeverityError, Timestamp: at(20, 59)},
		{Text: "dropped", Severity: wire.SeverityInfo, Timestamp: at(21, 0)},
		{Text: "held", Severity: wire.SeverityWarning, Timestamp: at(21, 1)},
		{Text: "passes", Severity: wire.SeverityCritical, Timestamp: at(22, 0)},
		{Text: "held too", Severity: wire.SeverityError, Timestamp: at(28, 59)},
		{Text: "after", Severity: wire.SeverityInfo, Timestamp: at(29, 1)},
	})
	var lines []string
	for _, d := range got {
		lines = append(lines, d.At.UTC().Format("15:04 ")+d.Notification.Text)
	}
	same(t, "sent", []string{
		"20:59 before", "22:00 passes", "05:00 2 alerts (1 warning, 1 error) in quiet hours:\nheld\nheld too", "05:01 after",
	}, lines)
	if got[2].Notification.Severity != wire.SeverityError {
		t.Errorf("a digest is as severe as the worst of it, not %s", got[2].Notification.Severity)
	}
}

// Days without hours are quiet as a whole, one after the other.
func TestQuietDays(t *testing.T) {
	t.Parallel()
	r := rules(t, `
sinks: {s: {type: terminal}}
rules: [{sinks: [s], quiet: {days: [sat, sun], zone: UTC}}]
`)
	got := deliver.Simulate(r, []wire.Alert{{Text: "on Saturday", Timestamp: time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC).UnixMilli(), Severity: wire.SeverityInfo}})
	if len(got) != 1 || !got[0].At.Equal(time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("%v", got)
	}
}

// What exceeds a sink's rate becomes one line; a digest gathers; the first rule that
// matches counts.
func TestRateAndDigest(t *testing.T) {
	t.Parallel()
	r := rules(t, `
sinks:
  s: {type: terminal, rate: {count: 2, per: 1m}}
  d: {type: terminal}
rules:
  - {sinks: [s]}
  - {sinks: [d], match: {severity: error}}
  - {sinks: [d], digest: 10m}
`)
	var alerts []wire.Alert
	for i := range 30 {
		alerts = append(alerts, wire.Alert{Text: "x", Severity: wire.SeverityInfo, Timestamp: int64(i) * 1000})
	}
	alerts = append(alerts, wire.Alert{Text: "bad", Severity: wire.SeverityError, Timestamp: 70_000})
	lines := map[string][]string{}
	for _, d := range deliver.Simulate(r, alerts) {
		lines[d.Sink] = append(lines[d.Sink], d.At.UTC().Format("15:04:05 ")+d.Notification.Text)
	}
	same(t, "limited", []string{"00:00:00 x", "00:00:01 x", "00:01:00 28 alerts (28 info) more within 1m0s: see `wake alerts`", "00:01:10 bad"}, lines["s"])
	digest := "00:10:00 30 alerts (30 info):\n" + strings.Repeat("x\n", 20) + "… and 10 more: see `wake alerts`"
	same(t, "gathered", []string{"00:01:10 bad", digest}, lines["d"])
}

func TestMatch(t *testing.T) {
	t.Parallel()
	alert := wire.Alert{Kind: "failure_loop", Severity: wire.SeverityWarning, Flow: "review/api", RunID: "nightly-7", Labels: map[string]string{"team": "core"}}
	for match, want := range map[string]bool{
		"{}": true, "{kind: [error, failure_loop]}": true, "{kind: [error]}": false, "{severity: warning}": true, "{severity: error}": false,
		"{flow: ['review*']}": true, "{flow: [review]}": false, "{run: ['nightly-?']}": true, "{run: ['daily-*']}": false,
		"{label: {team: 'c*'}}": true, "{label: {team: web}}": false, "{label: {none: '*'}}": false, "{kind: ['*'], label: {team: web}}": false,
	} {
		r := rules(t, "sinks: {s: {type: terminal}}\nrules: [{sinks: [s], match: "+match+"}]")
		if got := len(deliver.Simulate(r, []wire.Alert{alert})) == 1; got != want {
			t.Errorf("%s: %v", match, got)
		}
	}
}

// What couldn't be sent for a day isn't sent one by one.
func TestLate(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		w := begin(t)
		_, stop, _ := w.run(rules(t, toOps), nil)
		<-time.After(time.Second)
		stop()
		w.raise(3)
		<-time.After(10*time.Hour + 30*time.Minute)
		late := strings.Replace(toOps, "url:", "expire: 8h, url:", 1)
		w.start(late)
		want := w.raise(1)
		<-time.After(20 * time.Second)
		got := w.web.ids("ops")
		if len(got) != 2 || got[0] != want[0] || !strings.HasPrefix(got[1], "digest-") {
			t.Errorf("%v", got)
		}
		e := w.web.events()
		if i := slices.IndexFunc(e, func(e event) bool { return e.Type == "wake.digest.late" }); i < 0 {
			t.Errorf("%+v", e)
		}
	})
}
