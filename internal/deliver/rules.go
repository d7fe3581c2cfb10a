package deliver

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"code.wake.dev/wake/pkg/wire"
)

// Rules say which alerts go where, as [Parse] read them from a file.
type Rules struct {
	Sinks map[string]*Sink
	Rules []*Rule
}

// Sink is a target of alerts.
type Sink struct {
	Type string `yaml:"type"` // one of [sinkKinds]
	// URL is that of a webhook, an Alertmanager, or a chat or push service as
	// shoutrrr has it, such as slack://hook:A-B-C@webhook.
	URL string `yaml:"url"`
	// Secret signs webhooks: base64, with or without "whsec_".
	Secret  string            `yaml:"secret"`
	Headers map[string]string `yaml:"headers"` // of webhooks and Alertmanagers
	Command []string          `yaml:"command"` // of exec: program and arguments
	Env     map[string]string `yaml:"env"`     // of exec: beside PATH, HOME, LANG and TZ

	Timeout  time.Duration `yaml:"timeout"`  // of one attempt; default 10 s, at most 15 s
	Attempts int           `yaml:"attempts"` // before it is a dead letter; default 30, about 24 min
	Expire   time.Duration `yaml:"expire"`   // age from which alerts aren't sent one by one; default 24h
	Rate     *Rate         `yaml:"rate"`     // default: no limit

	base    []string // environment of programs
	secrets []string // what must not be shown
}

// Rate is how many notifications a sink takes; the rest becomes one line.
type Rate struct {
	Count int           `yaml:"count"`
	Per   time.Duration `yaml:"per"`
}

// Rule sends the alerts that it matches to its sinks. For each sink the first rule
// that matches an alert and names the sink counts.
type Rule struct {
	Match  Match         `yaml:"match"`
	Sinks  []string      `yaml:"sinks"`
	Quiet  *Quiet        `yaml:"quiet"`
	Digest time.Duration `yaml:"digest"` // gather for so long, then send one digest; default: at once
}

// Match selects alerts. What is empty matches all; several values are alternatives
// and may be patterns such as "nightly-*".
type Match struct {
	Kind     []string          `yaml:"kind"`
	Severity wire.Severity     `yaml:"severity"` // at least
	Flow     []string          `yaml:"flow"`
	Run      []string          `yaml:"run"`
	Label    map[string]string `yaml:"label"` // all of these
}

// Quiet are hours in which nothing is sent but what is severe. What comes
// meanwhile is sent as a digest when they end.
type Quiet struct {
	From string        `yaml:"from"` // such as "22:00"; both empty: the whole day
	To   string        `yaml:"to"`   // if it is earlier than From, of the next day
	Days []string      `yaml:"days"` // on which it begins: mon … sun; default: all
	Zone string        `yaml:"zone"` // such as Europe/Berlin; default: that of the process
	Pass wire.Severity `yaml:"pass"` // what is sent all the same, from this on; default critical
	Drop wire.Severity `yaml:"drop"` // what is not even in the digest, below this; default: nothing

	from, to time.Duration // since midnight
	zone     *time.Location
}

var severities = []wire.Severity{wire.SeverityInfo, wire.SeverityWarning, wire.SeverityError, wire.SeverityCritical}

// severityRank orders severities. One that is unknown is as severe as it gets.
func severityRank(s wire.Severity) int {
	if i := slices.Index(severities, s); i >= 0 {
		return i
	}
	return len(severities)
}

// ruleFor returns the rule by which an alert goes to a sink, nil if none does, and
// its number.
func (r *Rules) ruleFor(sink string, a *wire.Alert) (*Rule, int) {
	for i, rule := range r.Rules {
		if slices.Contains(rule.Sinks, sink) && rule.Match.matchesAlert(a) {
			return rule, i
		}
	}
	return nil, 0
}

func (m *Match) matchesAlert(a *wire.Alert) bool {
	if m.Severity != "" && severityRank(a.Severity) < severityRank(m.Severity) {
		return false
	}
	for name, pattern := range m.Label {
		if v, ok := a.Labels[name]; !ok || !matchesPattern(pattern, v) {
			return false
		}
	}
	return anyOf(m.Kind, a.Kind) && anyOf(m.Flow, a.Flow) && anyOf(m.Run, a.RunID)
}

func anyOf(patterns []string, s string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return matchesPattern(p, s) })
}

// matchesPattern reports whether a pattern of [path.Match] matches s, slashes being
// letters like any other.
func matchesPattern(pattern, s string) bool {
	ok, err := path.Match(escapeSlashes(pattern), escapeSlashes(s))
	return err == nil && ok
}

func escapeSlashes(s string) string { return strings.ReplaceAll(s, "/", "\x00") }

// quietEnd returns when the quiet hours end that t is in.
func (q *Quiet) quietEnd(t time.Time) (end time.Time, quiet bool) {
	if q == nil {
		return t, false
	}
	end = t
	for range 8 { // days that follow each other without a gap
		next, ok := q.periodEnd(end)
		if !ok {
			break
		}
		end, quiet = next, true
	}
	return end, quiet
}

// periodEnd returns the end of the one period that t is in. It began today or
// yesterday.
func (q *Quiet) periodEnd(t time.Time) (end time.Time, ok bool) {
	t = t.In(q.zone)
	for _, back := range []int{0, -1} {
		y, m, d := t.AddDate(0, 0, back).Date()
		begin := q.timeOfDay(y, m, d, q.from)
		end := q.timeOfDay(y, m, d, q.to)
		if q.to <= q.from {
			end = q.timeOfDay(y, m, d+1, q.to)
		}
		weekday := strings.ToLower(time.Date(y, m, d, 12, 0, 0, 0, q.zone).Weekday().String()[:3])
		if len(q.Days) > 0 && !slices.Contains(q.Days, weekday) {
			continue
		}
		if !t.Before(begin) && t.Before(end) {
			return end, true
		}
	}
	return t, false
}

func (q *Quiet) timeOfDay(y int, m time.Month, d int, since time.Duration) time.Time {
	return time.Date(y, m, d, int(since.Hours()), int(since.Minutes())%60, 0, 0, q.zone)
}

// isEndless reports whether quiet hours never end.
func (q *Quiet) isEndless() bool { return q.from == q.to && (len(q.Days) == 0 || len(q.Days) == 7) }

var urls = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"']+`) })

// scrubText takes URLs and secrets out of a text, such as an error of a library that
// shows what it was given.
func (s *Sink) scrubText(text string) string {
	text = urls().ReplaceAllString(text, "URL")
	for _, secret := range s.secrets {
		text = strings.ReplaceAll(text, secret, "***")
	}
	return text
}
